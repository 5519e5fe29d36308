"""That a fault never shows with what people test with is said only where it is so."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from faults.catalog import catalog, find
from faults.fault import subject_of
from faults.lessons.examples import smallest_case
from faults.lessons.habits import HABITS, blind_habits
from properties.case import Case, sample

CASES = 50
HABIT = {habit.words: habit for habit in HABITS}


@pytest.mark.parametrize("name", catalog())
def test_no_case_contradicts_what_is_said(name: str) -> None:
    fault = find(name)
    fields = subject_of(fault).supports.fields()
    random = Random(name)
    drawn = [case for _ in range(CASES) if fault.visible(case := sample(random, fields))]
    for words in blind_habits(fault):
        habit = HABIT[words]
        assert not habit.holds(smallest_case(fault)), words
        pinned = [changed for case in drawn for changed in habit.pinned(case, random, fields)]
        pinned += itertools.islice(habit.cases(random, fields), CASES)
        assert pinned and all(map(habit.holds, pinned))
        assert [case for case in pinned if fault.visible(case)] == [], words


@pytest.mark.parametrize(
    ("name", "not_said"),
    [
        ("unexpanded-kv-heads", "a power of two of heads"),  # Case(num_heads=4, num_kv_heads=2)
        ("cache-for-every-query-head", "a power of two of heads"),
        ("mask-or-flag", "contiguous inputs"),  # rare: on a few contiguous ones it does not show by chance
        ("context-ignored", "as many keys as queries"),
        ("queries-from-the-context", "as many keys as queries"),
        ("detached-mask", "masks that hide nothing"),  # one of numbers to add has a gradient
        ("detached-keys", "one token"),  # with a context of two
    ],
)
def test_what_only_seemed_so_is_not_said(name: str, not_said: str) -> None:
    assert not_said not in blind_habits(find(name))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("context-ignored", "self-attention"),
        ("detached-keys", "a single key"),
        ("transposed-mask", "one token that attends to itself"),
        ("unexpanded-kv-heads", "one head"),
        ("mask-never-used", "boolean masks that hide nothing"),
    ],
)
def test_what_is_so_is_said(name: str, said: str) -> None:
    assert said in blind_habits(find(name))


def test_nothing_is_said_twice() -> None:
    """Where there is one token there is one that attends to itself."""
    said = blind_habits(find("causal-off-by-one"))
    assert "one token" not in said or "one token that attends to itself" not in said
    said = blind_habits(find("causal-top-left"))
    assert "as many keys as queries" in said and "self-attention" not in said


def test_a_habit_may_be_met_in_several_ways() -> None:
    habit = HABIT["as many keys as queries"]
    assert habit.holds(Case(queries=3, keys=3)) and habit.holds(Case(queries=3)) and not habit.holds(Case(queries=3, keys=2))
    assert HABIT["one head"].holds(Case(num_heads=1, num_kv_heads=1))
    assert HABIT["a single key"].holds(Case(queries=2, keys=1)) and not HABIT["a single key"].holds(Case(queries=1, keys=2))
