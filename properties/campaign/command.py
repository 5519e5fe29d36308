"""`python -m properties campaign`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from properties.campaign.engine import Progress

EVERY = 60.0  # seconds between two lines of a log
OFTEN = 1.0  # and on a terminal, where the line is written over


def tell() -> Callable[[Progress], None]:
    """Return what says how far a run is: one line that changes on a terminal, a line a minute in a log."""
    terminal, last = sys.stderr.isatty(), 0.0

    def say(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= (OFTEN if terminal else EVERY):
            last = time.monotonic()
            text = in_words(progress)
            print(f"\r\033[K{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)

    return say


def in_words(progress: Progress) -> str:
    """How far it is, how quick, and for how long about."""
    cases = progress.before + progress.cases
    of = "" if progress.budget.cases is None else f" of {progress.budget.cases:,}"
    units = "" if progress.total is None else f", {progress.units:,} of {progress.total:,} units"
    retried = f", {progress.retries} given again" if progress.retries else ""
    left = "" if progress.left is None else f", about {duration(progress.left)} left"
    return f"{cases:,}{of} cases{units}, {progress.rate:,.0f} a second{retried}{left}"


def duration(seconds: float) -> str:
    """45 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
