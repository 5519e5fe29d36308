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

from faults.bless import bless
from faults.catalog import catalog, equivalents, find
from faults.explain import explain
from faults.fault import Fault, FaultError, check_entry, family_of, name_of, step_of, summary_of
from faults.matrix import Row, all_names, measure, rows
from faults.mistakes import mistake, write
from faults.table import table, totals

torch.set_num_threads(1)  # the tensors are tiny: threads cost more than they bring


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return options.run(options)  # type: ignore[no-any-return]
    except (LookupError, FaultError) as error:
        print(f"python -m faults: {error.args[0]}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m faults",
        description="Run every fault of the catalog against every property. Exit code 0 only if each fault is killed, "
        "and the clean attention and the equivalents by nothing.",
    )
    _add_run_options(parser)
    parser.set_defaults(run=_run, json=False, seed=0, workers=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    run = commands.add_parser("run", help="the default: measure and print the kill matrix", description=parser.description)
    _add_run_options(run)
    run.set_defaults(run=_run)
    listing = commands.add_parser("list", help="name every fault, with one sentence")
    listing.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead of text")
    listing.set_defaults(run=_list)
    explaining = commands.add_parser("explain", help="show one fault: what, why, the changed step, a counterexample")
    explaining.add_argument("name", metavar="NAME", help="e.g. wrong-split-order")
    explaining.set_defaults(run=_explain)
    blessing = commands.add_parser(
        "bless", help="measure faults and write symptom, smallest case and killers into their docstrings"
    )
    blessing.add_argument("names", metavar="NAME", nargs="*", help="which faults; default: all")
    blessing.set_defaults(run=_bless)
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    # Without defaults of their own, so that an option counts in front of a command as well as behind it.
    def add(name: str, **options: Any) -> None:
        parser.add_argument(name, default=argparse.SUPPRESS, **options)

    add("--json", action="store_true", help="print the whole matrix as JSON instead of the table")
    add("--seed", type=int, help="of the random cases (default: 0)")
    add("--workers", type=_positive, metavar="N", help="processes (default: one a core)")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _run(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    measured: list[Row] = []
    names = all_names()
    for row in rows(names, options.seed, options.workers):
        measured.append(row)
        _progress(f"{len(measured)}/{len(names)} {row.name}")
    _progress("")
    correct = [row for row in measured if row.symptom == "correct"]
    faulty = [row for row in measured if row.symptom != "correct"]
    seconds = time.perf_counter() - start
    if options.json:
        print(
            json.dumps({"seed": options.seed, "seconds": seconds, "correct": _plain(correct), "faults": _plain(faulty)}, indent=1)
        )
    else:
        print(table(faulty))
        print()
        print(totals(faulty, correct, seconds))
    survived = any(not row.kills or row.cases is None for row in faulty)
    flagged = any(row.kills for row in correct)
    return 1 if survived or flagged else 0


def _list(options: argparse.Namespace) -> int:
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


def _explain(options: argparse.Namespace) -> int:
    print(explain(find(options.name)))
    return 0


def _bless(options: argparse.Namespace) -> int:
    chosen = [find(name) for name in options.names] or list(catalog().values())
    right = [name_of(fault) for fault in chosen if name_of(fault) in equivalents()]
    if right:
        raise LookupError(f"{', '.join(right)} is an equivalent: there is nothing to measure")
    survivors = []
    mistakes = {}
    for fault in chosen:
        check_entry(fault)
    for number, fault in enumerate(chosen, 1):
        _progress(f"{number}/{len(chosen)} {name_of(fault)}")
        row = measure(fault)
        if not row.kills:
            survivors.append(row.name)
            continue
        changed = bless(fault, row)
        mistakes[row.name] = mistake(fault, (kill.property for kill in row.kills))
        _progress("")
        print(f"{row.name}: {'rewritten' if changed else 'unchanged'}; killed by {len(row.kills)} properties, {row.symptom}")
    if write(mistakes, keep=bool(options.names)):
        print("properties/known_mistakes.json: rewritten")
    for name in survivors:
        print(
            f"{name}: no property fails on any of its visible cases. Is `visible` too wide, or is a law missing?", file=sys.stderr
        )
    return 1 if survivors else 0


def _entry(fault: type[Fault]) -> dict[str, str]:
    return {
        "name": name_of(fault),
        "family": family_of(fault),
        "step": step_of(fault),
        "root_cause": fault.root_cause,
        "summary": summary_of(fault),
    }


def _plain(measured: list[Row]) -> list[dict[str, object]]:
    plain = [asdict(row) for row in measured]
    for row in plain:
        for kill in row["kills"]:
            kill["case"] = repr(kill["case"])
    return plain


def _progress(text: str) -> None:
    """Overwrite the line on a terminal; say nothing in a log."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends us as it ends any other command
    sys.exit(main())
