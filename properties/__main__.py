"""The command line: `python -m properties --help`."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import json
import operator
import os
import signal
import sys
from typing import Any

import torch

from properties import wrap
from properties.case import Case
from properties.conformance import CASES, check_attention, replay
from properties.laws import PROPERTIES
from properties.printed import keep_printed
from properties.supports import Supports
from properties.time_limit import TIME_LIMIT

HELP = f"""\
What every correct attention obeys, run on yours.

  python -m properties check my_module:MyAttention        a class, built as MyAttention(d_model, num_heads)
  python -m properties check my_module:my_function        a function of q, k and v, each [B, h, T, d_head]
  python -m properties check my_module:MY_SUBJECT         a properties.Subject, or a function without arguments that makes one
  python -m properties list                               the properties

What it does not support is declared, as -d NAME=VALUE; the names are {", ".join(f.name for f in dataclasses.fields(Supports))}.
A collection is written with commas: -d masks=none,causal -d dropout=False -d empty_rows=nan. Exit code: 0 if nothing failed that
was not expected to, 1 if something did, 2 if it could not be run."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)  # small tensors; and a fork of a process with more threads could wait for ever
    if options.command == "list":
        _list(options.json)
        return 0
    try:
        return _check(options)
    except (ValueError, TypeError, LookupError, ImportError) as error:
        print(f"python -m properties: {error}", file=sys.stderr)
        return 2


def _check(options: argparse.Namespace) -> int:
    thing = _load(options.attention)
    declared = dict(_declaration(text) for text in options.declare)
    if options.black_box:
        thing, declared = wrap.black_box(thing, **declared), {}
    if options.case:
        try:
            replay(thing, _only_one(options.only), _case(options.case), **declared)
        except AssertionError as error:
            print(error)
            return 1
        return 0
    expected = dict(_split(text, "--expect LAW=REASON") for text in options.expect)
    report = check_attention(
        thing,
        cases=options.cases,
        only=options.only,
        expected_failures=expected,
        time_limit=options.time_limit,
        in_processes=True,
        **declared,
    )
    print(json.dumps(report.as_dict(), indent=2) if options.json else report)
    return 0 if report.ok else 1


def _list(as_json: bool) -> None:
    if as_json:
        listed = [{"name": p.name, "family": p.family, "law": p.summary, "needs": list(p.needs)} for p in PROPERTIES]
        print(json.dumps(listed, indent=2))
        return
    for law in PROPERTIES:
        print(f"{law.full_name}\n    {law.summary}")


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"{path!r} must be of the form module:name, like my_project.attention:MyAttention")
    sys.path.insert(0, os.getcwd())
    with keep_printed():
        try:
            loaded = importlib.import_module(module)
        except ImportError as error:
            raise ImportError(f"cannot import {module}: {error}") from error
        except Exception as error:
            raise ImportError(f"importing {module} raised {type(error).__name__}: {error}") from error
        try:
            return operator.attrgetter(name)(loaded)
        except AttributeError:
            raise LookupError(f"{module} has no {name}; it has {', '.join(n for n in vars(loaded) if n[0] != '_')}") from None


def _declaration(text: str) -> tuple[str, Any]:
    """A field of Supports, and its value: a Python literal, or words between commas for a collection."""
    name, value = _split(text, "-d NAME=VALUE")
    kinds = {field.name: str(field.type) for field in dataclasses.fields(Supports)}
    if name not in kinds:
        raise ValueError(f"-d {text}: {name} is nothing one can declare; there is {', '.join(kinds)}")
    if kinds[name].startswith("Callable"):
        raise ValueError(f"-d {text}: {name} is a function; make a Subject in Python, and give its name")
    if kinds[name].startswith(("Collection", "Sequence")):
        return name, tuple(_literal(word) for word in value.split(",") if word)
    return name, value if kinds[name] == "str" else _literal(value)


def _only_one(only: str) -> str:
    names = [law.name for law in PROPERTIES if only in law.full_name]
    if len(names) != 1:
        raise ValueError(f"--case is for one property: --only must be part of one name, and {only!r} is part of {len(names)}")
    return names[0]


def _case(text: str) -> Case:
    """Read a case as it is printed: `Case(name=value, ...)`."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith("Case") or call.args:
            raise ValueError(text)
        fields = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(f"--case: {text!r} must be of the form 'Case(queries=2, num_heads=2)'") from None
    try:
        return Case(**fields)
    except TypeError as error:
        raise ValueError(f"--case: {error}") from None


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _split(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} must be of the form {form}")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m properties", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{check,list}")
    check = commands.add_parser("check", help="run the properties on an attention", description="Run the properties.")
    check.add_argument("attention", metavar="MODULE:NAME", help="a class, a function of q, k and v, or a Subject")
    check.add_argument("-d", "--declare", action="append", default=[], metavar="NAME=VALUE", help="what it supports; repeatable")
    check.add_argument("--black-box", action="store_true", help="leave its weights alone: only what needs none is run")
    check.add_argument("--cases", type=int, default=CASES, help=f"random cases for each property (default {CASES})")
    check.add_argument("--only", default="", metavar="TEXT", help="only properties whose family-name contains this")
    check.add_argument(
        "--expect", action="append", default=[], metavar="LAW=REASON", help="a property that is known to fail; may be repeated"
    )
    check.add_argument("--case", metavar="CASE", help="one case, as reports show it, for the one property named by --only")
    check.add_argument("--time-limit", type=float, default=TIME_LIMIT, metavar="SECONDS", help="for one case")
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    listing = commands.add_parser("list", help="list the properties", description="List the properties.")
    listing.add_argument("--json", action="store_true", help="as JSON")
    return parser


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends us as it ends any other command
    sys.exit(main())
