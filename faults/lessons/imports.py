"""Imports put in among those of a module, in the order and form that ruff wants them in."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable

from faults.fault import FaultError

_OURS = ("attn", "faults", "properties")
_LINE = 130
_Key = tuple[str, str | None]  # the module, and what it is called here if it is imported whole; "" if names are taken from it


def merged(source: str, statements: Iterable[str]) -> str:
    """The source of a module, with these import statements among its own."""
    tree = ast.parse(source)
    lines = source.splitlines()
    own = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    known: dict[_Key, set[str]] = {}
    spread: set[_Key] = set()  # over several lines, as ruff leaves what ends in a comma
    for node in own:
        _take(node, known)
        if (node.end_lineno or 0) > node.lineno and isinstance(node, ast.ImportFrom):
            spread.add((node.module or "", ""))
    before = {key: set(names) for key, names in known.items()}
    for statement in statements:
        for parsed in ast.parse(statement).body:
            _take(parsed, known)
    if known == before:
        return source
    first = own[0].lineno - 1 if own else (tree.body[0].end_lineno or 0 if tree.body else 0)
    last = (own[-1].end_lineno or 0) if own else first
    if any("#" in line for line in lines[first:last]):
        raise FaultError(f"there are comments among the imports, which would be lost; add this to them: {'; '.join(statements)}")
    block = "\n\n".join("\n".join(_written(key, known[key], key in spread) for key in keys) for keys in _sections(known))
    head = lines[:first]
    while head and not head[-1]:
        head.pop()
    return "\n".join([*head, *([""] if head else []), block, *lines[last:]]) + "\n"


def statement_for(name: str, source: str, module: str) -> str:
    """How a module imports a name; or how another one imports it from the module, if it is the module's own."""
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    taken = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
                    return f"from {node.module} import {taken}" if isinstance(node, ast.ImportFrom) else f"import {taken}"
    return f"from {module} import {name}" if module else ""


def _take(node: ast.stmt, known: dict[_Key, set[str]]) -> None:
    if isinstance(node, ast.ImportFrom):
        names = {f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in node.names}
        known.setdefault((node.module or "", ""), set()).update(names)
    elif isinstance(node, ast.Import):
        known.update({(alias.name, alias.asname): set() for alias in node.names})


def _sections(known: Iterable[_Key]) -> list[list[_Key]]:
    """In the order of the file: the future, the standard library, other packages, these; `import` in front of `from`."""
    sections: dict[int, list[_Key]] = {}
    for key in sorted(known, key=lambda key: (key[1] == "", key[0].lower(), key[1] or "")):
        sections.setdefault(_section(key[0].partition(".")[0]), []).append(key)
    return [sections[number] for number in sorted(sections)]


def _section(package: str) -> int:
    if package == "__future__":
        return 0
    return 3 if package in _OURS else 1 if package in sys.stdlib_module_names else 2


def _written(key: _Key, names: Iterable[str], spread: bool) -> str:
    module, called = key
    if called != "":
        return f"import {module} as {called}" if called else f"import {module}"
    ordered = sorted(names, key=_rank)
    line = f"from {module} import {', '.join(ordered)}"
    if not spread and len(line) <= _LINE:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in ordered), ")"])


def _rank(name: str) -> tuple[int, str, str]:
    """Constants, classes, all else."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return kind, name.lower(), name
