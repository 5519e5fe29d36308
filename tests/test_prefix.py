"""A prefix that sees itself both ways, against masks written out by hand and torch's own attention."""

from __future__ import annotations

import doctest
import re
from typing import Any

import pytest
import torch
from by_hand import B, T, attended, h, layer_and_tokens, padding

import attn.prefix
from attn import PrefixAttention, prefix_mask

PREFIX = torch.tensor([2, 0, 5])


def written_out() -> torch.Tensor:
    """Who sees whom with the prefixes above, `[B, 1, T, T]`."""
    seen = [[[s <= t or s < prefix for s in range(T)] for t in range(T)] for prefix in PREFIX.tolist()]
    return torch.tensor(seen)[:, None]


@pytest.mark.parametrize(
    ("length", "want"),
    [
        (0, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (1, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (2, [[1, 1, 0], [1, 1, 0], [1, 1, 1]]),
        (3, [[1, 1, 1], [1, 1, 1], [1, 1, 1]]),
        (4, [[1, 1, 1], [1, 1, 1], [1, 1, 1]]),
    ],
)
def test_the_mask(length: int, want: list[list[int]]) -> None:
    mask = prefix_mask(torch.tensor([length, 0]), 3)
    assert mask.dtype == torch.bool
    assert mask.shape == (2, 1, 3, 3)
    assert mask[0, 0].int().tolist() == want
    assert mask[1, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_the_mask_is_made_where_the_lengths_are() -> None:
    lengths = torch.tensor([1, 2])
    with torch.device("meta"):  # where anything lands that is not told where to go
        assert prefix_mask(lengths, 3).device.type == "cpu"


def test_torch_agrees() -> None:
    layer, x = layer_and_tokens(PrefixAttention)
    output, weights = layer(x, prefix=PREFIX)
    torch.testing.assert_close(output, attended(layer, x, written_out()))
    assert torch.equal(weights > 0, written_out().expand(B, h, T, T))


def test_beside_a_mask() -> None:
    layer, x = layer_and_tokens(PrefixAttention)
    mask = padding([1, 0, 1, 1, 1], [1, 1, 0, 1, 1], [0, 1, 1, 1, 1])
    output, weights = layer(x, mask, prefix=PREFIX)
    torch.testing.assert_close(output, attended(layer, x, mask & written_out()))
    assert torch.equal(weights > 0, (mask & written_out()).expand(B, h, T, T))
    bias = torch.randn(T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    want = attended(layer, x, bias.masked_fill(~written_out(), -torch.inf))
    torch.testing.assert_close(layer(x, bias, prefix=PREFIX)[0], want)


def test_no_flag_is_no_flag() -> None:
    layer, x = layer_and_tokens(PrefixAttention)
    heads = [layer.split_heads(part) for part in layer.project_in(x, None)]
    unset, none = (layer.attend(*heads, written_out(), flag) for flag in (False, None))
    assert torch.equal(unset[0], none[0]) and torch.equal(unset[1], none[1])


@pytest.mark.parametrize(
    ("prefix", "error", "said"),
    [
        (2, TypeError, "prefix must be a tensor of whole numbers, got int"),
        (torch.ones(3), TypeError, "prefix must be whole numbers, got torch.float32: convert them with .long()"),
        (
            torch.ones(3, dtype=torch.bool),
            TypeError,
            "prefix must be whole numbers, got torch.bool: convert them with .long()",
        ),
        (torch.tensor(2), ValueError, "prefix must have shape [B] = [3], one length a sample, got []"),
        (torch.tensor([2, 2]), ValueError, "prefix must have shape [B] = [3], one length a sample, got [2]"),
        (torch.ones(3, 5, dtype=torch.int64), ValueError, "prefix must have shape [B] = [3], one length a sample, got [3, 5]"),
    ],
)
def test_a_prefix_that_is_refused(prefix: Any, error: type[Exception], said: str) -> None:
    layer, x = layer_and_tokens(PrefixAttention)
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        layer(x, prefix=prefix)


def test_what_else_it_refuses() -> None:
    layer, x = layer_and_tokens(PrefixAttention)
    with pytest.raises(ValueError, match=r"^x must have width d_model=8"):
        layer(x[..., :7], prefix=PREFIX)
    with pytest.raises(ValueError, match=r"does not broadcast to the scores \[B, h, T, S\] = \[3, 4, 5, 5\]"):
        layer(x, torch.ones(T, 3, dtype=torch.bool), prefix=PREFIX)


def test_the_examples_in_the_docstrings() -> None:
    failed, tried = doctest.testmod(attn.prefix)
    assert failed == 0 and tried > 0
