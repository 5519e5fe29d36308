"""Is `visible` exact? `python benchmarks/visibility.py --seeds 1000`.

For each fault and seed, random cases are drawn until the fault is visible on one: does some property fail on that very case?
Every fiftieth seed, a case on which the fault is not visible is put to all properties: none may fail.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
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


@dataclass
class Tally:
    """What came out for one fault."""

    name: str
    first: int = 0  # seeds on which the first visible case was killed
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

    for seed in range(seeds):
        random = Random(f"{seed} {name}")
        case = next(case for _ in iter(int, 1) if fault.visible(case := sample(random, fields)))
        if killed_by(case):
            tally.first += 1
        else:
            tally.wrong.append(f"visible and survived: {case!r}")
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
    print(f"{'fault':<40} {'first visible case':>18}")
    with ProcessPoolExecutor(options.workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for tally in pool.map(partial(measure, seeds=options.seeds), names):
            tallies.append(tally)
            print(f"{tally.name:<40} {tally.first / options.seeds:>18.2%}", flush=True)
            for line in tally.wrong[:3]:
                print(f"    {line}")
    every = sum(tally.first == options.seeds for tally in tallies)
    print(f"\n{len(names)} faults, {options.seeds} seeds, {time.perf_counter() - start:.0f} s")
    print(f"killed by the first visible case on every seed: {every} of {len(names)} faults; of all fault-seeds, ", end="")
    print(f"{sum(tally.first for tally in tallies) / len(names) / options.seeds:.3%}")
    print(f"invisible cases put to all properties: {sum(t.invisible for t in tallies)}; ", end="")
    print(f"`visible` wrong: {sum(len(t.wrong) for t in tallies)}")


if __name__ == "__main__":
    main()
