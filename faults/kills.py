"""Does a property kill a fault? It is tried on random cases on which the fault can show."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from faults.fault import Fault, subject_of
from faults.killers import known_killers
from properties.case import Case
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import failure
from properties.subject import Subject

VISIBLE = 3  # visible cases a fault is tried on, for each property
DRAWN = 120  # cases drawn to find that many; a property may be about none on which the fault can show

# What others may be unable to hand in, and what they declare then.
LACKING: Mapping[str, Mapping[str, Any]] = {
    "its weights cannot be loaded": {"loads_weights": False},
    "it returns no weights": {"weights": False, "training_weights": False},
    "neither": {"loads_weights": False, "weights": False, "training_weights": False},
}


@dataclass(frozen=True)
class Kill:
    """A property that kills a fault, and on which case."""

    property: str
    cases: int  # visible cases of this property up to the kill, this one included
    case: Case
    evidence: str


def kills(
    fault: type[Fault],
    subject: Subject,
    seed: int = 0,
    properties: Iterable[Property] = PROPERTIES,
    visible: int = VISIBLE,
) -> tuple[Kill, ...]:
    """Try each property that applies to the fault, handed in as this subject, on so many visible cases."""
    return tuple(kill for property_ in properties if (kill := _kill(fault, subject, property_, seed, visible)))


def quick(fault: type[Fault]) -> tuple[Property, ...]:
    """The properties without those that are slow, unless they are known to kill it."""
    known = known_killers(fault)
    return tuple(p for p in PROPERTIES if not p.slow or p in known)


def unnoticed(fault: type[Fault], killers: Collection[str], seed: int = 0) -> tuple[str, ...]:
    """Return for which of LACKING no property kills the fault any more; those that kill it otherwise are asked first."""
    subject = subject_of(fault)
    asked = sorted(PROPERTIES, key=lambda property_: property_.name not in killers)
    lost = []
    for words, declared in LACKING.items():
        poorer = replace(subject, supports=replace(subject.supports, **declared))
        if not any(_kill(fault, poorer, property_, seed) for property_ in asked):
            lost.append(words)
    return tuple(lost)


def visible_cases(fault: type[Fault], subject: Subject, property_: Property, seed: int = 0) -> Iterator[Case]:
    """Of the cases drawn for a property, those on which the fault can show."""
    if property_.not_applicable(subject) is None:
        random = Random(f"{seed} {property_.name}")
        drawn = (property_.sample(random, subject) for _ in range(DRAWN))
        yield from (case for case in drawn if fault.visible(case))


def _kill(fault: type[Fault], subject: Subject, property_: Property, seed: int, visible: int = VISIBLE) -> Kill | None:
    cases = itertools.islice(visible_cases(fault, subject, property_, seed), visible)
    for number, case in enumerate(cases, 1):
        evidence = failure(property_, subject, case)
        if evidence is not None:
            return Kill(property_.name, number, case, evidence)
    return None
