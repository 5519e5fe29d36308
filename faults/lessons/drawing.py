"""A worked example as text: what it is beside what it should be, wrong numbers marked."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator

from faults.lessons.worked import Drawn, Worked

WIDTH = 100
ROWS = 16  # of one drawing; of more, those that are wrong


def text(example: Worked) -> str:
    """The whole example."""
    parts = [textwrap.fill(example.inputs, WIDTH)]
    parts += ["\n".join(_lines(drawn)) for drawn in example.drawn]
    if example.raised:
        parts.append(textwrap.fill(f"Raised: {example.raised}", WIDTH, subsequent_indent="  "))
    if example.remark:
        parts.append(textwrap.fill(example.remark, WIDTH))
    return "\n\n".join(parts)


def number(value: float) -> str:
    """As short as can be."""
    if math.isnan(value):
        return "nan"
    return f"{value:.0e}" if math.isfinite(value) and abs(value) >= 1e5 else f"{value:.6g}"


def _lines(drawn: Drawn) -> Iterator[str]:
    yield drawn.title
    labels = max(map(len, drawn.rows), default=0)
    same = drawn.wrong == drawn.right
    wrong = drawn.right if drawn.wrong is None or same else drawn.wrong
    cells = [[number(value) for value in row] for row in (*drawn.right, *wrong)]
    width = max(map(len, itertools.chain(drawn.columns, *cells)), default=1) + 3
    half = width * len(drawn.columns)
    both = not same and drawn.wrong is not None
    if not same:
        heads = ["should be"] + (["is"] if both else [])
        yield " " * (labels + 2) + "    ".join(head.center(half) for head in heads).rstrip()
    header = "".join(column.rjust(width) for column in drawn.columns)
    yield " " * (labels + 2) + header + ("    " + header if both else "")
    left_out = 0
    for label, right, got in zip(drawn.rows, drawn.right, wrong, strict=True):
        marked = [f"*{number(g)}" if both and not _equal(r, g) else number(g) for r, g in zip(right, got, strict=True)]
        if len(drawn.rows) > ROWS and not any(cell.startswith("*") for cell in marked):
            left_out += 1
            continue
        line = "  " + label.ljust(labels) + "".join(number(r).rjust(width) for r in right)
        yield line + ("    " + "".join(cell.rjust(width) for cell in marked) if both else "")
    if left_out:
        yield f"  and {left_out} rows that are right"


def _equal(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
