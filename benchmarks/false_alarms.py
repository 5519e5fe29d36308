"""How often a property fails on an attention that is correct, which should be never: `python benchmarks/false_alarms.py`.

Subjects are the clean classes and the adapters that are named (`pytorch` alone by default; `all` for those of every package, in
the environment `wild`). Each is asked in every dtype that it declares, as if it had no wider one. The cases are shared out evenly
among subjects, dtypes and the properties that apply. What is known to fail, and explained in `tests/wild/findings`, is left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from faults.subject import DECLARED, subject
from properties.adapters import ADAPTERS, shipped
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import failure
from properties.subject import Subject

CLEAN = "attn"
FINDINGS = Path(__file__).parents[1] / "tests" / "wild" / "findings"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000, help="altogether")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "adapters", nargs="*", default=[CLEAN, "pytorch"], metavar="adapter", help=f"{CLEAN}, {', '.join(ADAPTERS)}, or all"
    )
    options = parser.parse_args()
    adapters = [CLEAN, *ADAPTERS] if options.adapters == ["all"] else options.adapters
    start, jobs = time.perf_counter(), []
    for adapter in adapters:
        for number, made in enumerate(_subjects(adapter)):
            refused = {dtype for finding in _findings(made.name) for dtype in finding.get("dtypes", ())}
            jobs += [(adapter, number, dtype) for dtype in made.supports.dtypes if dtype not in refused]
    laws = sum(len(_laws(_subject(*job))) for job in jobs)
    each = -(-options.cases // laws)
    total, alarms = 0, 0
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        for name, dtype, cases, failures in pool.map(_run, *zip(*[(*job, options.seed, each) for job in jobs], strict=True)):
            total, alarms = total + cases, alarms + len(failures)
            print(f"{name}, {dtype}: {cases} cases, {len(failures)} failures", *failures[:5], sep="\n    ", flush=True)
    print(f"{len(jobs)} subjects and dtypes, {total} cases, {alarms} false alarms ({time.perf_counter() - start:.0f} s)")


def _subjects(adapter: str) -> Iterator[Subject]:
    if adapter == CLEAN:
        yield from map(subject, DECLARED)
    else:
        yield from shipped(adapter)


def _subject(adapter: str, number: int, dtype: str) -> Subject:
    """The subject, declared to have this dtype and no other."""
    made = list(_subjects(adapter))[number]
    floors = {name: floor for name, floor in made.supports.floors.items() if name == dtype}
    return replace(made, supports=replace(made.supports, dtypes=(dtype,), floors=floors))


def _laws(made: Subject) -> list[Property]:
    broken = {law for finding in _findings(made.name) for law in finding["breaks"][made.name]}
    return [law for law in PROPERTIES if not law.not_applicable(made) and law.name not in broken]


def _findings(name: str) -> list[dict[str, Any]]:
    """What is known of this subject."""
    found = [entry for path in FINDINGS.glob("*.toml") for entry in tomllib.loads(path.read_text(encoding="utf-8"))["finding"]]
    return [entry for entry in found if name in entry["breaks"]]


def _run(adapter: str, number: int, dtype: str, seed: int, each: int) -> tuple[str, str, int, list[str]]:
    torch.set_num_threads(1)
    made = _subject(adapter, number, dtype)
    cases, failures = 0, []
    for law in _laws(made):
        random = Random(f"{seed} {law.name}")
        for _ in range(each):
            case = law.sample(random, made)
            cases += 1
            if evidence := failure(law, made, case):
                failures.append(f"{law.name} on {case!r}: {evidence}")
    return made.name, dtype, cases, failures


if __name__ == "__main__":
    main()
