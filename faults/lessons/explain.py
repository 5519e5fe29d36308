"""One fault as a lesson: the mistake, the code, the numbers, why it slips through, and the law that catches it."""

from __future__ import annotations

import inspect
import textwrap

from faults.fault import Equivalent, Fault, family_of, name_of, sections_of, step_of, summary_of
from faults.killers import known_killers
from faults.lessons.drawing import text
from faults.lessons.laws import broke_off, counterexample, raised, raises_where
from faults.lessons.missed import symptom, why_missed
from faults.lessons.sides import side_by_side
from faults.lessons.width import WIDTH
from faults.lessons.worked import worked
from faults.subject import clean_class
from properties.runner import Counterexample

FEW = 2  # laws: then not any one gets there


def explain(fault: type[Fault], width: int = WIDTH) -> str:
    """Return the lesson, as text of so many columns; the counterexample is found while you wait."""
    sections = sections_of(fault)
    title = f"{name_of(fault)}  ({family_of(fault)}; {fault.root_cause})"
    where = f"It replaces {step_of(fault)} of {clean_class(fault).__name__}."
    parts = [title, "=" * len(title), "", _fill(summary_of(fault), width), _fill(where, width)]
    if issubclass(fault, Equivalent):
        parts += _section("Why it is right", sections["Why it is right"], width)
        parts += _section("The code", side_by_side(fault, width))
        parts += _section("A worked example", text(worked(fault), ("clean", "another way"), width))
        parts += _section("The law that catches it", "None, and none should: no input tells it from the clean attention.", width)
        parts += _section("Seen in the wild", sections["Seen in the wild"])
        return "\n".join(parts)
    parts += _section("Why it is wrong", sections["Why it is wrong"], width)
    parts += _section("The code", side_by_side(fault, width))
    example = worked(fault)
    parts += _section("A worked example", text(example, width=width))
    found = counterexample(fault)
    where = raises_where(fault, example, found.evidence, found.property.name) if found else ""
    parts += _section("How you meet it", _met(sections, where), width)
    parts += _section("Why tests miss it", " ".join(why_missed(fault, example, where)), width)
    parts += _section("The law that catches it", _law(found, len(known_killers(fault)), width))
    parts += _section("Seen in the wild", sections["Seen in the wild"])
    return "\n".join(parts)


def _section(heading: str, body: str, width: int = 0) -> list[str]:
    """Filled to this width, if there is one."""
    return ["", heading, "-" * len(heading), "", _fill(body, width) if width else body]


def _met(sections: dict[str, str], where: str) -> str:
    """The symptom, when it shows, and how wrong it is."""
    severity = " ".join(sections.get("Severity", "").split())
    error = f" How wrong, as measured: {severity}" if severity else ""
    return f"{symptom(sections, where)} {sections['When it shows']}{error}"


def _law(found: Counterexample | None, killers: int, width: int) -> str:
    if found is None:
        return "No counterexample was found. That should not be."
    why = inspect.cleandoc(found.property.law.__doc__ or "").partition("\n")[2].strip()
    lines = [_fill(found.property.summary, width)]
    if broke_off(found.evidence):
        if killers > FEW:
            why = "it raises" if raised(found.evidence) else "what it returns is no result"
            lines = [_fill(f"Any law that gets there, since {why}; this was the first that was asked:", width), "", *lines]
    elif why:
        lines += ["", *(_fill(paragraph, width) for paragraph in why.split("\n\n"))]
    return "\n".join([*lines, "", f"Found just now, by {found.property.full_name}:", "", *_details(found)])


def _details(found: Counterexample) -> list[str]:
    """The case, the evidence, of what was raised only the first line, and how to see it again."""
    evidence = found.evidence.strip().splitlines()[0] if raised(found.evidence) else found.evidence
    again = (f"    {line}" for line in found.reproduction().splitlines())
    return [f"  on {found.case!r}", f"  {evidence}", "  to see it again:", *again]


def _fill(body: str, width: int) -> str:
    return "\n".join(textwrap.fill(" ".join(part.split()), width, break_on_hyphens=False) for part in body.split("\n\n"))
