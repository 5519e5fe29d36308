"""The kill matrix: every fault against every property, on the same random cases."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeVar

import torch

from faults.catalog import catalog, equivalents, find
from faults.fault import Fault, family_of, name_of, step_of, subject_of
from faults.kills import DRAWN, Kill, kills, quick, unnoticed
from faults.severity import Severity, severity, showing
from faults.subject import DECLARED, subject
from properties.case import Case, sample
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import failure
from properties.subject import Subject

CLEAN = 2  # cases of each property that must hold on what is correct
GLANCE = 6  # cases on which a glance looks at the symptom


@dataclass(frozen=True)
class Row:
    """What was measured of one fault, or of something correct."""

    name: str
    family: str
    step: str
    root_cause: str
    symptom: str  # silent, loud (it raises), or either
    cases: int | None  # random cases drawn up to the first that a property fails on; None: none of DRAWN
    kills: tuple[Kill, ...]
    first: tuple[str, ...] = ()  # the properties that fail on that case
    unnoticed: tuple[str, ...] = ()  # for which of LACKING nothing kills it
    severity: Severity | None = None

    @property
    def survived(self) -> bool:
        """Of a fault: does no property kill it, or none on any case that was drawn from all?"""
        return not self.kills or self.cases is None


Done = TypeVar("Done")
Look = Callable[[type[Fault], int], Row]


def measure(fault: type[Fault], seed: int = 0) -> Row:
    """Try the fault against every property, each on its first visible cases until it fails."""
    killed = kills(fault, subject_of(fault), seed)
    killers = {kill.property for kill in killed}
    cases = showing(fault, seed)
    drawn, first = _first(fault, killers, seed)
    return Row(
        name=name_of(fault),
        family=family_of(fault),
        step=step_of(fault),
        root_cause=fault.root_cause,
        symptom=symptom(fault, cases),
        cases=drawn,
        kills=killed,
        first=first,
        unnoticed=unnoticed(fault, killers, seed),
        severity=severity(fault, cases),
    )


def glance(fault: type[Fault], seed: int = 0) -> Row:
    """The same, each property on the first visible case alone, and the slow ones only where they are known to kill."""
    asked = quick(fault)
    killed = kills(fault, subject_of(fault), seed, asked, visible=1)
    cases = showing(fault, seed)[:GLANCE]
    drawn, first = _first(fault, {kill.property for kill in killed}, seed, asked)
    return Row(
        name=name_of(fault),
        family=family_of(fault),
        step=step_of(fault),
        root_cause=fault.root_cause,
        symptom=symptom(fault, cases),
        cases=drawn,
        kills=killed,
        first=first,
        severity=severity(fault, cases),
    )


def check_correct(
    subject_: Subject, seed: int = 0, cases: int = CLEAN, properties: Sequence[Property] = PROPERTIES
) -> tuple[Kill, ...]:
    """Return the properties that fail on a subject that is correct: there should be none."""
    kills = []
    for property_ in properties:
        if property_.not_applicable(subject_):
            continue
        random = Random(f"{seed} {property_.name}")
        for number in range(1, cases + 1):
            case = property_.sample(random, subject_)
            evidence = failure(property_, subject_, case)
            if evidence is not None:
                kills.append(Kill(property_.name, number, case, evidence))
                break
    return tuple(kills)


def symptom(fault: type[Fault], cases: list[Case]) -> str:
    """What is met on these cases, on which it shows: "loud" if calling it raises, "silent" if it returns, "either"."""
    subject_ = subject_of(fault)
    raised = [_raises(subject_, case) for case in cases]
    return "loud" if all(raised) else "either" if any(raised) else "silent"


def rows(names: list[str], seed: int = 0, workers: int | None = None, look: Look = measure) -> Iterator[Row]:
    """Measure these entries, or glance at them, several at once; in the order of the names."""
    return spread(partial(_row, seed=seed, look=look), names, workers)


def spread(work: Callable[[str], Done], names: list[str], workers: int | None = None) -> Iterator[Done]:
    """Do this for every name, several at once; in the order of the names."""
    workers = workers or os.cpu_count() or 1
    if workers == 1:
        yield from map(work, names)
        return
    # A forked worker has torch and Hypothesis loaded already. It must not inherit torch's threads: one thread each.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context(method), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        yield from pool.map(work, names)


CLEAN_CLASSES = {f"attn.{attention.__name__}": attention for attention in DECLARED}


def all_names() -> list[str]:
    """Everything there is to measure: the clean attention, the equivalents, the faults."""
    return [*CLEAN_CLASSES, *equivalents(), *catalog()]


def _row(name: str, seed: int, look: Look) -> Row:
    if name in CLEAN_CLASSES:
        return Row(name, "attn", "", "", "correct", None, check_correct(subject(CLEAN_CLASSES[name]), seed))
    fault = find(name)
    if name in equivalents():
        kills = check_correct(subject_of(fault), seed, properties=quick(fault))
        return Row(name, family_of(fault), step_of(fault), fault.root_cause, "correct", None, kills)
    return look(fault, seed)


def _first(
    fault: type[Fault], killers: set[str], seed: int, properties: Sequence[Property] = PROPERTIES
) -> tuple[int | None, tuple[str, ...]]:
    """How many random cases until one is killed, and which of the killers fail on that one, all asked on the same.

    A case survives only if all properties hold, those that killed nothing before among them.
    """
    subject_ = subject_of(fault)
    groups = [[p for p in properties if (p.name in killers) == known] for known in (True, False)]
    random = Random(f"{seed} first {name_of(fault)}")  # its own: the same few cases for all faults would favour those about them
    for number in range(1, DRAWN + 1):
        case = sample(random, subject_.supports.fields())
        if not fault.visible(case):
            continue  # where it cannot show no property fails: `tests/test_catalog.py` holds every entry to that
        for group in groups:
            failing = [p.name for p in group if p.about(case, subject_) and failure(p, subject_, case) is not None]
            if failing:
                return number, tuple(failing)
    return None, ()


def _raises(subject_: Subject, case: Case) -> bool:
    for dtype in ("float64", case.dtype):
        wanted = replace(subject_, supports=replace(subject_.supports, dtypes=(dtype,)))
        try:
            layer, inputs = wanted.start(case)
            for training in (False, True):
                layer.run(inputs, training)
        except Exception:
            return True
    return False
