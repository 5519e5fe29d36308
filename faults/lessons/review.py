"""A new entry, before it is blessed: does `visible` say where it shows, and if nothing kills it, what was tried?"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Sequence
from random import Random

from faults.elsewhere import differences
from faults.fault import Fault, name_of, subject_of
from faults.kills import DRAWN, VISIBLE, kills, visible_cases
from faults.looks import LOOKS
from faults.smallest import shrunk
from faults.subject import clean_class, subject
from properties.case import Case, sample
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import failure

ASKED = 2_000  # random cases on which `visible` is asked
HELD_TO = 20  # of either kind that it is held to
LOOKED_AT = 80  # cases on which the numbers are compared with the clean ones, if no property fails


def review(fault: type[Fault], seed: int = 0) -> list[str]:
    """Return what is wrong with the entry, each with the case that shows it; nothing, if there is nothing."""
    cases = _drawn(fault, seed)
    try:
        seen = [case for case in cases if fault.visible(case)]
    except NotImplementedError as error:
        return [str(error) or "visible(case) is not written"]
    except Exception as error:
        return [f"visible(case) raises {type(error).__name__}: {error}"]
    if not seen:
        return [f"visible(case) is true for none of {ASKED:,} random cases.\n{_where_it_differs(fault, cases)}"]
    killers = {kill.property for kill in kills(fault, subject_of(fault), seed, PROPERTIES)}
    if not killers:
        return [f"no property kills it.\n{tried(fault, seed)}\n{_where_it_differs(fault, seen + cases)}"]
    hidden = [case for case in cases if not fault.visible(case)]
    asked = sorted((p for p in PROPERTIES if not p.slow or p.name in killers), key=lambda p: p.name not in killers)
    found = (_too_wide(fault, seen[:HELD_TO], asked), _too_narrow(fault, hidden[:HELD_TO], asked))
    return [complaint for complaint in found if complaint]


def tried(fault: type[Fault], seed: int = 0) -> str:
    """What a fault that nothing kills was tried on, and what was not tried."""
    subject_ = subject_of(fault)
    cases: dict[str, int] = {}
    reasons: dict[str, list[str]] = {}
    for property_ in PROPERTIES:
        reason = property_.not_applicable(subject_)
        if reason is None:
            cases[property_.name] = sum(1 for _ in itertools.islice(visible_cases(fault, subject_, property_, seed), VISIBLE))
        else:
            reasons.setdefault(reason, []).append(property_.name)
    some, none = [n for n in cases if cases[n]], [n for n in cases if not cases[n]]
    lines = [f"Tried: {sum(cases.values())} cases of {len(some)} properties, on all of which it is visible."]
    if none:
        lines.append(f"Not tried, since it is visible on none of {DRAWN} cases of theirs: {', '.join(none)}.")
    if reasons:
        lines.append("Not applicable: " + "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items()) + ".")
    return "\n".join(lines)


def words(fault: type[Fault], complaints: Sequence[str]) -> str:
    """The complaints as text."""
    parts = [_wrapped(complaint) for complaint in complaints]
    return "\n".join([f"{name_of(fault)}: not blessed", *parts])


def _where_it_differs(fault: type[Fault], cases: Sequence[Case]) -> str:
    looked = list(dict.fromkeys(cases))[:LOOKED_AT]
    case = _smallest(fault, looked, lambda case: bool(_differences(fault, case)))
    if case is None:
        return (
            f"On none of {len(looked)} random cases does anything differ from the clean attention: {', '.join(LOOKS)}. "
            "If that is as it should be, it is no fault but an `Equivalent`, and belongs in faults/equivalents.py."
        )
    return f"The smallest case found on which it differs from the clean attention: {case!r}. {_said(fault, case)}"


def _said(fault: type[Fault], case: Case) -> str:
    """What differs on the case."""
    raised = _raised(fault, case)
    if raised:
        return f"It raises {raised}."
    what = _differences(fault, case)
    chance = all("in training" in name for name in what) and case.dropout > 0
    hint = " It may only draw other weights to drop, which by itself is no mistake." if chance else ""
    return f"What differs: {', '.join(what)}.{hint}"


def _raised(fault: type[Fault], case: Case) -> str:
    try:
        layer, inputs = subject_of(fault).start(case)
        layer.run(inputs, False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _too_wide(fault: type[Fault], seen: Iterable[Case], asked: Sequence[Property]) -> str | None:
    """A case on which it is visible, and no property fails."""

    def unnoticed(case: Case) -> bool:
        return fault.visible(case) and _failing(fault, case, asked) is None

    odd = [case for case in seen if unnoticed(case)]
    case = _smallest(fault, odd, lambda case: fault.visible(case) and not _differences(fault, case) and unnoticed(case))
    if case is not None:
        return f"visible(case) is true where nothing differs from the clean attention, and no property fails: on {case!r}."
    case = _smallest(fault, odd, unnoticed)
    if case is not None:
        return f"visible(case) is true on {case!r}, and no property fails: a law is missing. {_said(fault, case)}"
    return None


def _too_narrow(fault: type[Fault], hidden: Iterable[Case], asked: Sequence[Property]) -> str | None:
    """A case on which it is not visible, and a property fails."""
    law = next((failing[0] for case in hidden if (failing := _failing(fault, case, asked))), None)
    if law is None:
        return None
    case = _smallest(fault, hidden, lambda case: not fault.visible(case) and _failing(fault, case, [law]) is not None)
    failing = None if case is None else _failing(fault, case, [law])
    return f"visible(case) is false where a property fails: {law.name}, on {case!r}: {failing[1]}" if failing else None


def _differences(fault: type[Fault], case: Case) -> tuple[str, ...]:
    return differences(subject_of(fault), subject(clean_class(fault)), case)


def _smallest(fault: type[Fault], cases: Iterable[Case], shows: Callable[[Case], bool]) -> Case | None:
    """The first of these cases that shows it, made as small as it goes."""
    first = next((case for case in cases if shows(case)), None)
    return None if first is None else shrunk(first, subject_of(fault).supports.fields(), shows)


def _failing(fault: type[Fault], case: Case, asked: Sequence[Property]) -> tuple[Property, str] | None:
    """The first of the properties that fails on the case, and its evidence."""
    subject_ = subject_of(fault)
    for property_ in asked:
        if property_.not_applicable(subject_) is None and property_.about(case, subject_):
            evidence = failure(property_, subject_, case)
            if evidence is not None:
                return property_, evidence
    return None


def _drawn(fault: type[Fault], seed: int) -> list[Case]:
    random, fields = Random(f"{seed} review"), subject_of(fault).supports.fields()
    return [sample(random, fields) for _ in range(ASKED)]


def _wrapped(text: str) -> str:
    lines = (textwrap.fill(line, 128, break_on_hyphens=False, break_long_words=False) for line in text.splitlines())
    return textwrap.indent("\n".join(lines), "  ")
