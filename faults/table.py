"""The kill matrix as text: faults down, families of properties across."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from faults.colour import Paint
from faults.matrix import Row
from faults.severity import cell
from properties.laws import PROPERTIES

_FAMILIES = {family: [p.name for p in group] for family, group in itertools.groupby(PROPERTIES, key=lambda p: p.family)}
PLAIN = Paint()


def table(measured: list[Row], paint: Paint = PLAIN) -> str:
    """One line a fault: silent or loud, cases drawn up to the first kill, killers, and how many of them in each family.

    In colour, a family is bold if one of it is among the first killers, and a family that holds is dim.
    """
    width = max((len(row.name) for row in measured), default=0) + 2
    columns = [f"{name[:4]:>5}" for name in _FAMILIES]
    lines = [
        "symptom: silent (wrong, and nothing raised), loud (raises), either (as the case may be)",
        "cases: drawn from all there are, whether the fault can show on them or not, up to the first that is killed",
        "error: median of the relative error of the output where it returns; 0: the output is right, something else is not",
        "none: share of the cases on which it raises or gives NaN, in percent",
        "killers: properties that fail on the first such case of theirs, then how many of each family, of " + _legend(),
        "",
        f"{'fault':<{width}} {'symptom':<7} {'error':>6} {'none':>4} {'cases':>5} {'killers':>7} {''.join(columns)}",
    ]
    lines = [*map(paint.held, lines[:-1]), paint.first(lines[-1])]
    for family, group in itertools.groupby(measured, key=lambda row: row.family):
        lines.append(paint.first(f"{family}:"))
        lines += [_line(row, width, paint) for row in group]
    return "\n".join(lines)


def totals(faulty: list[Row], correct: list[Row], seconds: float, paint: Paint = PLAIN) -> str:
    """What the table comes to, and what should not be."""
    survivors = [row.name for row in faulty if row.survived]
    lines = [
        f"{len(faulty) - len(survivors)} of {len(faulty)} faults killed by {len(PROPERTIES)} properties in {seconds:.1f} s; "
        f"{sum(row.cases == 1 for row in faulty)} of them by the first random case, "
        + ", ".join(f"{sum(row.symptom == word for row in faulty)} {word}" for word in ("silent", "loud", "either"))
        + ".",
        f"{sum(not row.kills for row in correct)} of {len(correct)} correct ones (attn and the equivalents) killed by nothing.",
    ]
    lines += [paint.wrong(f"SURVIVED: {name}") for name in survivors]
    for row in correct:
        for kill in row.kills:
            lines.append(paint.wrong(f"FLAGGED: {row.name} by {kill.property} on {kill.case!r}: {kill.evidence}"))
    return "\n".join(lines)


def _legend() -> str:
    return ", ".join(f"{len(names)} {family}" for family, names in _FAMILIES.items())


def _line(row: Row, width: int, paint: Paint) -> str:
    killers = {kill.property for kill in row.kills}
    found = row.severity
    error, none = cell(found), f"{100 * found.unusable / found.cases:.0f}" if found and found.unusable else "."
    cells = "".join(_cell(names, killers, row.first, paint) for names in _FAMILIES.values())
    name = f"{row.name:<{width - 2}}"
    line = f"{row.symptom:<7} {error:>6} {none:>4} {row.cases or '-':>5} {len(killers):>7}"
    return f"  {paint.wrong(name) if row.survived else name} {line} {cells}"


def _cell(names: Collection[str], killers: Collection[str], first: Collection[str], paint: Paint) -> str:
    """How many of a family kill."""
    count = sum(name in killers for name in names)
    write = paint.first if set(names) & set(first) else paint.killed if count else paint.held
    return write(f"{count or '.':>5}")
