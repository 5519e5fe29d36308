"""Is a mistake recognised that was written in another style? `python benchmarks/diagnosis.py`.

Every mistake in `tests/styles` is diagnosed; so are correct ones: the styles without a mistake, the classes of `attn`, and
`tests/unusual.py`. An answer is right if it names the fault, alone or among others that no case told apart from it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from unusual import RIGHT, subject_of  # noqa: E402

from faults.diagnosis import diagnose  # noqa: E402
from faults.matrix import spread  # noqa: E402
from faults.subject import DECLARED, subject  # noqa: E402
from properties.conformance import CASES  # noqa: E402
from properties.subject import Subject  # noqa: E402
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


CORRECT: dict[str, Callable[[], Subject]] = {
    **{style: partial(clean, style, written_for(style)) for style in styles()},
    **{f"attn.{attention.__name__}": partial(subject, attention) for attention in DECLARED},
    **{attention.__name__: partial(subject_of, attention) for attention in RIGHT},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="faults, styles, or correct ones; default: all")
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    written = [*CORRECT, *(f"{style} {fault}" for style, faults in styles().items() for fault in faults)]
    wanted = [work for work in written if not options.names or set(options.names) & set(work.split(" "))]
    trials = []
    for trial in spread(partial(_try, cases=options.cases), wanted, options.workers):
        trials.append(trial)
        right = trial.rank == 1 if trial.fault else trial.verdict == "correct"
        said = f"{trial.verdict}; {', '.join(trial.answers[:3])}  (rank {trial.rank}, {trial.seconds:.0f} s)"
        print(f"{'' if right else 'MISSED '}{trial.style} {trial.fault}: {said}", flush=True)
    correct, mistakes = ([trial for trial in trials if bool(trial.fault) is wrong] for wrong in (False, True))
    print(f"\n{sum(t.verdict != 'correct' for t in correct)} of {len(correct)} correct ones taken for broken")
    ranks = [trial.rank or math.inf for trial in mistakes]
    certain = [trial for trial in mistakes if trial.verdict in ("identified", "combination")]
    print(
        f"{len(mistakes)} mistakes: {sum(rank == 1 for rank in ranks)} first, {sum(rank <= 3 for rank in ranks)} among the first "
        f"three, {sum(trial.verdict == 'correct' for trial in mistakes)} taken for correct\n"
        f"{len(certain)} said to compute what is known, {sum(trial.rank != 1 for trial in certain)} of them another one\n"
        f"median {statistics.median(trial.seconds for trial in trials):.1f} s"
    )


def _try(work: str, cases: int) -> Trial:
    style, _, fault = work.partition(" ")
    start = time.perf_counter()
    found = diagnose(broken(style, fault) if fault else CORRECT[style](), cases=cases)
    named = [answer.names for answer in found.answers]
    rank = next((place for place, names in enumerate(named, 1) if fault in names), None)
    return Trial(style, fault, found.verdict, rank, tuple(map(" = ".join, named)), time.perf_counter() - start)


if __name__ == "__main__":
    main()
