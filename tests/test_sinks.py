"""Sinks, against their formula and against a key of their own."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from by_hand import B, T, combined, d, h, layer_and_tokens, padding, projected, scaled_dot_products

from attn import SinkAttention


def test_the_formula() -> None:
    layer, x = layer_and_tokens(SinkAttention)
    exp = scaled_dot_products(layer, x).exp()
    want = exp / (layer.sinks.exp()[:, None, None] + exp.sum(-1, keepdim=True))
    output, weights = layer(x)
    assert weights.shape == (B, h, T, T)
    torch.testing.assert_close(weights, want)
    torch.testing.assert_close(output, combined(layer, x, want))


def test_torch_agrees_with_a_key_for_the_sink() -> None:
    layer, x = layer_and_tokens(SinkAttention)
    q, k, v = projected(layer, x)
    # One more key and value of zeros, and a bias that gives this key the score of the sink.
    bias = F.pad(torch.zeros(h, T, T, dtype=torch.float64), (0, 1)) + F.pad(layer.sinks.detach()[:, None, None], (T, 0))
    heads = F.scaled_dot_product_attention(q, F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), attn_mask=bias)
    want = F.linear(heads.transpose(1, 2).flatten(2), layer.out_proj.weight, layer.out_proj.bias)
    torch.testing.assert_close(layer(x)[0], want)


def test_of_equal_scores_the_sink_takes_its_share() -> None:
    layer, x = layer_and_tokens(SinkAttention)
    with torch.no_grad():
        layer.in_proj.weight.zero_()
        layer.in_proj.bias.zero_()
    share = layer(x, is_causal=True)[1].sum(-1)  # [B, h, T]
    seen = torch.arange(1, T + 1)
    torch.testing.assert_close(share, (seen / (seen + layer.sinks.exp()[:, None])).expand(B, h, T))


def test_they_begin_at_zero_and_are_one_for_each_head() -> None:
    layer = SinkAttention(6, 3, device="cpu", dtype=torch.bfloat16)
    assert layer.sinks.tolist() == [0.0, 0.0, 0.0]
    assert layer.sinks.dtype == torch.bfloat16
    assert layer.sinks.requires_grad and "sinks" in dict(layer.named_parameters())
    assert SinkAttention(6, 3, device="meta").sinks.device.type == "meta"


def test_a_mask_hides_keys_and_never_the_sink() -> None:
    layer, x = layer_and_tokens(SinkAttention)
    mask = padding([1, 0, 1, 1, 1], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1])
    exp = scaled_dot_products(layer, x).exp() * mask
    torch.testing.assert_close(layer(x, mask)[1], exp / (layer.sinks.exp()[:, None, None] + exp.sum(-1, keepdim=True)))


def test_an_empty_row_gives_everything_to_the_sink() -> None:
    layer, x = layer_and_tokens(SinkAttention)
    mask = torch.ones(T, T, dtype=torch.bool)
    mask[2] = False
    x.requires_grad_()
    output, weights = layer(x, mask)
    assert not weights[:, :, 2].any()
    assert weights[:, :, 3].all()
    assert torch.equal(output[:, 2], layer.out_proj.bias.expand(B, d))
    gradients = torch.autograd.grad(output.sum(), [x, *layer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_no_sink_is_none() -> None:
    layer, x = layer_and_tokens(SinkAttention)
    with torch.no_grad():
        layer.sinks.fill_(-math.inf)
    torch.testing.assert_close(layer(x)[1], scaled_dot_products(layer, x).softmax(-1))


def test_a_large_sink_overflows_nothing() -> None:
    layer, x = layer_and_tokens(SinkAttention)
    with torch.no_grad():
        layer.sinks.fill_(1e4)
    assert not layer(x)[1].any()


def test_it_learns() -> None:
    layer, x = layer_and_tokens(SinkAttention)
    layer(x)[1].sum().backward()
    assert (layer.sinks.grad < 0).all()  # the larger the sink, the less is left


def test_the_options_of_the_plain_attention_are_its_own() -> None:
    layer = SinkAttention(6, 3, bias=True, num_kv_heads=1, dropout=0.5, dtype=torch.bfloat16)
    assert (layer.d_model, layer.num_heads, layer.num_kv_heads, layer.dropout) == (6, 3, 1, 0.5)
    assert layer.in_proj.bias is not None
    assert layer.in_proj.weight.dtype == torch.bfloat16
