"""The commands about entries of the catalog: list, explain, bless."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import faults
from faults.bless import bless, measured_sections
from faults.catalog import catalog, equivalents, find
from faults.fault import Fault, check_entry, family_of, name_of, step_of, summary_of
from faults.lessons.explain import explain
from faults.lessons.review import review, words
from faults.lessons.width import width
from faults.matrix import Row, measure, spread
from faults.mistakes import mistake, write
from faults.strength import COMMAND as STRENGTH
from faults.strength import PAGE, Strength, page, problems


def list_entries(options: argparse.Namespace) -> int:
    entries = {**catalog(), **equivalents()}
    if options.json:
        print(json.dumps([_entry(fault) for fault in entries.values()], indent=1))
        return 0
    width = max(map(len, entries))
    family = ""
    for name, fault in entries.items():
        if family_of(fault) != family:
            family = family_of(fault)
            print(f"{family}:")
        print(f"  {name:<{width}}  {summary_of(fault)}")
    return 0


def explain_entry(options: argparse.Namespace) -> int:
    print(explain(find(options.name), width()))
    return 0


def bless_entries(options: argparse.Namespace) -> int:
    chosen = [find(name) for name in options.names] or list(catalog().values())
    right = [name_of(fault) for fault in chosen if name_of(fault) in equivalents()]
    if right:
        raise LookupError(f"{', '.join(right)} is an equivalent: there is nothing to measure")
    for fault in chosen:
        check_entry(fault)
    # One that is named may be new. All are held to what they say by the tests, which takes longer than to measure them.
    work = partial(_measured, reviewed=bool(options.names))
    measured = spread(work, [name_of(fault) for fault in chosen], 1 if len(chosen) == 1 else None)
    blessed: dict[str, Row] = {}
    mistakes = {}
    changed = False
    for number, (fault, found) in enumerate(zip(chosen, measured, strict=True), 1):
        name = name_of(fault)
        progress(f"{number}/{len(chosen)} {name}")
        if isinstance(found, list):
            progress("")
            print(words(fault, found), file=sys.stderr)
            continue
        row, sections, mistakes[name] = found
        blessed[name] = row
        rewritten = bless(fault, sections)
        changed = changed or rewritten
        progress("")
        print(f"{name}: {'rewritten' if rewritten else 'unchanged'}; killed by {len(row.kills)} properties, {row.symptom}")
    if write(mistakes, keep=bool(options.names)):
        changed = True
        print("properties/known_mistakes.json: rewritten")
    complete = len(blessed) == len(catalog())
    regenerate(list(blessed.values()) if complete else None, changed)
    return 0 if len(blessed) == len(chosen) else 1


def regenerate(rows: list[Row] | None, changed: bool) -> None:
    """Write what is made of the entries: `rows` are those of all faults, if all were measured."""
    if rows is not None:
        strength = Strength.of(rows)
        PAGE.write_text(page(strength), encoding="utf-8")
        print(f"docs/{PAGE.name}: written")
        for problem in problems(strength):
            print(f"faults/strength.py: {problem}", file=sys.stderr)
    elif changed:
        print(f"docs/{PAGE.name} counts all faults, of which not all were measured: `{STRENGTH}` writes it anew, in minutes")
    if changed:
        sys.stdout.flush()
        for arguments, pages in PAGES_OF_ENTRIES.items():
            # In a process of its own: this one has imported the docstrings as they were.
            subprocess.run([sys.executable, "-m", "faults", *arguments], check=True, stdout=subprocess.DEVNULL)
            print(f"{pages}: rewritten")
        counted = re.search(r"(\d+) broken ones", README.read_text(encoding="utf-8")) if README.exists() else None
        if counted and int(counted[1]) != len(catalog()):
            print(f'README.md: left as it is; it says "{counted[0]}", and there are {len(catalog())}: to be changed by hand')


# The commands that write pages which depend on every entry, and take seconds; and what they write.
PAGES_OF_ENTRIES = {
    ("catalog", "--write"): "docs/catalog.md, docs/properties.md",
    ("alike", "--write"): "docs/alike.md",
    ("others", "--write"): "docs/other-checks.md, the table in README.md",
}
README = Path(faults.__file__).parents[1] / "README.md"


def _measured(name: str, reviewed: bool) -> tuple[Row, dict[str, str], dict[str, Any]] | list[str]:
    """What there is to write of a fault; or what is wrong with it."""
    fault = find(name)
    complaints = review(fault) if reviewed else []
    if complaints:
        return complaints
    row = measure(fault)
    if not row.kills:
        return review(fault)
    return row, measured_sections(fault, row), mistake(fault, (kill.property for kill in row.kills))


def positive(text: str) -> int:
    """A number of the command line that must be at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def progress(text: str) -> None:
    """Overwrite the line on a terminal; say nothing in a log."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _entry(fault: type[Fault]) -> dict[str, str]:
    return {
        "name": name_of(fault),
        "family": family_of(fault),
        "step": step_of(fault),
        "root_cause": fault.root_cause,
        "summary": summary_of(fault),
    }
