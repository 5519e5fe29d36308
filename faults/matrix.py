"""The kill matrix: every fault against every property, on the same random cases."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import torch

from faults.catalog import catalog, equivalents, find
from faults.fault import Fault, family_of, step_of, subject_of
from faults.subject import DECLARED, subject
from properties.case import Case, sample
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import failure
from properties.subject import Subject

VISIBLE = 4  # visible cases a fault is tried on, for each property
DRAWN = 120  # cases drawn to find that many; a property may be about none on which the fault can show
CLEAN = 5  # cases of each property that must hold on what is correct


@dataclass(frozen=True)
class Kill:
    """A property that kills a fault, and on which case."""

    property: str
    cases: int  # visible cases of this property up to the kill, this one included
    case: Case
    evidence: str


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


def measure(fault: type[Fault], seed: int = 0) -> Row:
    """Try the fault against every property, each on its first visible cases until it fails."""
    subject_ = subject_of(fault)
    killed = kills(fault, subject_, seed)
    first = _first(fault, killed, seed)
    return Row(subject_.name, family_of(fault), step_of(fault), fault.root_cause, symptom(fault, seed), first, killed)


def kills(fault: type[Fault], subject_: Subject, seed: int = 0) -> tuple[Kill, ...]:
    """Try each property that applies to the fault, handed in as this subject."""
    return tuple(kill for property_ in PROPERTIES if (kill := _kill(fault, subject_, property_, seed)))


def check_correct(subject_: Subject, seed: int = 0, cases: int = CLEAN) -> tuple[Kill, ...]:
    """Return the properties that fail on a subject that is correct: there should be none."""
    kills = []
    for property_ in PROPERTIES:
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


def symptom(fault: type[Fault], seed: int = 0) -> str:
    """What is met where the fault shows: "loud" if calling it raises, "silent" if it returns, "either" if that depends."""
    random = Random(f"{seed} symptom")
    subject_ = subject_of(fault)
    raised = []
    for _ in range(40 * VISIBLE):
        case = sample(random, subject_.supports.fields())
        if fault.visible(case):
            raised.append(_raises(subject_, case))
        if len(raised) == 4 * VISIBLE:
            break
    return "loud" if all(raised) else "either" if any(raised) else "silent"


def rows(names: list[str], seed: int = 0, workers: int | None = None) -> Iterator[Row]:
    """Measure these entries, several at once; in the order of the names. Equivalents must survive, faults must not."""
    workers = workers or os.cpu_count() or 1
    if workers == 1:
        yield from (_row(name, seed=seed) for name in names)
        return
    # A forked worker has torch and Hypothesis loaded already. It must not inherit torch's threads: one thread each.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context(method), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        yield from pool.map(partial(_row, seed=seed), names)


CLEAN_CLASSES = {f"attn.{attention.__name__}": attention for attention in DECLARED}


def all_names() -> list[str]:
    """Everything there is to measure: the clean attention, the equivalents, the faults."""
    return [*CLEAN_CLASSES, *equivalents(), *catalog()]


def _row(name: str, seed: int) -> Row:
    if name in CLEAN_CLASSES:
        return Row(name, "attn", "", "", "correct", None, check_correct(subject(CLEAN_CLASSES[name]), seed))
    fault = find(name)
    if name in equivalents():
        kills = check_correct(subject_of(fault), seed)
        return Row(name, family_of(fault), step_of(fault), fault.root_cause, "correct", None, kills)
    return measure(fault, seed)


def _kill(fault: type[Fault], subject_: Subject, property_: Property, seed: int) -> Kill | None:
    if property_.not_applicable(subject_):
        return None
    random = Random(f"{seed} {property_.name}")
    seen = 0
    for _ in range(DRAWN):
        case = property_.sample(random, subject_)
        if not fault.visible(case):
            continue
        seen += 1
        evidence = failure(property_, subject_, case)
        if evidence is not None:
            return Kill(property_.name, seen, case, evidence)
        if seen == VISIBLE:
            return None
    return None


def _first(fault: type[Fault], kills: tuple[Kill, ...], seed: int) -> int | None:
    """How many random cases until one is killed. Killers are asked first, but a case survives only if all properties hold."""
    subject_ = subject_of(fault)
    killers = {kill.property for kill in kills}
    order = sorted(PROPERTIES, key=lambda property_: property_.name not in killers)
    random = Random(f"{seed} first")
    for number in range(1, DRAWN + 1):
        case = sample(random, subject_.supports.fields())
        # Where the fault cannot show no property fails: `tests/test_catalog.py` holds every entry to that.
        if fault.visible(case) and any(p.about(case, subject_) and failure(p, subject_, case) is not None for p in order):
            return number
    return None


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
