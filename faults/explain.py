"""One fault as a page of text: what it is, the step beside the clean one, and a counterexample found while you wait."""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Callable

from faults.catalog import equivalents
from faults.fault import Fault, family_of, name_of, sections_of, step_of, subject_of
from faults.subject import clean_class
from properties.laws import PROPERTIES
from properties.runner import Counterexample, falsify


def explain(fault: type[Fault]) -> str:
    """Return the entry, the diff against the clean step, and the smallest counterexample of the first property that finds one."""
    name = name_of(fault)
    title = f"{name}  ({family_of(fault)}; {fault.root_cause})"
    parts = [
        title,
        "=" * len(title),
        "",
        inspect.cleandoc(fault.__doc__ or ""),
        "",
        f"The step, {step_of(fault)}:",
        "",
        diff(fault),
    ]
    if name in equivalents():
        return "\n".join([*parts, "", "No property fails on it, and none should."])
    found = counterexample(fault)
    return "\n".join([*parts, "", "Found just now:", "", str(found) if found else "no counterexample. That should not be."])


def diff(fault: type[Fault]) -> str:
    """The fault's step against the clean one, without their docstrings."""
    step = step_of(fault)
    clean, broken = (_source(getattr(owner, step)) for owner in (clean_class(fault), fault))
    lines = difflib.unified_diff(clean, broken, n=100, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def counterexample(fault: type[Fault]) -> Counterexample | None:
    """Search with one killer after the other, those first that say best what is wrong."""
    subject = subject_of(fault)
    killers = sections_of(fault).get("Killed by", "")
    known = [p for p in PROPERTIES if not killers or p.name in killers or f"{p.family}: all" in killers]
    for property_ in sorted(known, key=lambda p: _LAST.index(p.family) if p.family in _LAST else -1):
        if property_.not_applicable(subject) is None and (found := falsify(property_, subject, max_examples=60)):
            return found
    return None


# The formula says that the numbers are wrong, but not why; of those behind it even less can be read.
_LAST = ("reference", "training", "tools", "derivatives", "modes", "dropout", "graphs", "precision")


def _source(step: Callable[..., object]) -> list[str]:
    lines = [re.sub(r"  # type: ignore.*$", "", line) for line in textwrap.dedent(inspect.getsource(step)).splitlines()]
    if step.__doc__:
        first, last = (i for i, line in enumerate(lines) for _ in range(line.count('"""')))
        del lines[first : last + 1]
    return lines
