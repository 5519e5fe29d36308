"""One fault as a lesson: the mistake, the code, the numbers, why it slips through, and the law that catches it."""

from __future__ import annotations

import inspect
import textwrap

from faults.fault import Equivalent, Fault, family_of, name_of, sections_of, step_of, subject_of, summary_of
from faults.killers import known_killers, telling_first
from faults.lessons.drawing import text
from faults.lessons.missed import why_missed
from faults.lessons.sides import side_by_side
from faults.lessons.worked import worked
from faults.subject import clean_class
from properties.laws import PROPERTIES
from properties.runner import Counterexample, falsify

WIDTH = 100


def explain(fault: type[Fault]) -> str:
    """Return the lesson, as text of `WIDTH` columns; the counterexample is found while you wait."""
    sections = sections_of(fault)
    title = f"{name_of(fault)}  ({family_of(fault)}; {fault.root_cause})"
    where = f"It replaces {step_of(fault)} of {clean_class(fault).__name__}."
    parts = [title, "=" * len(title), "", _fill(summary_of(fault)), _fill(where)]
    if issubclass(fault, Equivalent):
        parts += _section("Why it is right", sections["Why it is right"])
        parts += _section("The code", side_by_side(fault), filled=False)
        parts += _section("A worked example", text(worked(fault), ("clean", "another way")), filled=False)
        parts += _section("The law that catches it", "None, and none should: no input tells it from the clean attention.")
        parts += _section("Seen in the wild", sections["Seen in the wild"], filled=False)
        return "\n".join(parts)
    parts += _section("Why it is wrong", sections["Why it is wrong"])
    parts += _section("The code", side_by_side(fault), filled=False)
    parts += _section("A worked example", text(worked(fault)), filled=False)
    parts += _section("How you meet it", _met(sections))
    parts += _section("Why tests miss it", " ".join(why_missed(fault)))
    parts += _section("The law that catches it", _law(fault), filled=False)
    parts += _section("Seen in the wild", sections["Seen in the wild"], filled=False)
    return "\n".join(parts)


def counterexample(fault: type[Fault]) -> Counterexample | None:
    """Search with one killer after the other, those first that say best what is wrong."""
    subject = subject_of(fault)
    for property_ in telling_first(known_killers(fault) or PROPERTIES):
        if property_.not_applicable(subject) is None and (found := falsify(property_, subject, max_examples=60)):
            return found
    return None


def _section(heading: str, body: str, filled: bool = True) -> list[str]:
    return ["", heading, "-" * len(heading), "", _fill(body) if filled else body]


def _met(sections: dict[str, str]) -> str:
    """The symptom, when it shows, and how wrong it is."""
    severity = " ".join(sections.get("Severity", "").split())
    error = f" How wrong, as measured: {severity}" if severity else ""
    return f"{sections.get('Symptom', '')} {sections['When it shows']}{error}"


def _law(fault: type[Fault]) -> str:
    found = counterexample(fault)
    if found is None:
        return "No counterexample was found. That should not be."
    why = inspect.cleandoc(found.property.law.__doc__ or "").partition("\n")[2].strip()
    lines = [_fill(found.property.summary)]
    if found.evidence.startswith("it raised"):
        lines = [_fill("Any law that gets there, since it raises; this was the first that was asked:"), "", *lines]
    elif why:
        lines += ["", *(_fill(paragraph) for paragraph in why.split("\n\n"))]
    return "\n".join([*lines, "", f"Found just now, by {found.property.full_name}:", "", *found.details()])


def _fill(body: str) -> str:
    return "\n".join(textwrap.fill(" ".join(part.split()), WIDTH, break_on_hyphens=False) for part in body.split("\n\n"))
