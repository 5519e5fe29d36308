"""Is a mistake recognised that was written in another style? Diagnose every one in `tests/styles`, and their correct ones.

    python benchmarks/diagnosis.py [NAME ...] [--workers N] [--cases N]

The first answer is right if it names the fault, alone or among others that no case told apart from it.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.diagnosis import Diagnosis, diagnose  # noqa: E402
from faults.matrix import spread  # noqa: E402
from tests.styles.edited import broken, clean, styles, written_for  # noqa: E402


@dataclass(frozen=True)
class Trial:
    """What was answered to one mistake."""

    style: str
    fault: str  # "": none, the style as it is
    verdict: str
    rank: int | None  # of the right answer; None: it is not among them
    answers: tuple[str, ...]
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="faults, or styles; default: all")
    parser.add_argument("--cases", type=int, default=25)
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = set(options.names)
    written = [f"{style} {fault}" for style, faults in styles().items() for fault in ("", *faults)]
    wanted = [work for work in written if not chosen or chosen & set(work.split(" "))]
    trials = []
    for trial in spread(partial(_try, cases=options.cases), wanted, options.workers):
        trials.append(trial)
        right = trial.verdict == "correct" if not trial.fault else trial.rank == 1
        print(
            f"{'' if right else 'MISSED '}{trial.style} {trial.fault or '(correct)'}: {trial.verdict}, rank {trial.rank}, "
            f"{'; '.join(trial.answers[:3])}  ({trial.seconds:.0f} s)",
            flush=True,
        )
    mistakes, correct = [t for t in trials if t.fault], [t for t in trials if not t.fault]
    number = len(mistakes)
    ranks = [trial.rank for trial in mistakes]
    first, three = sum(rank == 1 for rank in ranks), sum(rank is not None and rank <= 3 for rank in ranks)
    certain = [t for t in mistakes if t.verdict in ("identified", "combination")]
    print(
        f"\n{number} mistakes: {first} first, {three} among the first three, "
        f"{sum(t.verdict == 'correct' for t in mistakes)} taken for correct; "
        f"{len(certain)} said to compute what a known one computes, {sum(t.rank != 1 for t in certain)} of these another one; "
        f"{sum(t.verdict != 'correct' for t in correct)} of {len(correct)} correct ones taken for broken; "
        f"median {sorted(t.seconds for t in trials)[len(trials) // 2]:.1f} s"
    )


def _try(work: str, cases: int) -> Trial:
    style, _, fault = work.partition(" ")
    start = time.perf_counter()
    subject = broken(style, fault) if fault else clean(style, written_for(style))
    found: Diagnosis = diagnose(subject, cases=cases)
    named = [answer.names for answer in found.answers]
    rank = next((place for place, names in enumerate(named, 1) if fault in names), None)
    return Trial(style, fault, found.verdict, rank, tuple(map(" = ".join, named)), time.perf_counter() - start)


if __name__ == "__main__":
    main()
