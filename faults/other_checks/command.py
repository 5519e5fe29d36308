"""`python -m faults others`: what other kinds of check see of the catalog."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from faults.catalog import find
from faults.fault import name_of
from faults.other_checks.page import PAGE, README, judge, totals, write

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "others",
        help="how many faults other kinds of check see",
        description="Replay the inputs of published tests, and of checks that people recommend, on the faults.",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="which faults; default: all")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print every verdict as JSON")
    parser.add_argument("--workers", type=int, default=argparse.SUPPRESS, metavar="N", help="processes")
    parser.add_argument("--write", action="store_true", help="write docs/other-checks.md and the table in the README")
    parser.set_defaults(run=_others)


def _others(options: argparse.Namespace) -> int:
    names = [name_of(find(name)) for name in options.names] or None
    if names and options.write:
        raise LookupError("others --write is about all faults: name none")
    if options.write and not (PAGE.parent.is_dir() and README.exists()):
        raise LookupError("others --write is for a clone of the repository: here are no docs to write")
    verdicts = judge(names, options.workers)
    if options.json:
        letters = [check.letter for check in verdicts.checks]
        print(json.dumps({name: dict(zip(letters, of, strict=True)) for name, of in verdicts.of.items()}, indent=1))
    else:
        print(totals(verdicts))
    if options.write:
        write(verdicts)
        print(f"{PAGE} and the table in {README} written")
    return 0
