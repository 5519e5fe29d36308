"""What people test with, and whether a fault can show there: found by its condition, on cases built to contradict it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from faults.fault import Fault, subject_of
from faults.lessons.examples import smallest_case
from properties.case import FIELDS, Case, sample

Fields = Mapping[str, tuple[Any, ...]]

DRAWN, VISIBLE = 4000, 100  # cases drawn at most to find so many on which it shows
ENOUGH = 40  # cases brought under a habit; fewer say nothing
CASES = 200  # random ones that have the habit


@dataclass(frozen=True)
class Habit:
    """Words that follow "with", and the cases meant: those whose fields take these values, in one of these ways."""

    words: str
    ways: tuple[Fields, ...]

    def holds(self, case: Case) -> bool:
        """Has a case this habit?"""
        return any(all(getattr(case, name) in values for name, values in way.items()) for way in self.ways)

    def cases(self, random: Random, fields: Mapping[str, Any]) -> Iterator[Case]:
        """Random cases that have it, without end; none if the subject takes no such case."""
        ways = [narrowed for way in self.ways if all((narrowed := _narrowed(way, fields)).values())]
        while ways:
            way = random.choice(ways)
            try:
                yield sample(random, {**fields, **way})
            except ValueError:  # such sizes do not go together, or none that are drawn
                ways.remove(way)

    def pinned(self, case: Case, random: Random, fields: Mapping[str, Any]) -> Iterator[Case]:
        """The same case but for what the habit takes to have it."""
        for way in self.ways:
            narrowed = _narrowed(way, fields)
            if all(narrowed.values()):
                try:
                    yield replace(case, **{name: random.choice(values) for name, values in narrowed.items()})
                except ValueError:
                    continue


def _narrowed(way: Fields, fields: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: [value for value in fields.get(name, FIELDS[name]) if value in values] for name, values in way.items()}


def _habit(words: str, *ways: Fields, **fields: tuple[Any, ...]) -> Habit:
    return Habit(words, ways or (fields,))


# Of two of which one is the other and more, the one that is more comes first.
HABITS: tuple[Habit, ...] = (
    _habit("one token", queries=(1,)),
    _habit("a single key", {"queries": (1,), "keys": (None,)}, {"keys": (1,)}),
    _habit("one head", num_heads=(1,), num_kv_heads=(None, 1)),
    _habit("one sample", batch=(1,)),
    _habit("as many keys as queries", {"keys": (None,)}, *({"queries": (n,), "keys": (n,)} for n in FIELDS["queries"])),
    _habit("self-attention", keys=(None,)),
    _habit("one token that attends to itself", queries=(1,), keys=(None,)),
    _habit("masks that hide nothing", {"mask": ("none",)}, {"mask": ("full",), "encoding": ("bool", "additive")}),
    _habit("boolean masks that hide nothing", {"mask": ("none",)}, {"mask": ("full",), "encoding": ("bool",)}),
    _habit("no mask", mask=("none", "is_causal", "prefix", "documents")),
    _habit("boolean masks", encoding=("bool",)),
    _habit("heads of one feature", d_head=(1,)),
    _habit(
        "as many key/value heads as heads",
        {"num_kv_heads": (None,)},
        *({"num_heads": (n,), "num_kv_heads": (n,)} for n in (1, 2)),
    ),
    _habit("no dropout", dropout=(0.0,)),
    _habit("contiguous inputs", layout=("contiguous",)),
    _habit("no window", window=(None,)),
    _habit("a power of two of heads", num_heads=(1, 2, 4)),
    _habit("positions counted from 0", positions=("counted",)),
    _habit("positions that are not stretched", stretch=(1.0,)),
    _habit("one token at a time", chunk=(1,), prefill=(0, 1)),
    _habit("a cache that grows", spare=(None,)),
    _habit("scores of usual size", score_scale=(1.0,)),
)


def blind_habits(fault: type[Fault]) -> list[str]:
    """The habits under which it cannot show; nothing is said of what too few cases support.

    That it shows on none of so many random cases proves little where it shows on few at all. So the cases on which it does show
    are brought under the habit, and nothing else of them is changed.
    """
    fields = subject_of(fault).supports.fields()
    random = Random("0 habits")
    shown = (case for _ in range(DRAWN) if fault.visible(case := sample(random, fields)))
    visible = [case for case in (smallest_case(fault),) if fault.visible(case)]  # of one not blessed it may be none
    visible += itertools.islice(shown, VISIBLE)
    found: list[Habit] = []
    for habit in HABITS:
        if not any(map(habit.holds, visible)) and _hides(habit, fault, visible, fields) and not _within(habit, found, fields):
            found.append(habit)
    return [habit.words for habit in found]


def _hides(habit: Habit, fault: type[Fault], visible: list[Case], fields: Mapping[str, Any]) -> bool:
    random = Random(f"0 {habit.words}")
    brought = 0
    for case in visible:
        for pinned in habit.pinned(case, random, fields):
            if fault.visible(pinned):
                return False
            brought += 1
    if brought < ENOUGH:
        return False
    return not any(map(fault.visible, itertools.islice(habit.cases(random, fields), CASES)))


def _within(habit: Habit, others: list[Habit], fields: Mapping[str, Any]) -> bool:
    """Is it part of one of these, of which all is said already?"""
    cases = list(itertools.islice(habit.cases(Random(0), fields), CASES))
    return bool(cases) and any(all(map(other.holds, cases)) for other in others)
