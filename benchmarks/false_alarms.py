"""How often a property fails on an attention that is correct: `python benchmarks/false_alarms.py --cases 100000`.

It should be never. The cases are shared out evenly among the properties that apply to each subject.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from random import Random

import torch

from faults.subject import subject
from properties.adapters.pytorch import multihead_attention, scaled_dot_product_attention
from properties.laws import PROPERTIES
from properties.runner import failure

SUBJECTS = {s().name: s for s in (subject, multihead_attention, scaled_dot_product_attention)}


def run(job: tuple[str, str, int, int]) -> tuple[str, int, list[str]]:
    """Name of the subject, cases run of one property, and the failures among them."""
    name, law, seed, cases = job
    subject_ = SUBJECTS[name]()
    property_ = next(p for p in PROPERTIES if p.name == law)
    random = Random(f"{seed} {law}")
    failures = []
    for _ in range(cases):
        case = property_.sample(random, subject_)
        evidence = failure(property_, subject_, case)
        if evidence is not None:
            failures.append(f"{name}: {law} on {case!r}: {evidence}")
    return name, cases, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000, help="of each subject")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for name, make in SUBJECTS.items():
            laws = [p.name for p in PROPERTIES if p.not_applicable(make()) is None]
            each = -(-options.cases // len(laws))
            total, failures = 0, []
            for _, cases, failed in pool.map(run, [(name, law, options.seed, each) for law in laws]):
                total += cases
                failures += failed
            seconds = time.perf_counter() - start
            print(f"{name}: {len(laws)} properties, {total} cases, {len(failures)} false alarms ({seconds:.0f} s)")
            for line in failures[:10]:
                print(f"    {line}", flush=True)


if __name__ == "__main__":
    main()
