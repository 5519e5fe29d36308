"""Read what is named on a command line: something to check, what it declares, a case."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import operator
import os
import sys
from typing import Any

from properties.case import Case
from properties.conformance import CASES
from properties.printed import keep_printed
from properties.supports import Supports
from properties.time_limit import TIME_LIMIT
from properties.wrap import black_box


def add_attention(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what to check, and how hard."""
    parser.add_argument("attention", metavar="MODULE:NAME", help="a class, a function of q, k and v, or a Subject")
    add_declarations(parser)
    parser.add_argument("--cases", type=int, default=CASES, help=f"random cases for each property (default {CASES})")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT, metavar="SECONDS", help="for one case")


def add_declarations(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what it supports."""
    parser.add_argument("-d", "--declare", action="append", default=[], metavar="NAME=VALUE", help="what it supports; repeatable")
    parser.add_argument("--black-box", action="store_true", help="leave its weights alone: only what needs none is run")


def declarations(options: argparse.Namespace) -> dict[str, Any]:
    """What these say of it."""
    return dict(declaration(text) for text in options.declare)


def handed_in(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """What these arguments say: the thing to check, and what is declared of it."""
    thing = load(options.attention)
    declared = declarations(options)
    return (black_box(thing, **declared), {}) if options.black_box else (thing, declared)


def load(path: str) -> Any:
    """Import what `module:name` names, from here first; ValueError, ImportError or LookupError say what is wrong with it."""
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


def declaration(text: str) -> tuple[str, Any]:
    """A field of Supports, and its value: a Python literal, or words between commas for a collection."""
    name, value = split(text, "-d NAME=VALUE")
    kinds = {field.name: str(field.type) for field in dataclasses.fields(Supports)}
    if name not in kinds:
        raise ValueError(f"-d {text}: {name} is nothing one can declare; there is {', '.join(kinds)}")
    if kinds[name].startswith("Callable"):
        raise ValueError(f"-d {text}: {name} is a function; make a Subject in Python, and give its name")
    if kinds[name].startswith(("Collection", "Sequence")):
        return name, tuple(_literal(word) for word in value.split(",") if word)
    return name, value if kinds[name] == "str" else _literal(value)


def read_case(text: str) -> Case:
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


def split(text: str, form: str) -> tuple[str, str]:
    """Both sides of the first `=`; ValueError, with the form that it should have, if there is none."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} must be of the form {form}")
    return name, value
