"""The source of a step, without what explains it."""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable

from faults.fault import Fault, step_of
from faults.subject import clean_class

DISGUISE = "Attention"  # the name that a broken class goes by


def function_lines(step: Callable[..., object], *, comments: bool) -> list[str]:
    """The lines of a function, from its `def` on, without its docstring; and, if so asked, without comments."""
    return without_words(textwrap.dedent(inspect.getsource(step)), comments=comments)


def without_words(source: str, *, comments: bool = False) -> list[str]:
    """The lines of a function or class without docstrings, and without comments unless these are to stay."""
    lines = source.splitlines()
    gone: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            text = node.body[0]
            gone |= set(range(text.lineno - 1, text.end_lineno or text.lineno))
            if isinstance(node, ast.ClassDef):
                gone.add(text.end_lineno or text.lineno)  # the empty line below it
    if not comments:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column].rstrip()
                if not lines[row - 1]:
                    gone.add(row - 1)
    return [line for number, line in enumerate(lines) if number not in gone]


def clean_step(fault: type[Fault]) -> str:
    """The step as it should be, its comments included."""
    return "\n".join(function_lines(getattr(clean_class(fault), step_of(fault)), comments=True))


def disguised(fault: type[Fault]) -> str:
    """The broken step with all it needs, and without its name and what explains it.

    A comment tells which line was thought about, and one that is missing, which was changed; so there is none.
    """
    clean = clean_class(fault)
    needed = [line for helper in _helpers(fault) for line in (*without_words(inspect.getsource(helper)), "", "")]
    body = [*_kept(fault), *function_lines(getattr(fault, step_of(fault)), comments=False)]
    lines = [*needed, f"class {DISGUISE}({clean.__name__}):", *(f"    {line}".rstrip() for line in body)]
    return re.sub(rf"\b{fault.__name__}\b", DISGUISE, "\n".join(lines))


def _kept(fault: type[Fault]) -> list[str]:
    """What the class keeps besides its step: the attributes that the step uses."""
    source = textwrap.dedent(inspect.getsource(fault))
    (definition,) = ast.parse(source).body
    kept = []
    for node in definition.body if isinstance(definition, ast.ClassDef) else []:
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id != "root_cause":
            kept.append(ast.get_source_segment(source, node) or "")
    return [*kept, ""] if kept else []


def _helpers(fault: type[Fault]) -> list[Callable[..., object]]:
    """The functions and classes of the catalog that the step uses; what one of them uses comes before it."""
    found: dict[str, Callable[..., object]] = {}

    def look(thing: Callable[..., object]) -> None:
        namespace = vars(inspect.getmodule(thing))
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(thing)))):
            used = namespace.get(node.id) if isinstance(node, ast.Name) else None
            if not (inspect.isfunction(used) or inspect.isclass(used)) or not used.__module__.startswith("faults."):
                continue
            if used is not fault and used.__name__ not in found:
                look(used)
                found[used.__name__] = used

    look(getattr(fault, step_of(fault)))
    return list(found.values())
