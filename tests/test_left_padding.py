"""Left padding: the positions without it, and that it changes nothing, in one pass and through the cache."""

from __future__ import annotations

import doctest
import re

import pytest
import torch

import attn.left_padding
from attn import DecoderAttention, RotaryAttention, positions_without_padding


@pytest.mark.parametrize(
    ("real", "want"),
    [
        ([[1, 1, 1]], [[0, 1, 2]]),
        ([[0, 0, 1, 1]], [[0, 0, 0, 1]]),
        ([[0, 1, 1, 1], [0, 0, 0, 1]], [[0, 0, 1, 2], [0, 0, 0, 0]]),  # each sample by itself
        ([[1, 1, 0]], [[0, 1, 1]]),
        ([[0, 0]], [[0, 0]]),
        ([[1]], [[0]]),
    ],
)
def test_positions_are_counted_from_the_first_real_token(real: list[list[int]], want: list[list[int]]) -> None:
    got = positions_without_padding(torch.tensor(real, dtype=torch.bool))
    assert got.tolist() == want
    assert got.dtype == torch.long


def test_none_at_all() -> None:
    assert positions_without_padding(torch.ones(0, 3, dtype=torch.bool)).shape == (0, 3)


@pytest.mark.parametrize(
    ("real", "given"),
    [
        (torch.ones(1, 2), "torch.float32 [1, 2]"),
        (torch.ones(1, 2, dtype=torch.long), "torch.int64 [1, 2]"),
        (torch.ones(2, dtype=torch.bool), "torch.bool [2]"),
        (torch.ones(1, 1, 1, 2, dtype=torch.bool), "torch.bool [1, 1, 1, 2]"),
    ],
)
def test_anything_else_is_refused(real: torch.Tensor, given: str) -> None:
    message = f"positions_without_padding: real must be boolean [B, S], got {given}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        positions_without_padding(real)


LENGTHS = (2, 5, 4)  # of three samples, padded at the left to the longest


@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("split", [[5], [1, 1, 1, 1, 1], [3, 1, 1], [2, 3]])
@pytest.mark.parametrize("explicit", [True, False])
def test_left_padding_changes_nothing(window: int | None, split: list[int], explicit: bool) -> None:
    attention = DecoderAttention(8, 2, window=window, dtype=torch.float64)
    x = torch.randn(len(LENGTHS), 5, 8, dtype=torch.float64)
    real = torch.arange(5) >= 5 - torch.tensor(LENGTHS)[:, None]
    positions = positions_without_padding(real)
    mask = real[:, None, None, :]
    cache = attention.new_cache(len(LENGTHS))
    outputs, end = [], 0
    for n in split:
        begin, end = end, end + n
        given = positions[:, begin:end] if explicit else None
        outputs.append(attention(x[:, begin:end], mask[..., :end], positions=given, cache=cache)[0])
    for padded in (torch.cat(outputs, dim=1), attention(x, mask, positions=positions if explicit else None)[0]):
        for b, length in enumerate(LENGTHS):
            torch.testing.assert_close(padded[b, -length:], attention(x[b : b + 1, -length:])[0][0])


def test_padding_has_a_position_that_exists() -> None:
    """What comes of it is seen by nobody, and yet it is computed."""
    attention = RotaryAttention(8, 2, dtype=torch.float64)
    real = torch.tensor([[False, True, True]])
    output, _ = attention(
        torch.randn(1, 3, 8, dtype=torch.float64), real[:, None, None], positions=positions_without_padding(real)
    )
    assert output.isfinite().all()


def test_the_example() -> None:
    assert doctest.testmod(attn.left_padding).failed == 0
