"""The soft cap, against its formula."""

from __future__ import annotations

import math
import re

import pytest
import torch
from by_hand import B, T, attended, combined, h, layer_and_tokens, padding, scaled_dot_products

from attn import SoftCapAttention


@pytest.mark.parametrize("cap", [0.5, 2.0, 50])
def test_the_formula(cap: float) -> None:
    layer, x = layer_and_tokens(SoftCapAttention, soft_cap=cap)
    assert layer.soft_cap == cap
    want = (cap * (scaled_dot_products(layer, x) / cap).tanh()).softmax(-1)
    output, weights = layer(x)
    torch.testing.assert_close(weights, want)
    torch.testing.assert_close(output, combined(layer, x, want))


def test_the_cap_itself() -> None:
    layer = SoftCapAttention(4, 2, soft_cap=2.0)
    scores = torch.tensor([0.0, 1.0, -1.0, 1000.0, -1000.0, math.inf, -math.inf], dtype=torch.float64)
    half = 2 * math.tanh(0.5)
    torch.testing.assert_close(layer.cap(scores), torch.tensor([0.0, half, -half, 2.0, -2.0, 2.0, -2.0], dtype=torch.float64))


def test_a_mask_hides_and_biases_what_was_capped() -> None:
    layer, x = layer_and_tokens(SoftCapAttention, soft_cap=0.5)
    capped = 0.5 * (scaled_dot_products(layer, x) / 0.5).tanh()
    mask = padding([1, 0, 1, 1, 1], [1, 1, 0, 1, 1], [0, 1, 1, 1, 1]).expand(B, h, T, T)
    weights = layer(x, mask)[1]
    assert torch.equal(weights > 0, mask)
    torch.testing.assert_close(weights, capped.masked_fill(~mask, -math.inf).softmax(-1))
    bias = 3 * torch.randn(T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(layer(x, bias)[1], (capped + bias).softmax(-1))
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    torch.testing.assert_close(layer(x, is_causal=True)[1], capped.masked_fill(~causal, -math.inf).softmax(-1))


def test_no_odds_beyond_the_cap() -> None:
    layer, x = layer_and_tokens(SoftCapAttention, soft_cap=0.5)
    weights = layer(100 * x)[1]
    odds = weights.amax(-1) / weights.amin(-1)
    assert odds.max() <= math.e * (1 + 1e-12)  # exp(0.5 - (-0.5))
    assert odds.max() > 2


def test_a_cap_out_of_sight_is_none() -> None:
    layer, x = layer_and_tokens(SoftCapAttention, soft_cap=1e9)
    torch.testing.assert_close(layer(x)[0], attended(layer, x, torch.ones(T, T, dtype=torch.bool)))


@pytest.mark.parametrize("cap", [0, 0.0, -1.0, math.nan])
def test_a_cap_that_is_none(cap: float) -> None:
    said = f"soft_cap must be positive, got {cap}: for no cap, take MultiHeadAttention"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        SoftCapAttention(4, 2, soft_cap=cap)


def test_a_small_cap_is_one() -> None:
    assert SoftCapAttention(4, 2, soft_cap=1e-3).soft_cap == 1e-3


def test_the_options_of_the_plain_attention_are_its_own() -> None:
    layer = SoftCapAttention(6, 3, soft_cap=2.0, bias=True, num_kv_heads=1, dropout=0.5, device="meta", dtype=torch.bfloat16)
    assert (layer.d_model, layer.num_heads, layer.num_kv_heads, layer.dropout) == (6, 3, 1, 0.5)
    assert layer.in_proj.bias is not None
    assert (layer.in_proj.weight.device.type, layer.in_proj.weight.dtype) == ("meta", torch.bfloat16)
