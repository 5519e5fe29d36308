"""`python -m faults report`: the kill matrix, written to a file for others to look at."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from faults.catalog import find
from faults.commands import progress
from faults.fault import name_of
from faults.matrix import all_names
from faults.pages.facts import Entry, entries, facts
from faults.pages.matrix_page import matrix_page


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `python -m faults`."""
    report = commands.add_parser(
        "report",
        help="write the kill matrix as a page, with a lesson behind every fault",
        description="Measure every fault against every property, three cases each on which it shows, and write the page. "
        "It is one file and needs no network. All faults take some minutes.",
    )
    report.add_argument("--html", type=Path, metavar="FILE", required=True, help="where to write the page")
    report.add_argument("--seed", type=int, default=argparse.SUPPRESS, help="of the random cases (default: 0)")
    report.add_argument(
        "--workers", type=_positive, default=argparse.SUPPRESS, metavar="N", help="processes (default: one a core)"
    )
    report.add_argument("names", metavar="NAME", nargs="*", help="only these faults; default: all")
    report.set_defaults(run=write_report)


def write_report(options: argparse.Namespace) -> int:
    """Measure, write, and say where it is."""
    names = [name_of(find(name)) for name in options.names] or all_names()
    page: Path = options.html
    if not page.parent.is_dir() or page.is_dir():  # known before the minutes that measuring takes
        wrong = f"{page} is a directory" if page.is_dir() else f"there is no directory {page.parent}"
        print(f"python -m faults: cannot write the page: {wrong}", file=sys.stderr)
        return 2
    found: list[Entry] = []
    for number, entry in enumerate(entries(names, options.seed, options.workers), 1):
        found.append(entry)
        progress(f"{number}/{len(names)} {entry.row.name}")
    progress("")
    told = facts(found, options.seed)
    page.write_text(matrix_page(told), encoding="utf-8")
    killed, all_of_them = told["numbers"]["killed"], told["numbers"]["faults"]
    print(f"{page} written: {killed} of {all_of_them} faults killed")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number
