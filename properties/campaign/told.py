"""Numbers, times and tables in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def duration(seconds: float) -> str:
    """45 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def count(number: int, what: str) -> str:
    """1 unit, 2 units."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """The text on one line, whatever is in it: what a terminal would obey, or cannot show, as its escape code."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right, as wide as they must be."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip() for first, *rest in cells]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What is different in one of two descriptions, in words; "" if nothing is."""
    return "; ".join(
        f"{name} {one.get(name, 'unknown')} instead of {other.get(name, 'unknown')}"
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    )
