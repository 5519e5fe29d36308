"""`python -m faults report`: what was measured, as files for other tools to read."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from faults.catalog import find
from faults.commands import progress
from faults.fault import name_of
from faults.matrix import Row, all_names, glance, rows
from faults.pages.markdown import summary
from faults.pages.stryker import report

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "report",
        help="write what was measured for other tools",
        description="Measure, as `python -m faults` does, and write files. FILE may be -, for the terminal. Exit code 0 only if "
        "every fault is killed, and what is correct by nothing.",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="which faults; default: all, and what is correct")
    parser.add_argument("--stryker", metavar="FILE", help="JSON in the mutation testing report schema, for Stryker's viewers")
    parser.add_argument("--mutants", metavar="DIR", type=Path, help="add to it what mutmut left behind there")
    parser.add_argument("--markdown", metavar="FILE", help="a summary in Markdown, as for a job in CI")
    parser.add_argument("--seed", default=argparse.SUPPRESS, type=int, help="of the random cases (default: 0)")
    parser.add_argument("--workers", default=argparse.SUPPRESS, type=int, metavar="N", help="processes (default: one a core)")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    if not options.stryker and not options.markdown:
        raise LookupError("report: say what to write, --stryker FILE or --markdown FILE")
    if options.mutants and not options.stryker:
        raise LookupError("report: --mutants is for --stryker")
    if options.mutants and not (options.mutants / "mutmut-stats.json").exists():
        raise LookupError(f"report: {options.mutants} is not what mutmut leaves behind; `tox -e mutation` makes mutants/")
    names = [name_of(find(name)) for name in options.names] or all_names()
    measured: list[Row] = []
    for row in rows(names, options.seed, options.workers, glance):
        measured.append(row)
        progress(f"{len(measured)}/{len(names)} {row.name}")
    progress("")
    written = all(
        _write(file, make)
        for file, make in (
            (options.stryker, lambda: json.dumps(report(measured, options.mutants)) + "\n"),
            (options.markdown, lambda: summary(measured)),
        )
        if file
    )
    wrong = any(bool(row.kills) if row.symptom == "correct" else row.survived for row in measured)
    return 2 if not written else 1 if wrong else 0


def _write(file: str, make: Callable[[], str]) -> bool:
    text = make()
    if file == "-":
        print(text, end="")
        return True
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"python -m faults: cannot write {file}: {error.strerror}", file=sys.stderr)
        return False
    print(f"{file} written", file=sys.stderr)
    return True
