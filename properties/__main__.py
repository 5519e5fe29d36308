"""The command line: `python -m properties --help`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys

import torch

from properties.campaign import CampaignError
from properties.campaign import command as campaign
from properties.conformance import check_attention, replay
from properties.laws import PROPERTIES
from properties.loading import add_attention, handed_in, read_case, split
from properties.supports import Supports

HELP = f"""\
What every correct attention obeys, run on yours.

  python -m properties check my_module:MyAttention        a class, built as MyAttention(d_model, num_heads)
  python -m properties check my_module:my_function        a function of q, k and v, each [B, h, T, d_head]
  python -m properties check my_module:MY_SUBJECT         a properties.Subject, or a function without arguments that makes one
  python -m properties list                               the properties
  python -m properties campaign run FILE MODULE:NAME ...  as many cases as there is time for, on many processes or machines

What it does not support is declared, as -d NAME=VALUE; the names are {", ".join(f.name for f in dataclasses.fields(Supports))}.
A collection is written with commas: -d masks=none,causal -d dropout=False -d empty_rows=nan. Exit code: 0 if nothing failed that
was not expected to, 1 if something did, 2 if it could not be run."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)  # small tensors; and a fork of a process with more threads could wait for ever
    try:
        return options.run(options)  # type: ignore[no-any-return]
    except (ValueError, TypeError, LookupError, ImportError, CampaignError) as error:
        print(f"python -m properties: {error}", file=sys.stderr)
        return 2


def _check(options: argparse.Namespace) -> int:
    thing, declared = handed_in(options)
    if options.case:
        try:
            replay(thing, _only_one(options.only), read_case(options.case), **declared)
        except AssertionError as error:
            print(error)
            return 1
        return 0
    expected = dict(split(text, "--expect LAW=REASON") for text in options.expect)
    report = check_attention(
        thing,
        cases=options.cases,
        only=options.only,
        expected_failures=expected,
        time_limit=options.time_limit,
        in_processes=True,
        diagnose=options.diagnose,
        **declared,
    )
    print(json.dumps(report.as_dict(), indent=2) if options.json else report)
    return 0 if report.ok else 1


def _list(options: argparse.Namespace) -> int:
    if options.json:
        listed = [{"name": p.name, "family": p.family, "law": p.summary, "needs": list(p.needs)} for p in PROPERTIES]
        print(json.dumps(listed, indent=2))
    else:
        for law in PROPERTIES:
            print(f"{law.full_name}\n    {law.summary}")
    return 0


def _only_one(only: str) -> str:
    names = [law.name for law in PROPERTIES if only in law.full_name]
    if len(names) != 1:
        raise ValueError(f"--case is for one property: --only must be part of one name, and {only!r} is part of {len(names)}")
    return names[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m properties", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{check,list,campaign}")
    check = commands.add_parser("check", help="run the properties on an attention", description="Run the properties.")
    add_attention(check)
    check.add_argument("--only", default="", metavar="TEXT", help="only properties whose family-name contains this")
    check.add_argument(
        "--expect", action="append", default=[], metavar="LAW=REASON", help="a property that is known to fail; may be repeated"
    )
    check.add_argument("--case", metavar="CASE", help="one case, as reports show it, for the one property named by --only")
    check.add_argument("--diagnose", action="store_true", help="say which known mistake it is, with the catalog in `faults`")
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    check.set_defaults(run=_check)
    listing = commands.add_parser("list", help="list the properties", description="List the properties.")
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(run=_list)
    campaign.add_to(commands)
    return parser


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends us as it ends any other command
    sys.exit(main())
