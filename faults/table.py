"""The kill matrix as text: faults down, families of properties across."""

from __future__ import annotations

import itertools

from faults.matrix import Row
from faults.severity import cell
from properties.laws import PROPERTIES

_FAMILIES = {family: [p.name for p in group] for family, group in itertools.groupby(PROPERTIES, key=lambda p: p.family)}


def table(measured: list[Row]) -> str:
    """One line a fault: silent or loud, cases drawn up to the first kill, killers, and how many of them in each family."""
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
    for family, group in itertools.groupby(measured, key=lambda row: row.family):
        lines.append(f"{family}:")
        lines += [_line(row, width) for row in group]
    return "\n".join(lines)


def totals(faulty: list[Row], correct: list[Row], seconds: float) -> str:
    """What the table comes to, and what should not be."""
    survivors = [row.name for row in faulty if not row.kills or row.cases is None]
    lines = [
        f"{len(faulty) - len(survivors)} of {len(faulty)} faults killed by {len(PROPERTIES)} properties in {seconds:.1f} s; "
        f"{sum(row.cases == 1 for row in faulty)} of them by the first random case, "
        + ", ".join(f"{sum(row.symptom == word for row in faulty)} {word}" for word in ("silent", "loud", "either"))
        + ".",
        f"{sum(not row.kills for row in correct)} of {len(correct)} correct ones (attn and the equivalents) killed by nothing.",
    ]
    lines += [f"SURVIVED: {name}" for name in survivors]
    for row in correct:
        lines += [f"FLAGGED: {row.name} by {kill.property} on {kill.case!r}: {kill.evidence}" for kill in row.kills]
    return "\n".join(lines)


def _legend() -> str:
    return ", ".join(f"{len(names)} {family}" for family, names in _FAMILIES.items())


def _line(row: Row, width: int) -> str:
    killers = {kill.property for kill in row.kills}
    counts = [sum(name in killers for name in names) for names in _FAMILIES.values()]
    found = row.severity
    error, none = cell(found), f"{100 * found.unusable / found.cases:.0f}" if found and found.unusable else "."
    cells = "".join(f"{count or '.':>5}" for count in counts)
    return f"  {row.name:<{width - 2}} {row.symptom:<7} {error:>6} {none:>4} {row.cases or '-':>5} {len(killers):>7} {cells}"
