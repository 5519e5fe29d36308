"""Rotary positions, against rotations that are written out, and complex numbers."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from attn import MultiHeadAttention, RotaryAttention


def attention(d_model: int = 16, num_heads: int = 2, **options: Any) -> RotaryAttention:
    torch.manual_seed(0)
    return RotaryAttention(d_model, num_heads, dtype=torch.float64, **options)


def tokens(batch: int = 2, length: int = 5, d_model: int = 16) -> Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def turned(head: list[float], place: float, width: int, interleaved: bool, base: float) -> list[float]:
    """One head of one token, its pairs turned as complex numbers."""
    turned = list(head)
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + width // 2)
        angle = place / base ** (2 * i / width)
        both = complex(head[a], head[b]) * complex(math.cos(angle), math.sin(angle))
        turned[a], turned[b] = both.real, both.imag
    return turned


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [None, 2, 6, 8])
@pytest.mark.parametrize(("base", "stretch"), [(10_000.0, 1.0), (100.0, 1.0), (10_000.0, 4.0)])
def test_every_pair_turns_by_its_angle(width: int | None, interleaved: bool, base: float, stretch: float) -> None:
    layer = attention(rotary_width=width, interleaved=interleaved, base=base, stretch=stretch)
    x = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    positions = torch.tensor([[0, 1, 5, 300], [7, 8, 9, 20]])
    got = layer.rotate(x, positions)
    assert got.dtype == x.dtype
    want = [
        [
            [turned(x[b, h, t].tolist(), int(positions[b, t]) / stretch, width or 8, interleaved, base) for t in range(4)]
            for h in range(3)
        ]
        for b in range(2)
    ]
    assert_close(got, torch.tensor(want, dtype=torch.float64))


def test_one_row_of_positions_is_for_all_samples() -> None:
    layer = attention()
    row = torch.tensor([3, 4, 8, 9, 9])
    assert layer.angles(row).shape == (1, 5, 4)
    assert layer.angles(row.expand(2, -1)).shape == (2, 1, 5, 4)
    assert_close(layer(tokens(), positions=row), layer(tokens(), positions=row.expand(2, -1)))


def test_the_frequencies_of_the_paper() -> None:
    assert_close(attention().frequencies(torch.device("cpu")), torch.tensor([1, 0.1, 0.01, 0.001], dtype=torch.float64))
    some = attention(rotary_width=4, base=16.0).frequencies(torch.device("cpu"))
    assert_close(some, torch.tensor([1, 0.25], dtype=torch.float64))


@pytest.mark.parametrize("interleaved", [False, True])
def test_what_is_taken_apart_is_put_together_again(interleaved: bool) -> None:
    layer = attention(interleaved=interleaved)
    x = torch.arange(6.0)
    a, b = layer.pair(x)
    assert (a.tolist(), b.tolist()) == (([0, 2, 4], [1, 3, 5]) if interleaved else ([0, 1, 2], [3, 4, 5]))
    assert torch.equal(layer.unpair(a, b), x)


@pytest.mark.parametrize("is_causal", [False, True])
def test_it_is_attention_with_turned_queries_and_keys(is_causal: bool) -> None:
    layer, x = attention(num_kv_heads=1), tokens()
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2, 1] = False
    q, k, v = (layer.split_heads(part) for part in layer.in_proj(x).split([16, 8, 8], dim=-1))
    positions = torch.arange(5)
    k, v = layer.rotate(k, positions).expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1)
    seen = mask.tril() if is_causal else mask
    heads = torch.nn.functional.scaled_dot_product_attention(layer.rotate(q, positions), k, v, attn_mask=seen)
    output, weights = layer(x, mask, is_causal=is_causal)
    assert_close(output, layer.out_proj(heads.transpose(1, 2).flatten(2)))
    assert weights.shape == (2, 2, 5, 5)
    assert torch.equal(weights > 0, seen.expand(2, 2, -1, -1))


def test_the_flag_is_off_unless_it_is_given() -> None:
    assert (attention()(tokens())[1] > 0).all()


def test_positions_are_counted_from_zero() -> None:
    layer, x = attention(), tokens()
    assert_close(layer(x), layer(x, positions=torch.arange(5)), rtol=0, atol=0)
    assert_close(layer(x)[0], layer(x, positions=torch.arange(5) + 100)[0])  # what counts is the distance
    assert not torch.allclose(layer(x)[0], layer(x, positions=2 * torch.arange(5))[0])


def test_at_one_position_it_is_attention_without() -> None:
    layer, x = attention(), tokens()
    plain = MultiHeadAttention(16, 2, dtype=torch.float64)
    plain.load_state_dict(layer.state_dict())
    assert_close(layer(x, positions=torch.full((5,), 11)), plain(x))


def test_values_are_not_turned() -> None:
    layer = attention()
    q, k, v = torch.randn(3, 1, 2, 4, 8, dtype=torch.float64).unbind()
    positions = torch.arange(4)
    placed = layer.place(q, k, v, positions)
    assert torch.equal(placed[0], layer.rotate(q, positions))
    assert torch.equal(placed[1], layer.rotate(k, positions))
    assert placed[2] is v


def test_angles_are_not_rounded_to_half_precision() -> None:
    layer = RotaryAttention(4, 1, dtype=torch.bfloat16)
    assert layer.angles(torch.tensor([257])).tolist() == [[[257.0, 2.57]]]
    got = layer.rotate(torch.tensor([[[[1.0, 0.0, 0.0, 0.0]]]], dtype=torch.bfloat16), torch.tensor([257]))
    assert got.dtype == torch.bfloat16
    want = torch.tensor([math.cos(257), 0.0, math.sin(257), 0.0], dtype=torch.bfloat16)
    assert torch.equal(got[0, 0, 0], want)


def test_what_it_is_built_with() -> None:
    layer = RotaryAttention(16, 2, num_kv_heads=1, dropout=0.25, bias=True)
    assert (layer.rotary_width, layer.interleaved, layer.base, layer.stretch) == (8, False, 10_000.0, 1.0)
    assert (layer.num_kv_heads, layer.dropout) == (1, 0.25)
    assert layer.in_proj.bias is not None
    layer = RotaryAttention(16, 2, rotary_width=4, interleaved=True, base=5.0, stretch=2.0)
    assert (layer.rotary_width, layer.interleaved, layer.base, layer.stretch) == (4, True, 5.0, 2.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rotary_width": 3}, "rotary_width must be even and at most d_head=8, got 3: features turn in pairs"),
        ({"rotary_width": 10}, "rotary_width must be even and at most d_head=8, got 10: features turn in pairs"),
        ({"rotary_width": 0}, "rotary_width must be even and at most d_head=8, got 0: features turn in pairs"),
        ({"rotary_width": -2}, "rotary_width must be even and at most d_head=8, got -2: features turn in pairs"),
        ({"base": 0.0}, "base must be positive, got 0.0"),
        ({"base": -1.0}, "base must be positive, got -1.0"),
        ({"stretch": 0.0}, "stretch must be positive, got 0.0"),
        ({"stretch": math.nan}, "stretch must be positive, got nan"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        RotaryAttention(16, 2, **options)


def test_an_odd_head_is_refused() -> None:
    said = "rotary_width must be even and at most d_head=5, got 5: features turn in pairs"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        RotaryAttention(10, 2)


def test_options_at_the_edge_are_not_refused() -> None:
    layer = RotaryAttention(4, 2, rotary_width=2, base=0.5, stretch=0.25)
    assert (layer.rotary_width, layer.base, layer.stretch) == (2, 0.5, 0.25)


@pytest.mark.parametrize(
    ("positions", "error", "said"),
    [
        ([0, 1, 2, 3, 4], TypeError, "positions must be a tensor of whole numbers, got list"),
        (torch.arange(5.0), TypeError, "positions must be whole numbers, got torch.float32: convert them with .long()"),
        (torch.ones(5).bool(), TypeError, "positions must be whole numbers, got torch.bool: convert them with .long()"),
        (torch.arange(4), ValueError, "positions must have shape [T] or [B, T] = [2, 5], got [4]"),
        (torch.ones(1, 5).long(), ValueError, "positions must have shape [T] or [B, T] = [2, 5], got [1, 5]"),
        (torch.tensor(0), ValueError, "positions must have shape [T] or [B, T] = [2, 5], got []"),
    ],
)
def test_positions_that_are_refused(positions: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        attention()(tokens(), positions=positions)


def test_inputs_are_checked() -> None:
    said = "x must have shape [B, T, d_model], got [5, 16]: add or remove axes"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        attention()(tokens()[0])
    said = "attn_mask must be a tensor, got str"
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        attention()(tokens(), "causal")


def test_everything_is_made_where_the_tokens_are() -> None:
    layer, x = attention(), tokens()
    want = layer(x)[0]
    with torch.device("meta"):  # where anything lands that is not told where to go
        got = layer(x)[0]
    assert got.device.type == "cpu"
    assert torch.equal(got, want)
