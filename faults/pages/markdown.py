"""The kill matrix as a summary in Markdown, as for a job in CI. Nothing in it depends on how long anything took."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence

from faults.catalog import find
from faults.fault import summary_of
from faults.kills import DRAWN
from faults.matrix import Row
from properties.laws import PROPERTIES

SLOWEST = 10


def summary(rows: Sequence[Row]) -> str:
    """Totals, families, what survived or was flagged, and what was the slowest to fall."""
    faulty = [row for row in rows if row.symptom != "correct"]
    correct = [row for row in rows if row.symptom == "correct"]
    survivors, flagged = [row for row in faulty if row.survived], [row for row in correct if row.kills]
    well = not survivors and not flagged
    said = [f"**{len(faulty) - len(survivors)} of {len(faulty)} faults killed** by {len(PROPERTIES)} properties."]
    if correct:
        said.append(
            f"{len(correct) - len(flagged)} of {len(correct)} correct ones (`attn` and the equivalents) killed by nothing."
        )
    said.append("As it should be." if well else "That should not be.")
    parts = ["## Faults of attention, and the properties that notice", " ".join(said)]
    if survivors:
        parts += ["### Survivors", _table(("fault", "family", "what it does"), [_named(row) for row in survivors])]
    if flagged:
        lines = [(f"`{row.name}`", f"`{kill.property}`", _code(repr(kill.case))) for row in flagged for kill in row.kills]
        parts += ["### Correct, and flagged", _table(("subject", "property", "case"), lines)]
    if faulty:
        parts += ["### By family", _by_family(faulty), "### The slowest to fall", _slowest(faulty)]
    return "\n\n".join(parts) + "\n"


def _by_family(faulty: Sequence[Row]) -> str:
    ordered = sorted(faulty, key=lambda row: list(dict.fromkeys(r.family for r in faulty)).index(row.family))
    groups = {family: list(group) for family, group in itertools.groupby(ordered, key=lambda row: row.family)}
    lines = [_line(family, group) for family, group in groups.items()]
    header = ("family", "faults", "killed", "silent", "loud", "either", "by the first case", "killers, median")
    return _table(header, [*lines, _line("**all**", faulty)])


def _line(name: str, group: Sequence[Row]) -> tuple[object, ...]:
    symptoms = [sum(row.symptom == word for row in group) or "" for word in ("silent", "loud", "either")]
    return (
        name,
        len(group),
        sum(not row.survived for row in group),
        *symptoms,
        sum(row.cases == 1 for row in group) or "",
        f"{statistics.median(len(row.kills) for row in group):g}",
    )


def _slowest(faulty: Sequence[Row]) -> str:
    later = [(row.cases, row) for row in faulty if row.cases is not None and row.cases > 1]
    later = sorted(later, key=lambda pair: -pair[0])[:SLOWEST]
    if not later:
        return "Each fell to the first random case."
    lines = [(f"`{row.name}`", row.family, cases, _few(row.first)) for cases, row in later]
    drawn = (
        f"Random cases drawn up to the first on which a property fails, of {DRAWN} at most, whether the fault can show or not."
    )
    return f"{drawn}\n\n{_table(('fault', 'family', 'cases', 'killed there by'), lines)}"


def _few(names: Sequence[str]) -> str:
    others = len(names) - 1
    return f"`{names[0]}`" + (f" and {others} other{'s' if others > 1 else ''}" if others else "")


def _named(row: Row) -> tuple[str, str, str]:
    return f"`{row.name}`", row.family, summary_of(find(row.name)).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(str, row))} |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])
