"""`python -m faults report`: what was measured, as a page to look at, and as files for other tools to read."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from faults.catalog import find
from faults.commands import positive, progress
from faults.fault import name_of
from faults.matrix import all_names, glance, rows
from faults.pages.facts import Entry, entries, facts
from faults.pages.markdown import summary
from faults.pages.matrix_page import matrix_page
from faults.pages.stryker import report

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_to(commands: Commands) -> None:
    """Add the command to `python -m faults`."""
    parser = commands.add_parser(
        "report",
        help="write what was measured: as a page, with a lesson behind every fault, and for other tools",
        description="Measure, and write files; - is the terminal. For the page every fault is tried on three cases of every "
        "property on which it shows, which takes some minutes; for the others on one, as `python -m faults` does. Exit code 0 "
        "only if every fault is killed, and what is correct by nothing.",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="which faults; default: all, and what is correct")
    parser.add_argument("--html", metavar="FILE", help="the kill matrix as a page; one file, which needs no network")
    parser.add_argument("--stryker", metavar="FILE", help="JSON in the mutation testing report schema, for Stryker's viewers")
    parser.add_argument("--mutants", metavar="DIR", type=Path, help="add to it what mutmut left behind there")
    parser.add_argument("--markdown", metavar="FILE", help="a summary in Markdown, as for a job in CI")
    parser.add_argument("--seed", default=argparse.SUPPRESS, type=int, help="of the random cases (default: 0)")
    parser.add_argument(
        "--workers", default=argparse.SUPPRESS, type=positive, metavar="N", help="processes (default: one a core)"
    )
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    files = {kind: file for kind in ("html", "stryker", "markdown") if (file := getattr(options, kind))}
    _check(files, options.mutants)
    wanted = {name_of(find(name)) for name in options.names}
    names = [name for name in all_names() if name in wanted or not wanted]  # a family in one place, as in the catalog
    entries_ = _measured(names, options, with_lessons="html" in files)
    measured = [entry.row for entry in entries_]
    make: dict[str, Callable[[], str]] = {
        "html": lambda: matrix_page(facts(entries_, options.seed)),
        "stryker": lambda: json.dumps(report(measured, options.mutants)) + "\n",
        "markdown": lambda: summary(measured),
    }
    written = [_write(file, make[kind]()) for kind, file in files.items()]
    wrong = any(bool(row.kills) if row.symptom == "correct" else row.survived for row in measured)
    return 2 if not all(written) else 1 if wrong else 0


def _check(files: Mapping[str, str], mutants: Path | None) -> None:
    """Refuse, before the minutes that measuring takes, what cannot be written."""
    if not files:
        raise LookupError("report: say what to write, --html FILE, --stryker FILE or --markdown FILE")
    if mutants and "stryker" not in files:
        raise LookupError("report: --mutants is for --stryker")
    if mutants and not (mutants / "mutmut-stats.json").exists():
        raise LookupError(f"report: {mutants} is not what mutmut leaves behind; `tox -e mutation` makes mutants/")
    for file in files.values():
        path = Path(file)
        if file != "-" and (path.is_dir() or not path.parent.is_dir()):
            wrong = f"{path} is a directory" if path.is_dir() else f"there is no directory {path.parent}"
            raise LookupError(f"report: cannot write {path}: {wrong}")


def _measured(names: list[str], options: argparse.Namespace, with_lessons: bool) -> list[Entry]:
    found: list[Entry] = []
    looked = (
        entries(names, options.seed, options.workers)
        if with_lessons
        else (Entry(row, None) for row in rows(names, options.seed, options.workers, glance))
    )
    for entry in looked:
        found.append(entry)
        progress(f"{len(found)}/{len(names)} {entry.row.name}")
    progress("")
    return found


def _write(file: str, text: str) -> bool:
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
