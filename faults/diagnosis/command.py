"""`python -m faults diagnose module:Thing`."""

from __future__ import annotations

import argparse
import json
import sys

from faults.diagnosis.alike import PAGE, groups, page
from faults.diagnosis.diagnosis import diagnose
from properties.loading import add_attention, handed_in

DESCRIPTION = """\
Run the properties on an attention of yours, and say which known mistake it is if any of them fails: the one that breaks the same
laws and, on the same inputs, computes the same numbers. What it does not support is declared, as to `python -m properties check`.
Exit code: 0 if it is correct as far as can be told, 1 if not, 2 if it could not be run."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser("diagnose", help="say which known mistake an attention of yours has", description=DESCRIPTION)
    add_attention(command)
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead of text")
    command.set_defaults(run=_diagnose)
    listing = commands.add_parser("alike", help="the faults that no input tells apart")
    listing.add_argument("--write", action="store_true", help="write docs/alike.md")
    listing.set_defaults(run=_alike)


def _diagnose(options: argparse.Namespace) -> int:
    try:
        thing, declared = handed_in(options)
        found = diagnose(thing, cases=options.cases, time_limit=options.time_limit, in_processes=True, **declared)
    except (ValueError, TypeError, ImportError) as error:
        print(f"python -m faults diagnose: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found.as_dict(), indent=2) if options.json else found)
    return 0 if found.verdict == "correct" else 1


def _alike(options: argparse.Namespace) -> int:
    text = page(groups())
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
        print(f"{PAGE} written")
    else:
        print(text.rstrip())
    return 0
