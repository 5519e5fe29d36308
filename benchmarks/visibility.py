"""How soon each fault is killed, over many seeds, and whether `visible` is exact: `python benchmarks/visibility.py --seeds 1000`.

For each seed, random cases are drawn until the fault is visible on one; that case is put to all properties, and the drawing goes
on until a case is killed, 20 cases at most. Every invisible case on the way is put to all properties too: none may fail.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random

import torch

from faults.catalog import catalog
from faults.fault import subject_of
from properties.case import Case, sample
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import failure

WITHIN = 20


def fails(order: list[Property], subject: object, case: Case) -> bool:
    """Does any property fail on the case? The one that does is asked first next time."""
    for property_ in order:
        if property_.about(case, subject) and failure(property_, subject, case) is not None:  # type: ignore[arg-type]
            order.remove(property_)
            order.insert(0, property_)
            return True
    return False


def measure(name: str, seeds: int) -> tuple[str, int, int, int, list[str]]:
    """Name, seeds killed by the first visible case, by the first WITHIN cases, invisible cases run, and what went wrong."""
    fault = catalog()[name]
    subject = subject_of(fault)
    order = [p for p in PROPERTIES if p.not_applicable(subject) is None]
    first = within = invisible = 0
    wrong: list[str] = []
    for seed in range(seeds):
        random = Random(f"{seed} {name}")
        drawn, killed, seen = 0, False, False
        while not killed and (drawn < WITHIN or not seen):
            case = sample(random)
            drawn += 1
            if fault.visible(case):
                killed = fails(order, subject, case)
                first += killed and not seen
                seen = True
                if not killed:
                    wrong.append(f"visible and survived: {case!r}")
            elif drawn <= 2:  # as many as there is time for; each must hold
                invisible += 1
                if fails(order, subject, case):
                    wrong.append(f"not visible and killed: {case!r}")
        within += killed and drawn <= WITHIN
    return name, first, within, invisible, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("names", nargs="*", help="faults; default: all")
    options = parser.parse_args()
    names = options.names or list(catalog())
    start = time.perf_counter()
    totals = [0, 0, 0, 0]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for name, first, within, invisible, wrong in pool.map(partial(measure, seeds=options.seeds), names):
            print(f"{name:<40} first {first / options.seeds:8.3%}  within {WITHIN} {within / options.seeds:8.3%}", flush=True)
            for line in wrong[:3]:
                print(f"    {line}")
            totals = [a + b for a, b in zip(totals, (first, within, invisible, len(wrong)), strict=True)]
    runs = len(names) * options.seeds
    print(f"{len(names)} faults, {options.seeds} seeds, {time.perf_counter() - start:.0f} s:")
    print(f"killed by the first visible case: {totals[0] / runs:.3%}; within {WITHIN} cases: {totals[1] / runs:.3%};")
    print(f"{totals[2]} invisible cases put to all properties; {totals[3]} cases on which `visible` was wrong")


if __name__ == "__main__":
    main()
