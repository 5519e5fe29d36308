"""The catalog on the command line: `python -m faults`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from typing import Any

import torch

from faults.campaign import command as campaign
from faults.catalog import catalog
from faults.colour import CHOICES, paint
from faults.commands import bless_entries, explain_entry, list_entries, positive, progress
from faults.diagnosis import command as diagnose
from faults.fault import FaultError
from faults.lessons import quiz, scaffold
from faults.matrix import Look, Row, all_names, glance, measure, rows
from faults.other_checks import command as other_checks
from faults.pages import catalog_page
from faults.pages import command as report
from faults.strength import PAGE, Strength, page, problems
from faults.table import table, totals
from properties.campaign import CampaignError

torch.set_num_threads(1)  # the tensors are tiny: threads cost more than they bring


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return options.run(options)  # type: ignore[no-any-return]
    except (LookupError, ValueError, FaultError, CampaignError, NotImplementedError) as error:
        print(f"python -m faults: {error.args[0] if error.args else type(error).__name__}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m faults",
        description="Run every fault of the catalog against every property, on a case on which it shows. Exit code 0 only if "
        "each fault is killed, and the clean attention and the equivalents by nothing.",
    )
    _add_run_options(parser)
    parser.set_defaults(run=_run, json=False, seed=0, workers=None, colour="auto")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    run = commands.add_parser("run", help="the default: measure and print the kill matrix", description=parser.description)
    _add_run_options(run)
    run.set_defaults(run=_run)
    listing = commands.add_parser("list", help="name every fault, with one sentence")
    listing.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead of text")
    listing.set_defaults(run=list_entries)
    explaining = commands.add_parser(
        "explain", help="one fault as a lesson: the code side by side, a worked example, the law that catches it"
    )
    explaining.add_argument("name", metavar="NAME", help="e.g. wrong-split-order")
    explaining.set_defaults(run=explain_entry)
    blessing = commands.add_parser(
        "bless", help="measure faults and write symptom, severity, smallest case and killers into their docstrings"
    )
    blessing.add_argument("names", metavar="NAME", nargs="*", help="which faults; default: all")
    blessing.set_defaults(run=bless_entries)
    quiz.add_to(commands)
    scaffold.add_to(commands)
    strength = commands.add_parser("strength", help="how much each property adds: a smallest set, what is alone, what is first")
    strength.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead of text")
    strength.add_argument("--workers", default=argparse.SUPPRESS, type=positive, metavar="N", help="processes")
    strength.add_argument("--write", action="store_true", help="write docs/strength.md")
    strength.set_defaults(run=_strength)
    diagnose.add_to(commands)
    campaign.add_to(commands)
    other_checks.add_to(commands)
    catalog_page.add_to(commands)
    report.add_to(commands)
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    # Without defaults of their own, so that an option counts in front of a command as well as behind it.
    def add(name: str, **options: Any) -> None:
        parser.add_argument(name, default=argparse.SUPPRESS, **options)

    add("--json", action="store_true", help="print the whole matrix as JSON instead of the table")
    add("--seed", type=int, help="of the random cases (default: 0)")
    add("--workers", type=positive, metavar="N", help="processes (default: one a core)")
    add("--colour", choices=CHOICES, help="of the table (default: auto, on a terminal, unless NO_COLOR is set)")


def _run(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    measured = _measure(all_names(), options.seed, options.workers, glance)
    correct = [row for row in measured if row.symptom == "correct"]
    faulty = [row for row in measured if row.symptom != "correct"]
    seconds = time.perf_counter() - start
    if options.json:
        plain = {"correct": _plain(correct), "faults": _plain(faulty)}
        print(json.dumps({"seed": options.seed, "seconds": seconds, **plain}, indent=1))
    else:
        in_colour = paint(options.colour, sys.stdout)
        print(table(faulty, in_colour))
        print()
        print(totals(faulty, correct, seconds, in_colour))
    survived = any(row.survived for row in faulty)
    flagged = any(row.kills for row in correct)
    return 1 if survived or flagged else 0


def _strength(options: argparse.Namespace) -> int:
    strength = Strength.of(_measure(list(catalog()), 0, options.workers, measure))
    if options.write:
        PAGE.write_text(page(strength), encoding="utf-8")
        print(f"{PAGE} written")
    else:
        print(json.dumps(strength.as_dict(), indent=1) if options.json else page(strength).rstrip())
    wrong = problems(strength) if options.write else []
    for problem in wrong:
        print(f"faults/strength.py: {problem}", file=sys.stderr)
    return 1 if wrong else 0


def _measure(names: list[str], seed: int, workers: int | None, look: Look) -> list[Row]:
    measured: list[Row] = []
    for row in rows(names, seed, workers, look):
        measured.append(row)
        progress(f"{len(measured)}/{len(names)} {row.name}")
    progress("")
    return measured


def _plain(measured: list[Row]) -> list[dict[str, object]]:
    plain = [asdict(row) for row in measured]
    for row in plain:
        for kill in row["kills"]:
            kill["case"] = repr(kill["case"])
    return plain


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends us as it ends any other command
    sys.exit(main())
