"""`python -m properties campaign`, and what it has in common with that of `faults`."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from properties.campaign.asked import Asked, asked_apart
from properties.campaign.engine import Progress
from properties.campaign.plan import KIND, run
from properties.campaign.plots import plot
from properties.campaign.store import Store
from properties.campaign.summary import Summary
from properties.campaign.told import duration
from properties.campaign.trial import SEEDS
from properties.campaign.unit import CampaignError
from properties.campaign.workers import Workers, dask, processes
from properties.conformance import find
from properties.loading import add_declarations, declarations
from properties.time_limit import TIME_LIMIT

HELP = """\
Many subjects, all laws, as many cases as there is time for. Results are kept in FILE as they come, an SQLite database: a run that
is killed goes on with the same command, with nothing lost and nothing done twice."""
EVERY = 60.0  # seconds between two lines of a log
OFTEN = 1.0  # and on a terminal, where the line is written over

Tell = Callable[[Progress], None]


class Told(Protocol):
    """What is read from a file."""

    def as_dict(self) -> dict[str, Any]: ...


Read = TypeVar("Read", bound=Told)


def add_to(commands: Any) -> None:
    """Add the command."""
    campaign = commands.add_parser("campaign", help="long runs, on many processes or machines", description=HELP)
    parts = campaign.add_subparsers(dest="part", required=True, metavar="{run,report,merge}")
    running = parts.add_parser("run", help="ask, or go on", description=HELP)
    running.add_argument("file", type=Path, metavar="FILE", help="where the results are kept")
    running.add_argument(
        "attention", nargs="+", metavar="MODULE:NAME", help="a class, a function of q, k and v, a Subject, or a list of these"
    )
    add_declarations(running)
    running.add_argument("--only", default="", metavar="TEXT", help="only properties whose family-name contains this")
    running.add_argument("--leave-out", action="append", default=[], metavar="LAW", help="a property not to ask; repeatable")
    running.add_argument("--time-limit", type=float, default=TIME_LIMIT, metavar="SECONDS", help="for one case")
    add_running(running, SEEDS, "the round of seeds")
    running.set_defaults(run=_run)
    add_reading(parts, KIND, Summary.of, plot)


def add_running(parser: argparse.ArgumentParser, block: int, round_: str) -> None:
    """Add the options of a run: how long, and by whom."""
    budget = parser.add_argument_group("budget", "one of these at least")
    budget.add_argument(
        "--cases", type=_whole, metavar="N", help=f"stop after {round_} with which FILE has so many cases of these"
    )
    budget.add_argument("--time", type=_seconds, metavar="TIME", help="stop when it is over: 90s, 30m, 8h")
    budget.add_argument(
        "--seeds", type=_range, metavar="FIRST:LAST", help=f"from this seed up to, not including, that; multiples of {block}"
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--workers", type=_whole, metavar="N", help="processes of this machine (default: one a core)")
    who.add_argument("--dask", metavar="ADDRESS", help="the workers of a dask cluster: its scheduler, like tcp://10.0.0.1:8786")


def add_reading(parts: Any, kind: str, read: Callable[[Path], Read], plot: Callable[[Read, Path], list[Path]]) -> None:
    """Add the parts that read files: report, merge."""

    def report(options: argparse.Namespace) -> int:
        found = read(options.file)
        print(json.dumps(found.as_dict(), indent=1) if options.json else found)
        try:
            for file in plot(found, options.plots) if options.plots else ():
                print(f"{file} written", file=sys.stderr)
        except OSError as error:
            raise CampaignError(f"--plots: nothing can be written into {options.plots}: {error}") from error
        return 0

    def merge(options: argparse.Namespace) -> int:
        with Store.read(options.others[0], kind) as first:
            about = first.about
        begun = options.file.exists()
        try:
            with Store(options.file, about) as store, store.alone():
                for other, units in zip(options.others, store.merge(options.others), strict=True):
                    print(f"{other}: {units:,} units that were not in {options.file}")
        except CampaignError:
            if not begun:
                options.file.unlink(missing_ok=True)
            raise
        return 0

    reporting = parts.add_parser("report", help="what was found so far, while a run goes on as well")
    reporting.add_argument("file", type=Path, metavar="FILE")
    reporting.add_argument("--json", action="store_true", help="as JSON")
    reporting.add_argument("--plots", type=Path, metavar="DIRECTORY", help="draw plots into it as well, as SVG, with matplotlib")
    reporting.set_defaults(run=report)
    merging = parts.add_parser("merge", help="put the results of several machines together")
    merging.add_argument("file", type=Path, metavar="FILE", help="where they go; it is made if it is not there")
    merging.add_argument("others", type=Path, nargs="+", metavar="FROM")
    merging.set_defaults(run=merge)


@contextmanager
def workers_of(options: argparse.Namespace) -> Iterator[Workers]:
    """Who does the work, by the options."""
    if options.dask:
        with dask(options.dask) as workers:
            yield workers
    else:
        yield processes(options.workers or cores())


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def told(file: Path) -> Iterator[Tell]:
    """Say how far a run is: one line that changes on a terminal, a line a minute in a log; and how to go on if it is stopped."""
    terminal, last = sys.stderr.isatty(), time.monotonic() - EVERY
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is handed out is to be taken back then, too

    def tell(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= (OFTEN if terminal else EVERY):
            last = time.monotonic()
            text = in_words(progress)
            print(f"\r\033[K{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)

    try:
        yield tell
    except KeyboardInterrupt:
        print(f"\nstopped; what is done is in {file}, and the same command goes on", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def in_words(progress: Progress) -> str:
    """How far it is, how quick, and for how long about."""
    cases = progress.before + progress.cases
    of = "" if progress.budget.cases is None else f" of {progress.budget.cases:,}"
    units = "" if progress.total is None else f", {progress.units:,} of {progress.total:,} units"
    retried = f", {progress.retries} given again" if progress.retries else ""
    left = "" if progress.left is None else f", about {duration(progress.left)} left"
    return f"{cases:,}{of} cases{units}, {progress.rate:,.0f} a second{retried}{left}"


def _run(options: argparse.Namespace) -> int:
    with told(options.file) as tell, workers_of(options) as workers:
        subjects: dict[str, Asked] = {}
        for path in options.attention:
            found = asked_apart(path, as_black_box=options.black_box, **declarations(options))
            if twice := set(found) & set(subjects):
                raise ValueError(f"{path} has a subject that goes by the name of another: {min(twice)}")
            subjects |= found
        left_out = [find(name).name for name in options.leave_out]
        run(
            options.file,
            subjects,
            seeds=options.seeds,
            cases=options.cases,
            seconds=options.time,
            only=options.only,
            leave_out=dict.fromkeys(subjects, left_out),
            workers=workers,
            time_limit=options.time_limit,
            tell=tell,
        )
    summary = Summary.of(options.file)
    print(summary)
    return 1 if summary.whole.failures else 0


def _whole(text: str) -> int:
    digits = text.replace("_", "").replace(",", "")
    if not digits.isdecimal() or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(digits)


def _range(text: str) -> tuple[int, int]:
    parts = re.fullmatch(r"(\d+):(\d+)", text)
    if not parts:
        raise argparse.ArgumentTypeError(f"must be FIRST:LAST, like 0:1000, got {text!r}")
    return int(parts[1]), int(parts[2])


def _seconds(text: str) -> float:
    parts = re.findall(r"(\d+(?:\.\d+)?)(s|m|h|d)", text)
    seconds = sum(float(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != text or not seconds:
        raise argparse.ArgumentTypeError(f"must be a time like 90s, 30m or 1h30m, got {text!r}")
    return seconds
