"""What a campaign costs: `python benchmarks/campaign.py`, in minutes, on a machine that does nothing else.

- workers: the same cases by 1 process, 2, and a local dask cluster of two (with `distributed` installed), in turn, round after
  round; the rate from the first result to the last, so that the time in which processes start does not count;
- overhead: what handing out a unit and keeping its result costs, by units that do nothing;
- growth: with the number of faults, of properties, of tokens.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from faults import campaign as of_faults
from faults.catalog import catalog
from faults.subject import subject
from properties import PROPERTIES, Case, Property
from properties.campaign import Progress, Workers, asked, dask, processes, run
from properties.campaign.engine import Budget, carry_out
from properties.campaign.store import Store
from properties.campaign.unit import Alive, Job, Result, Rounds, Unit
from properties.runner import judge
from properties.time_limit import Patience

Scratch = Callable[[], Path]


@dataclass(frozen=True)
class Nothing:
    """Work that is none."""

    def __call__(self, alive: Alive) -> Result:
        return {"cases": 1}

    def differs(self) -> str:
        return ""

    def in_a_child(self) -> Result:
        raise NotImplementedError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of every comparison; medians are printed")
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], metavar="part", help=f"some of {', '.join(PARTS)}; default: all"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        numbers = iter(range(10**9))

        def scratch() -> Path:
            return Path(directory) / f"{next(numbers)}.db"

        for part in options.parts or PARTS:
            PARTS[part](scratch, options.rounds)


def workers(scratch: Scratch, rounds: int) -> None:
    """Cases a second of each kind of workers, and beside one process."""
    subjects = asked("faults.subject:SUBJECTS")
    chosen = {name: one for name, one in subjects.items() if one.dtype == "float64"}
    rates: dict[str, list[float]] = {}
    with kinds() as known:
        for _ in range(rounds):
            for name, by in known.items():
                told: list[tuple[float, int]] = []
                run(scratch(), chosen, seeds=(0, 20), only="mask", workers=by, tell=_note(told))
                (start, before), (end, after) = next(at for at in told if at[1]), told[-1]
                rates.setdefault(name, []).append((after - before) / (end - start))
    for name, of in rates.items():
        ratio = statistics.median(mine / one for mine, one in zip(of, rates["1 process"], strict=True))
        print(f"workers: {name}: {statistics.median(of):.0f} cases a second, {ratio:.2f} times one process", flush=True)


def overhead(scratch: Scratch, rounds: int) -> None:
    """Milliseconds a unit, of units that do nothing."""
    jobs = [Job(Unit("nothing", "", block), Nothing()) for block in range(1000)]
    with kinds() as known:
        for name, by in {"a thread of this process": Workers(lambda: ThreadPoolExecutor(1), 1), **known}.items():
            each = []
            for _ in range(rounds):
                told: list[tuple[float, int]] = []
                with Store(scratch(), {"kind": "nothing"}) as store:
                    carry_out(store, Rounds(lambda block: jobs, range(1)), by, Budget(), _note(told))
                (start, before), (end, after) = next(at for at in told if at[1]), told[-1]
                each.append((end - start) / (after - before))
            print(f"overhead: {name}: {1000 * statistics.median(each):.2f} ms a unit", flush=True)


def growth(scratch: Scratch, rounds: int) -> None:
    """Seconds for more and more faults, and for more and more properties; milliseconds a case for more and more tokens."""
    one = processes(1)
    names = list(catalog())
    for step in (8, 4, 2, 1):
        took = [of_faults.run(scratch(), names[::step], seeds=(0, 10), workers=one).seconds for _ in range(rounds)]
        print(f"growth: {len(names[::step])} faults: {statistics.median(took):.1f} s for 10 seeds", flush=True)
    attention = {
        name: one for name, one in asked("faults.subject:SUBJECTS").items() if name == "attn.MultiHeadAttention in float64"
    }
    quick = [law.name for law in PROPERTIES if not law.slow and not law.not_applicable(subject())]
    for step in (8, 4, 2, 1):
        left_out = {name: {law.name for law in PROPERTIES} - set(quick[::step]) for name in attention}
        took = [run(scratch(), attention, seeds=(0, 20), leave_out=left_out, workers=one).seconds for _ in range(rounds)]
        print(f"growth: {len(quick[::step])} properties: {statistics.median(took):.1f} s for 20 seeds", flush=True)
    for tokens in (4, 16, 64, 256):
        each = [_milliseconds(law, tokens, rounds) for law in PROPERTIES if law.name in quick]
        known = [milliseconds for milliseconds in each if milliseconds is not None]
        print(
            f"growth: {tokens} tokens: median {statistics.median(known):.2f} ms a case, mean {statistics.mean(known):.2f}",
            flush=True,
        )


def _milliseconds(law: Property, tokens: int, rounds: int) -> float | None:
    """Of one case of so many tokens; None if the law is about no such case."""
    clean, took = subject(), []
    for seed in range(rounds):
        case = Case(batch=2, queries=tokens, num_heads=2, d_head=4, mask="causal", seed=seed)
        if not law.about(case, clean):
            return None
        start = time.perf_counter()
        if judge(law, clean, case, Patience()) is not None:
            raise RuntimeError(f"{law.name} fails on {case!r}")
        took.append(time.perf_counter() - start)
    return 1000 * statistics.median(took)


def _note(told: list[tuple[float, int]]) -> Callable[[Progress], None]:
    return lambda progress: told.append((time.perf_counter(), progress.cases))


@contextmanager
def kinds() -> Iterator[dict[str, Workers]]:
    """The ways to do it."""
    known = {"1 process": processes(1), "2 processes": processes(2)}
    try:
        from distributed import LocalCluster
    except ImportError:
        yield known
        return
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        dask(cluster.scheduler_address) as two,
    ):
        yield {**known, "dask, 2 workers": two}


PARTS: dict[str, Callable[[Scratch, int], None]] = {"workers": workers, "overhead": overhead, "growth": growth}


if __name__ == "__main__":
    main()
