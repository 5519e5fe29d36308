"""The commands about entries of the catalog: list, explain, bless."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from faults.bless import bless, measured_sections
from faults.catalog import catalog, equivalents, find
from faults.fault import Fault, check_entry, family_of, name_of, step_of, summary_of
from faults.lessons.explain import explain
from faults.matrix import Row, measure, spread
from faults.mistakes import mistake, write


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
    print(explain(find(options.name)))
    return 0


def bless_entries(options: argparse.Namespace) -> int:
    chosen = [find(name) for name in options.names] or list(catalog().values())
    right = [name_of(fault) for fault in chosen if name_of(fault) in equivalents()]
    if right:
        raise LookupError(f"{', '.join(right)} is an equivalent: there is nothing to measure")
    survivors = []
    mistakes = {}
    for fault in chosen:
        check_entry(fault)
    measured = spread(_measured, [name_of(fault) for fault in chosen], 1 if len(chosen) == 1 else None)
    for number, (fault, (row, sections, known)) in enumerate(zip(chosen, measured, strict=True), 1):
        progress(f"{number}/{len(chosen)} {name_of(fault)}")
        if not row.kills:
            survivors.append(row.name)
            continue
        changed = bless(fault, sections)
        mistakes[row.name] = known
        progress("")
        print(f"{row.name}: {'rewritten' if changed else 'unchanged'}; killed by {len(row.kills)} properties, {row.symptom}")
    if write(mistakes, keep=bool(options.names)):
        print("properties/known_mistakes.json: rewritten")
    for name in survivors:
        print(
            f"{name}: no property fails on any of its visible cases. Is `visible` too wide, or is a law missing?", file=sys.stderr
        )
    return 1 if survivors else 0


def _measured(name: str) -> tuple[Row, dict[str, str], dict[str, Any]]:
    fault = find(name)
    row = measure(fault)
    if not row.kills:
        return row, {}, {}
    return row, measured_sections(fault, row), mistake(fault, (kill.property for kill in row.kills))


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
