"""Everything that the matrix page shows, as plain data: measured rows, laws, lessons, and what they come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from faults.catalog import find
from faults.coverage import killers_of, smallest_set
from faults.fault import subject_of
from faults.kills import DRAWN, VISIBLE
from faults.matrix import Look, Row, measure, rows, spread
from faults.pages.lesson import Lesson, lesson, plain, tidy
from faults.severity import words
from properties.laws import PROPERTIES


@dataclass(frozen=True)
class Entry:
    """A row of the matrix, and the lesson of its fault; something correct has none."""

    row: Row
    lesson: Lesson | None


def entries(names: list[str], seed: int = 0, workers: int | None = None, look: Look = measure) -> Iterator[Entry]:
    """Measure these entries and write the lessons of the faults among them, several at once; in the order of the names."""
    return spread(partial(entry, seed=seed, look=look), names, workers)


def entry(name: str, seed: int = 0, look: Look = measure) -> Entry:
    """One of them."""
    (row,) = rows([name], seed, 1, look)
    return Entry(row, None if row.symptom == "correct" else lesson(find(name), row))


def facts(found: Sequence[Entry], seed: int = 0) -> dict[str, Any]:
    """What the page is told. Properties are referred to by their number."""
    correct = [entry_.row for entry_ in found if entry_.lesson is None]
    faulty = [(entry_.row, entry_.lesson) for entry_ in found if entry_.lesson is not None]
    measured = [row for row, _ in faulty]
    reasons: dict[str, int] = {}
    numbers = {property_.name: number for number, property_ in enumerate(PROPERTIES)}
    return {
        "seed": seed,
        "tried": VISIBLE,
        "drawn": DRAWN,
        "numbers": _numbers(measured, correct),
        "smallest": [numbers[name] for name in smallest_set(killers_of(measured), list(numbers))],
        "properties": [
            {"name": p.name, "family": p.family, "law": (p.law.__doc__ or "").strip().split("\n\n")} for p in PROPERTIES
        ],
        "faults": [_fault(row, told, numbers, reasons) for row, told in faulty],
        "reasons": list(reasons),  # after the faults: they fill it
    }


def _numbers(measured: list[Row], correct: list[Row]) -> dict[str, Any]:
    drawn = [row.cases for row in measured if row.cases is not None]
    return {
        "faults": len(measured),
        "killed": sum(bool(row.kills) for row in measured),
        "silent": sum(row.symptom == "silent" for row in measured),
        "properties": len(PROPERTIES),
        "at_once": sum(number == 1 for number in drawn),
        "drawn": median(drawn) if drawn else None,
        "alone": sum(len(row.kills) == 1 for row in measured),
        "correct": len(correct),
        "flagged": [row.name for row in correct if row.kills],
    }


def _fault(row: Row, told: Lesson, numbers: dict[str, int], reasons: dict[str, int]) -> dict[str, Any]:
    subject = subject_of(find(row.name))
    why_not = {number: reason for number, p in enumerate(PROPERTIES) if (reason := p.not_applicable(subject)) is not None}
    return {
        "name": row.name,
        "family": row.family,
        "step": row.step,
        "root_cause": row.root_cause,
        "symptom": row.symptom,
        "severity": words(row.severity) if row.severity else "",
        "drawn": row.cases,
        "first": [numbers[name] for name in row.first],
        "kills": {numbers[kill.property]: [kill.cases, repr(kill.case), tidy(kill.evidence)] for kill in row.kills},
        "not_applicable": {number: reasons.setdefault(reason, len(reasons)) for number, reason in why_not.items()},
        "unnoticed": list(row.unnoticed),
        "lesson": plain(told),
    }
