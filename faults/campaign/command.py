"""`python -m faults campaign`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faults.campaign.plan import KIND, WITHIN, run
from faults.campaign.plots import plot
from faults.campaign.race import SEEDS
from faults.campaign.summary import Summary
from faults.commands import positive
from properties.campaign.command import add_reading, add_running, told, workers_of

HELP = """\
How many cases it takes to kill each fault, on many seeds: the properties draw a case each, round after round, until one fails.
Results are kept in FILE as they come, an SQLite database: a run that is killed goes on with the same command, with nothing lost
and nothing done twice."""


def add_to(commands: Any) -> None:
    """Add the command."""
    campaign = commands.add_parser(
        "campaign", help="long runs: cases to the first kill of each fault, on many seeds", description=HELP
    )
    parts = campaign.add_subparsers(dest="part", required=True, metavar="{run,report,merge}")
    running = parts.add_parser("run", help="begin, or go on", description=HELP)
    running.add_argument("file", type=Path, metavar="FILE", help="where the results are kept")
    running.add_argument("names", metavar="NAME", nargs="*", help="which faults; default: all")
    running.add_argument(
        "--within",
        type=positive,
        default=WITHIN,
        metavar="N",
        help=f"cases of each property, then it has survived (default {WITHIN})",
    )
    running.add_argument(
        "--whole-rounds", action="store_true", help="find all properties that kill first, to see which are redundant (slow)"
    )
    add_running(running, SEEDS, "the round of seeds")
    running.set_defaults(run=_run)
    add_reading(parts, KIND, Summary.of, plot)


def _run(options: argparse.Namespace) -> int:
    with told(options.file) as tell, workers_of(options) as workers:
        run(
            options.file,
            options.names,
            seeds=options.seeds,
            cases=options.cases,
            seconds=options.time,
            within=options.within,
            whole_rounds=options.whole_rounds,
            workers=workers,
            tell=tell,
        )
    summary = Summary.of(options.file)
    print(summary)
    return 1 if summary.survivors else 0
