"""QK norm, against its formula and torch's own RMSNorm and attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from by_hand import B, T, combined, d_head, h, layer_and_tokens, padding, projected

from attn import QKNormAttention


def by_hand(layer: QKNormAttention, x: torch.Tensor) -> torch.Tensor:
    """The scores, `[B, h, T, T]`, straight from the formula."""
    q, k, _ = projected(layer, x)
    q = q / (q.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.query_norm.weight
    k = k / (k.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.key_norm.weight
    return torch.einsum("bhtf,bhsf->bhts", q, k) / d_head**0.5


def test_the_formula() -> None:
    layer, x = layer_and_tokens(QKNormAttention)
    want = by_hand(layer, x).softmax(-1)
    output, weights = layer(x)
    torch.testing.assert_close(weights, want)
    torch.testing.assert_close(output, combined(layer, x, want))


def test_torch_agrees() -> None:
    layer, x = layer_and_tokens(QKNormAttention)
    q, k, v = projected(layer, x)
    q = F.rms_norm(q, (d_head,), layer.query_norm.weight, eps=1e-6)
    k = F.rms_norm(k, (d_head,), layer.key_norm.weight, eps=1e-6)
    heads = F.scaled_dot_product_attention(q, k, v)
    want = F.linear(heads.transpose(1, 2).flatten(2), layer.out_proj.weight, layer.out_proj.bias)
    torch.testing.assert_close(layer(x)[0], want)


def test_the_epsilon_counts_where_vectors_are_small() -> None:
    layer, _ = layer_and_tokens(QKNormAttention)
    small = torch.full((1, h, 1, d_head), 1e-3, dtype=torch.float64)  # as large as the root of the epsilon
    q, k = layer.normalise(small, 2 * small)
    torch.testing.assert_close(q, (0.5**0.5 * layer.query_norm.weight).expand_as(q))
    torch.testing.assert_close(k, (0.8**0.5 * layer.key_norm.weight).expand_as(k))


def test_how_long_they_are_does_not_matter() -> None:
    layer, x = layer_and_tokens(QKNormAttention)
    q, k, _ = projected(layer, x)
    for got, want in zip(layer.normalise(1e6 * q, 1e6 * k), layer.normalise(1e9 * q, 1e9 * k), strict=True):
        torch.testing.assert_close(got, want)


def test_a_mask_and_a_flag() -> None:
    layer, x = layer_and_tokens(QKNormAttention)
    mask = padding([1, 0, 1, 1, 1], [1, 1, 0, 1, 1], [1, 1, 1, 1, 1])
    visible = mask & torch.ones(T, T, dtype=torch.bool).tril()
    weights = layer(x, mask, is_causal=True)[1]
    torch.testing.assert_close(weights, by_hand(layer, x).masked_fill(~visible, -torch.inf).softmax(-1))
    assert torch.equal(weights > 0, visible.expand(B, h, T, T))


def test_the_norms_have_a_weight_for_each_feature_of_a_head() -> None:
    layer = QKNormAttention(6, 2, dtype=torch.bfloat16)
    for name in ("query_norm", "key_norm"):
        norm = layer.get_submodule(name)
        assert norm.weight.tolist() == [1.0, 1.0, 1.0]
        assert norm.weight.dtype == torch.bfloat16
        assert norm.eps == 1e-6
        assert QKNormAttention(6, 2, device="meta").get_submodule(name).weight.device.type == "meta"
    assert layer.query_norm is not layer.key_norm
    assert layer.query_norm.weight is not layer.key_norm.weight


def test_the_options_of_the_plain_attention_are_its_own() -> None:
    layer = QKNormAttention(6, 3, bias=True, num_kv_heads=1, dropout=0.5, dtype=torch.bfloat16)
    assert (layer.d_model, layer.num_heads, layer.num_kv_heads, layer.dropout) == (6, 3, 1, 0.5)
    assert layer.in_proj.bias is not None
    assert layer.in_proj.weight.dtype == torch.bfloat16
