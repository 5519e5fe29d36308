"""What is counted as drawn was drawn, and all that should be comes up."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from attn.multihead import MultiHeadAttention
from faults.subject import subject
from properties import Case
from properties.campaign import asked
from properties.campaign.coverage import COINCIDENCES, ROWS, drawn, expected
from properties.campaign.trial import SEEDS, Trial
from properties.conformance import find
from properties.laws import PROPERTIES


def coincidences(**fields: object) -> set[str]:
    return {*drawn([Case(**fields)], "float64")} & {*COINCIDENCES}  # type: ignore[arg-type]


def test_coincidences_of_sizes() -> None:
    assert coincidences(batch=2, queries=3, keys=4, num_heads=5, d_head=6) == {"T < S", "no coincidence"}
    assert coincidences(batch=1, queries=1, keys=1, num_heads=1, d_head=1) == {
        *("T = S", "T = h", "S = h", "h = d_head", "T = d_head", "B = h", "B = g", "B = T", "B = S"),
        *("B = 1", "T = 1", "S = 1", "h = 1", "d_head = 1"),
    }
    assert coincidences(batch=2, queries=5, keys=4, num_heads=4, num_kv_heads=2, d_head=3) == {"S = h", "B = g", "T > S", "g < h"}
    assert coincidences(batch=3, queries=4, num_heads=2, d_head=4) == {"T = S", "T = d_head"}


def rows_of(case: Case) -> set[str]:
    return {*drawn([case], "float64")} & {*ROWS}


def test_rows() -> None:
    assert rows_of(Case(queries=3, mask="none")) == {"no key hidden"}
    assert rows_of(Case(queries=3, mask="causal")) == {"a hidden key"}
    assert rows_of(Case(queries=1, mask="causal")) == {"no key hidden"}
    assert "an empty row" in rows_of(Case(queries=3, mask="empty"))
    only = [
        seed for seed in range(200) if "only empty rows" in rows_of(Case(batch=1, queries=1, keys=1, mask="empty", seed=seed))
    ]
    assert only


def test_fields_are_counted_by_value() -> None:
    cases = [
        Case(dropout=0.5),
        Case(mask="causal", encoding="additive"),
        Case(mask="causal", layout="strided"),
        Case(soft_cap=5.0),
    ]
    counted = drawn(cases, "bfloat16")
    assert counted["dropout=0.5"] == 1
    assert counted["dropout=0.0"] == 3
    assert counted["mask='causal'"] == 2
    assert counted["encoding='additive'"] == 1
    assert counted["layout='strided'"] == 1
    assert counted["dtype='bfloat16'"] == 4
    assert counted["soft_cap=5.0"] == 1
    assert not any(name.startswith("soft_cap") for name in drawn(cases[:3], "float64")), "only what is not as usual"


def test_nothing_drawn_is_nothing_counted() -> None:
    assert drawn([], "float64") == {}


def test_everything_that_is_expected_comes_up() -> None:
    clean = subject(MultiHeadAttention)
    counted: Counter[str] = Counter()
    laws = [law for law in PROPERTIES if not law.not_applicable(clean)]
    for law in laws:
        counted.update(drawn([law.sample(Random(f"{seed} {law.name}"), clean) for seed in range(SEEDS)], "float64"))
    never = [name for name in expected() if not counted[name]]
    assert not never
    assert len(expected()) == len(set(expected()))


@pytest.mark.parametrize("name", ["T = S", "mask='none'", "dropout=0.0"])
def test_names_are_those_of_files_in_use(name: str) -> None:
    assert name in expected()


def test_a_slow_law_is_asked_on_the_first_seed_of_a_block_alone() -> None:
    one = asked("faults.subject:SUBJECTS")["attn.MultiHeadAttention in float64"]
    for law in ("a_compiled_layer_is_the_layer", "rows_sum_to_one"):
        found: list[Case] = []
        Trial(one, law, 3, 1.0)._result(find(law), one.subject(), found.append)
        assert len(found) == (1 if find(law).slow else SEEDS)
        assert found[0] == find(law).sample(Random(f"{3 * SEEDS} {law}"), one.subject())
