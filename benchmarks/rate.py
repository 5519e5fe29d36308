"""Cases a second of each property on the clean attention, Hypothesis included, on one core: `python benchmarks/rate.py`."""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from hypothesis import HealthCheck, settings

from faults.subject import subject
from properties import PROPERTIES, check


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    profile = settings(
        max_examples=options.examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    settings.register_profile("rate", profile)
    settings.load_profile("rate")
    clean = subject()
    rates = {}
    for property_ in PROPERTIES:
        if property_.not_applicable(clean) is None:
            start = time.perf_counter()
            check(property_, clean)
            rates[property_.name] = options.examples / (time.perf_counter() - start)
    for name, rate in sorted(rates.items(), key=lambda item: item[1]):
        print(f"{name:<52} {rate:6.0f} cases/s")
    print(f"median {statistics.median(rates.values()):.0f}, slowest {min(rates.values()):.0f}")


if __name__ == "__main__":
    main()
