"""How much each property adds: a smallest set that kills every fault, what only one property kills, which ones are first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from faults.matrix import Row

Killers = frozenset[str]  # the properties that kill a fault


@dataclass(frozen=True)
class Standing:
    """What one property does for the whole."""

    name: str
    kills: int  # how many faults
    alone: tuple[str, ...]  # the faults that no other property kills
    first: int  # how many faults it kills on the first random case on which any property does; several can be first

    @property
    def needs_a_reason(self) -> bool:
        """Is it never alone and never first? Then the others would do as well, and as soon."""
        return not self.alone and not self.first


def standings(rows: Sequence[Row], properties: Sequence[str]) -> list[Standing]:
    """Count for each of the properties, in their order."""
    killers = killers_of(rows)
    return [
        Standing(
            name,
            sum(name in names for names in killers.values()),
            tuple(fault for fault, names in killers.items() if names == {name}),
            sum(name in row.first and name in killers[row.name] for row in rows),
        )
        for name in properties
    ]


def killers_of(rows: Sequence[Row]) -> dict[str, Killers]:
    """What kills each fault."""
    return {row.name: frozenset(kill.property for kill in row.kills) for row in rows}


def smallest_set(killers: Mapping[str, Collection[str]], properties: Sequence[str]) -> list[str]:
    """Return a smallest set of properties that kills every fault that any kills: always the same one, in their order.

    This is minimum set cover. It is hard in general and quick for a matrix like ours, where most faults follow from others and
    most properties kill less than another does: what remains after taking these away is searched, from a lower bound upwards.
    """
    rank = {name: number for number, name in enumerate(properties)}
    rows = {frozenset(names) for names in killers.values() if names}
    chosen: set[str] = set()
    while True:
        before = rows
        forced = {name for row in rows if len(row) == 1 for name in row}
        chosen |= forced
        rows = {row for row in rows if not row & forced}
        rows = {row for row in rows if not any(other < row for other in rows)}  # what kills the other kills this
        rows = {row - _outdone(rows, rank) for row in rows}
        if rows == before:
            break
    size = _at_least(rows, rank)
    while (found := _search(rows, size, rank)) is None:
        size += 1
    return sorted(chosen | found, key=lambda name: rank[name])


def _outdone(rows: Collection[Killers], rank: Mapping[str, int]) -> set[str]:
    """The properties that kill nothing which some other one does not kill; of equals, all but the earliest."""
    kills = {name: frozenset(row for row in rows if name in row) for name in {name for row in rows for name in row}}
    return {
        name
        for name, own in kills.items()
        if any(own < more or (own == more and rank[other] < rank[name]) for other, more in kills.items())
    }


def _at_least(rows: Collection[Killers], rank: Mapping[str, int]) -> int:
    """A lower bound: so many faults have no killer in common."""
    taken: set[str] = set()
    number = 0
    for row in _in_order(rows, rank):
        if not row & taken:
            taken |= row
            number += 1
    return number


def _search(rows: Collection[Killers], size: int, rank: Mapping[str, int]) -> set[str] | None:
    """So many properties that kill all of them, or None: the fault with the fewest killers must fall to one of these."""
    if not rows:
        return set()
    kills = Counter(name for row in rows for name in row)
    if _at_least(rows, rank) > size or len(rows) > sum(number for _, number in kills.most_common(size)):
        return None
    for name in sorted(_in_order(rows, rank)[0], key=lambda name: (-kills[name], rank[name])):
        found = _search([row for row in rows if name not in row], size - 1, rank)
        if found is not None:
            return {name, *found}
        rows = [row - {name} for row in rows]  # it is in none
    return None


def _in_order(rows: Collection[Killers], rank: Mapping[str, int]) -> list[Killers]:
    """Those with the fewest killers first; ties by rank, so that nothing depends on how Python orders a set."""
    return sorted(rows, key=lambda row: (len(row), sorted(rank[name] for name in row)))
