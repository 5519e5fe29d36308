"""The law that catches a fault, on a case that says something: by what it computes there, not by raising on the way."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from faults.fault import Fault, sections_of, subject_of
from faults.killers import known_killers, telling_first
from faults.lessons.worked import Worked
from properties.case import Case
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import Counterexample, falsify
from properties.subject import Subject

EXAMPLES = 60  # cases that a law is tried on
TRIED = 6  # laws that are tried for a case on which nothing is raised, besides the formula

# Where a law that is not about an ordinary call goes, in words that stand behind "it raises".
_WHERE = {
    "checkpointing_changes_nothing": "under checkpointing",
    "autocast_rounds_and_no_more": "under autocast",
    "a_copy_stands_alone": "in a copy",
    "a_saved_layer_comes_back": "when it is loaded",
    "vmap_is_a_loop": "under vmap",
}


def counterexample(fault: type[Fault]) -> Counterexample | None:
    """Search with one killer after the other, those first that say best what is wrong; one on which it returns, if there is."""
    subject = subject_of(fault)
    known = [p for p in telling_first(known_killers(fault) or PROPERTIES) if p.not_applicable(subject) is None]
    first = next((found for p in known if (found := falsify(p, subject, max_examples=EXAMPLES))), None)
    if first is None or not broke_off(first.evidence) or sections_of(fault).get("Symptom", "").startswith("Loud"):
        return first
    tried = [*known[:TRIED], *(p for p in known[TRIED:] if p.family == "reference")]
    return next((found for p in tried if (found := _returning(p, subject))), first)


def raised(evidence: str) -> bool:
    """Did it raise, by this evidence?"""
    return " raised " in evidence


def broke_off(evidence: str) -> bool:
    """Did it raise, or return what is no attention output at all, before the law could say anything?"""
    return raised(evidence) or evidence.startswith(("its output ", "its weights "))


def raises_where(fault: type[Fault], example: Worked | None, evidence: str, law: str) -> str:
    """Of a fault on which an ordinary call does not raise: where it does, as the example or the law has shown; or nothing."""
    if not sections_of(fault).get("Symptom", "").startswith("Silent"):
        return ""
    if example is not None and example.raised:
        return example.where or "where the example shows it"
    return _WHERE.get(law, "where the law below looks") if raised(evidence) else ""


def _returning(property_: Property, subject: Subject) -> Counterexample | None:
    """A counterexample to the law on which nothing is raised."""
    found = falsify(replace(property_, law=_without_raising(property_.law)), subject, max_examples=EXAMPLES)
    return None if found is None else replace(found, property=property_)


def _without_raising(law: Callable[[Subject, Case], None]) -> Callable[[Subject, Case], None]:
    @functools.wraps(law)
    def returning(subject: Subject, case: Case) -> None:
        try:
            law(subject, case)
        except AssertionError as error:
            if not broke_off(str(error)):
                raise
        except Exception:
            return

    return returning
