"""How soon each fault is killed, over many seeds: `python benchmarks/visibility.py --seeds 1000`.

Two questions a seed. Random cases are drawn until the fault is visible on one: does some property fail on that very case? And
each property is given cases of its own, as a test would give it: how many each until the first fails? Every fiftieth seed, a
case on which the fault is not visible is put to all properties: none may fail.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from random import Random

import torch

from faults.catalog import catalog
from faults.fault import subject_of
from properties.case import Case, sample
from properties.laws import PROPERTIES
from properties.runner import failure

WITHIN = 20


@dataclass
class Tally:
    """What came out for one fault."""

    name: str
    first: int = 0  # seeds on which the first visible case was killed
    cases: list[int] = field(default_factory=list)  # of each property, until the first kill; WITHIN + 1: none
    invisible: int = 0
    wrong: list[str] = field(default_factory=list)


def measure(name: str, seeds: int) -> Tally:
    fault = catalog()[name]
    subject = subject_of(fault)
    order = [p for p in PROPERTIES if p.not_applicable(subject) is None]
    tally, fields = Tally(name), subject.supports.fields()

    def killed_by(case: Case) -> str | None:
        """The property that fails, if any; it is asked first the next time."""
        for property_ in order:
            if property_.about(case, subject) and failure(property_, subject, case) is not None:
                order.remove(property_)
                order.insert(0, property_)
                return property_.name
        return None

    def cases_until_killed(seed: int) -> int:
        randoms = {p.name: Random(f"{seed} {p.name}") for p in order}
        for number in range(1, WITHIN + 1):
            for property_ in order:
                case = property_.sample(randoms[property_.name], subject)
                if fault.visible(case) and failure(property_, subject, case) is not None:
                    return number
        return WITHIN + 1

    for seed in range(seeds):
        random = Random(f"{seed} {name}")
        case = next(case for _ in iter(int, 1) if fault.visible(case := sample(random, fields)))
        if killed_by(case):
            tally.first += 1
        else:
            tally.wrong.append(f"visible and survived: {case!r}")
        tally.cases.append(cases_until_killed(seed))
        case = sample(random, fields)
        if seed % 50 == 0 and not fault.visible(case):
            tally.invisible += 1
            if law := killed_by(case):
                tally.wrong.append(f"not visible and killed by {law}: {case!r}")
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("names", nargs="*", help="faults; default: all")
    options = parser.parse_args()
    names = options.names or list(catalog())
    start = time.perf_counter()
    tallies = []
    context = multiprocessing.get_context("spawn")
    print(f"{'fault':<40} {'first visible case':>18}  {'cases until a kill: median':>26} {'most':>5}")
    with ProcessPoolExecutor(options.workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for tally in pool.map(partial(measure, seeds=options.seeds), names):
            tallies.append(tally)
            share, middle = tally.first / options.seeds, statistics.median(tally.cases)
            print(f"{tally.name:<40} {share:>18.2%}  {middle:>26.0f} {max(tally.cases):>5}", flush=True)
            for line in tally.wrong[:3]:
                print(f"    {line}")
    every = sum(tally.first == options.seeds for tally in tallies)
    within = [sum(n <= WITHIN for n in tally.cases) for tally in tallies]
    print(f"\n{len(names)} faults, {options.seeds} seeds, {time.perf_counter() - start:.0f} s")
    print(f"killed by the first visible case on every seed: {every} of {len(names)} faults; of all fault-seeds, ", end="")
    print(f"{sum(tally.first for tally in tallies) / len(names) / options.seeds:.3%}")
    print(
        f"killed within {WITHIN} cases of each property on every seed: {sum(n == options.seeds for n in within)} faults; ", end=""
    )
    print(f"of all fault-seeds, {sum(within) / len(names) / options.seeds:.3%}")
    print(f"invisible cases put to all properties: {sum(t.invisible for t in tallies)}; ", end="")
    print(f"`visible` wrong: {sum(len(t.wrong) for t in tallies)}")


if __name__ == "__main__":
    main()
