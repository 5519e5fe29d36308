"""Cases and what is made of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given

from properties.case import MASKS, Case, cases, sample
from properties.inputs import make_inputs


@given(case=cases())
def test_its_line_can_be_pasted_back(case: Case) -> None:
    assert eval(repr(case), {"Case": Case}) == case


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"queries": 0}, "queries must be at least 1, got 0"),
        ({"batch": -1}, "batch must be at least"),
        ({"num_heads": 3, "num_kv_heads": 2}, "num_kv_heads=2 must divide num_heads=3"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"mask": "triangle"}, "mask='triangle' is not one of none, full"),
    ],
)
def test_an_impossible_case_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case(**fields)


def test_an_impossible_restriction_is_refused() -> None:
    with pytest.raises(ValueError, match="no field 'quries'"):
        cases({"quries": (1,)})
    with pytest.raises(ValueError, match="no value of batch is left"):
        sample(Random(0), {"batch": ()})


def test_coincidences_and_unequal_sizes_are_drawn() -> None:
    random = Random(0)
    drawn = [sample(random) for _ in range(500)]
    coincidences = {
        "T = S": lambda c: c.keys == c.queries,
        "T = h": lambda c: c.T == c.num_heads > 1,
        "B = h": lambda c: c.batch == c.num_heads > 1,
        "B = g": lambda c: c.batch == c.g < c.num_heads,
        "T = d_head": lambda c: c.T == c.d_head > 1,
        "B = T": lambda c: c.batch == c.T > 1,
        "T > S": lambda c: c.T > c.S,
        "T < S": lambda c: c.T < c.S,
        "grouped": lambda c: 1 < c.g < c.num_heads,
    }
    for name, holds in coincidences.items():
        assert sum(map(holds, drawn)) >= 5, name


def test_weights_do_not_depend_on_the_numbers_of_tokens() -> None:
    one, other = (make_inputs(Case(queries=n, keys=n + 1, num_heads=2, d_head=2, seed=5)) for n in (1, 4))
    assert torch.equal(one.weights.w_q, other.weights.w_q)


@pytest.mark.parametrize("mask", MASKS)
def test_masks_are_what_they_are_called(mask: str) -> None:
    random = Random(mask)
    for _ in range(50):
        case = replace(sample(random, {"mask": (mask,)}), seed=random.randrange(1000))
        visible = make_inputs(case).visible()
        if mask in ("none", "full"):
            assert visible.all()
        if mask in ("padding", "sample", "head"):
            assert visible.any(-1).all()
            assert case.S == 1 or not visible.all()
        if mask == "empty":
            assert not visible.any(-1).all()
        if "causal" in mask:
            t, s = torch.arange(case.T)[:, None], torch.arange(case.S)
            assert not visible[..., s > t + case.S - case.T].any()


def test_documents_are_in_one_piece_and_numbered_in_no_order() -> None:
    rows = make_inputs(Case(batch=200, queries=4, mask="documents")).documents
    assert rows is not None
    pieces = [[number for t, number in enumerate(row) if t == 0 or number != row[t - 1]] for row in rows.tolist()]
    assert all(len(set(piece)) == len(piece) and set(piece) <= set(range(4)) for piece in pieces)
    pairs = {tuple(piece) for piece in pieces if len(piece) == 2}
    assert {(0, 1), (1, 0)} <= pairs


@pytest.mark.parametrize("mask", ["documents+padding", "prefix+padding"])
def test_padding_is_drawn_apart_from_what_stands_beside_it(mask: str) -> None:
    inputs = make_inputs(Case(batch=400, queries=2, mask=mask))
    assert inputs.mask is not None and inputs.mask.shape == (400, 1, 1, 2)
    if inputs.documents is not None:
        beside = (inputs.documents[:, 0] == inputs.documents[:, 1]).long()
    else:
        assert inputs.prefix is not None
        beside = inputs.prefix
    kinds = {(int(b), *m.flatten().tolist()) for b, m in zip(beside, inputs.mask, strict=True)}
    # The first row hides a key; the others show one or two of two. Each comes with each of what stands beside it.
    assert len(kinds) == 3 * (2 if mask.startswith("documents") else 3)


@pytest.mark.parametrize(
    ("layout", "strides"), [("transposed", (8, 16, 1)), ("strided", (48, 16, 2)), ("contiguous", (24, 8, 1))]
)
def test_layouts_are_laid_out(layout: str, strides: tuple[int, ...]) -> None:
    plain = make_inputs(Case(batch=2, queries=3, num_heads=2, d_head=4)).x
    x = make_inputs(Case(batch=2, queries=3, num_heads=2, d_head=4, layout=layout)).x
    assert x.stride() == strides
    assert torch.equal(x, plain)
