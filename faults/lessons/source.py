"""The source of a step, without what explains it."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable


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
