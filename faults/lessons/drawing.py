"""A worked example as text: what it is beside what it should be, wrong numbers marked."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator

from faults.lessons.width import WIDTH
from faults.lessons.worked import Drawn, Worked

ROWS = 16  # of one drawing; of more, those that are wrong


def text(example: Worked, sides: tuple[str, str] = ("should be", "is"), width: int = WIDTH) -> str:
    """The whole example; `sides` stand above what is right and what is wrong."""
    parts = [textwrap.fill(example.inputs, width)]
    parts += ["\n".join(_lines(drawn, sides, width)) for drawn in example.drawn]
    if example.raised:
        parts.append(textwrap.fill(f"Raised: {example.raised}", width, subsequent_indent="  "))
    if example.remark:
        parts.append(textwrap.fill(example.remark, width))
    return "\n\n".join(parts)


def number(value: float) -> str:
    """As short as can be."""
    if math.isnan(value):
        return "nan"
    return f"{value:.0e}" if math.isfinite(value) and abs(value) >= 1e5 else f"{value:.6g}"


def _lines(drawn: Drawn, sides: tuple[str, str], columns: int) -> Iterator[str]:
    yield drawn.title
    same = not any(_wrong(drawn, i) for i in range(len(drawn.rows)))
    kept = [i for i in range(len(drawn.rows)) if len(drawn.rows) <= ROWS or same or _wrong(drawn, i)]
    right = [[number(value) for value in drawn.right[i]] for i in kept]
    wrong = [_marked(drawn, i) for i in kept]
    labels = [drawn.rows[i] for i in kept]
    wide = max(map(len, itertools.chain(drawn.columns, *right, *wrong)), default=1) + 3
    header = "".join(column.rjust(wide) for column in drawn.columns)
    indent = " " * (max(map(len, labels), default=0) + 2)
    left = ["".join(cell.rjust(wide) for cell in row) for row in right]
    other = ["".join(cell.rjust(wide) for cell in row) for row in wrong]
    named = ["  " + label.ljust(len(indent) - 2) for label in labels]
    if same:
        if drawn.wrong is None:
            yield indent + sides[0].center(len(header)).rstrip()
        yield indent + header
        yield from map(str.__add__, named, left)
    elif len(indent) + 2 * len(header) + 4 <= columns:
        yield indent + "    ".join(side.center(len(header)) for side in sides).rstrip()
        yield f"{indent}{header}    {header}"
        yield from (f"{name}{a}    {b}" for name, a, b in zip(named, left, other, strict=True))
    else:  # one below the other
        for side, lines in zip(sides, (left, other), strict=True):
            yield indent + side.center(len(header)).rstrip()
            yield indent + header
            yield from map(str.__add__, named, lines)
    if len(kept) < len(drawn.rows):
        yield f"  and {len(drawn.rows) - len(kept)} rows that are right"


def _marked(drawn: Drawn, row: int) -> list[str]:
    """The wrong numbers of a row with a star."""
    if drawn.wrong is None:
        return []
    return [number(b) if _equal(a, b) else f"*{number(b)}" for a, b in zip(drawn.right[row], drawn.wrong[row], strict=True)]


def _wrong(drawn: Drawn, row: int) -> bool:
    return any(cell.startswith("*") for cell in _marked(drawn, row))


def _equal(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
