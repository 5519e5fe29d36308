"""The mask helpers, each against a mask written out by hand."""

from __future__ import annotations

import doctest
import re

import pytest
import torch

import attn.masks
from attn import MultiHeadAttention, additive_to_boolean, boolean_to_additive, causal_mask, padding_mask

INF = torch.inf


@pytest.mark.parametrize(
    ("queries", "keys", "want"),
    [
        (3, None, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (1, None, [[1]]),
        (2, 4, [[1, 1, 1, 0], [1, 1, 1, 1]]),  # two new tokens after two old ones: the last query sees the last key
        (1, 3, [[1, 1, 1]]),
        (3, 2, [[0, 0], [1, 0], [1, 1]]),  # aligned at the bottom right: the first query is older than every key
        (0, 2, []),
        (2, 0, [[], []]),
    ],
)
def test_causal(queries: int, keys: int | None, want: list[list[int]]) -> None:
    mask = causal_mask(queries, keys)
    assert mask.dtype == torch.bool
    assert mask.shape == (queries, queries if keys is None else keys)
    assert mask.int().tolist() == want


@pytest.mark.parametrize(("T", "S"), [(2, 4), (4, 2), (3, 3)])
def test_causal_is_aligned_at_the_bottom_right(T: int, S: int) -> None:
    mask = causal_mask(T, S)
    assert all(bool(mask[i, j]) == (j <= i + S - T) for i in range(T) for j in range(S))
    top_left = torch.ones(T, S, dtype=torch.bool).tril()  # what `is_causal` of scaled_dot_product_attention means
    assert torch.equal(mask, top_left) == (T == S)


@pytest.mark.parametrize(("queries", "keys"), [(-1, None), (-1, 2), (2, -1)])
def test_causal_refuses_negative_lengths(queries: int, keys: int | None) -> None:
    said = f"causal_mask: lengths cannot be negative, got queries={queries}, keys={queries if keys is None else keys}"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        causal_mask(queries, keys)


def test_masks_are_made_where_they_are_wanted() -> None:
    assert causal_mask(2, device="meta").device.type == "meta"
    lengths, mask = torch.tensor([1, 2]), causal_mask(2)
    with torch.device("meta"):  # where anything lands that is not told where to go
        assert padding_mask(lengths, 2).device.type == "cpu"
        assert boolean_to_additive(mask, torch.float32).device.type == "cpu"


def test_padding() -> None:
    mask = padding_mask(torch.tensor([2, 0, 3]), 3)
    assert mask.dtype == torch.bool
    assert mask.shape == (3, 1, 1, 3)
    assert mask.flatten(1).int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert padding_mask(torch.tensor([], dtype=torch.int64), 3).shape == (0, 1, 1, 3)


def test_padding_fits_an_attention() -> None:
    _, weights = MultiHeadAttention(4, 2)(torch.randn(2, 3, 4), padding_mask(torch.tensor([1, 2]), 3))
    seen = torch.tensor([[1, 0, 0], [1, 1, 0]], dtype=torch.bool)
    assert torch.equal(weights > 0, seen[:, None, None, :].expand(2, 2, 3, 3))


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        (torch.tensor([[1]]), "padding_mask: lengths must have shape [B], got [1, 1]"),
        (torch.tensor(1), "padding_mask: lengths must have shape [B], got []"),
        (torch.tensor([1.0]), "padding_mask: lengths must be integers, got torch.float32"),
        (torch.tensor([True]), "padding_mask: lengths must be integers, got torch.bool"),
        (torch.tensor([3, -1]), "padding_mask: every length must lie in [0, keys=3], got [3, -1]"),
        (torch.tensor([4, 0]), "padding_mask: every length must lie in [0, keys=3], got [4, 0]"),
        (torch.tensor([4]), "padding_mask: every length must lie in [0, keys=3], got [4]"),
    ],
)
def test_padding_refuses(lengths: torch.Tensor, said: str) -> None:
    with pytest.raises(TypeError if "integers" in said else ValueError, match=f"^{re.escape(said)}$"):
        padding_mask(lengths, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_conversions_are_each_other_undone(dtype: torch.dtype) -> None:
    mask = torch.tensor([[True, False], [False, False]])
    additive = boolean_to_additive(mask, dtype)
    assert additive.dtype == dtype
    assert additive.tolist() == [[0.0, -INF], [-INF, -INF]]
    assert torch.equal(additive_to_boolean(additive), mask)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_boolean_to_additive_refuses(dtype: torch.dtype) -> None:
    said = f"boolean_to_additive: mask must be boolean (True = may attend), got {dtype}"
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        boolean_to_additive(torch.ones(2, 2, dtype=dtype), torch.float32)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_additive_to_boolean_refuses_what_is_not_floating(dtype: torch.dtype) -> None:
    said = f"additive_to_boolean: mask must be floating (0 or -inf), got {dtype}"
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        additive_to_boolean(torch.ones(2, 2, dtype=dtype))


@pytest.mark.parametrize("value", [1.0, -1e9, INF, torch.nan])
def test_additive_to_boolean_refuses_a_bias(value: float) -> None:
    said = "additive_to_boolean: mask holds values other than 0 and -inf: it is a bias, keep it additive"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        additive_to_boolean(torch.tensor([0.0, -INF, value]))


def test_the_examples_in_the_docstrings() -> None:
    failed, tried = doctest.testmod(attn.masks)
    assert failed == 0 and tried > 0
