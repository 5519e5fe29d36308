"""Attention from the tensors of a layer and a function of torch, for the tests of what stands on top of `MultiHeadAttention`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn import MultiHeadAttention

B, T, h, d_head = 3, 5, 4, 2
d = h * d_head


def layer_and_tokens(kind: type[MultiHeadAttention], **options: Any) -> tuple[Any, Tensor]:
    """A layer of this kind with random parameters, biases and weights of norms among them, and tokens `[B, T, d]`, float64."""
    layer = kind(d, h, bias=True, num_kv_heads=2, dtype=torch.float64, **options)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    return layer, torch.randn(B, T, d, generator=random, dtype=torch.float64)


def projected(layer: MultiHeadAttention, x: Tensor) -> list[Tensor]:
    """Queries, keys and values of every query head, 3 x `[B, h, T, d_head]`."""
    whole = F.linear(x, layer.in_proj.weight, layer.in_proj.bias)
    heads = whole.unflatten(-1, (-1, d_head)).transpose(1, 2)  # [B, h + 2 * g, T, d_head]
    q, k, v = heads.split([h, 2, 2], dim=1)
    return [q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)]


def scaled_dot_products(layer: MultiHeadAttention, x: Tensor) -> Tensor:
    """`[B, h, T, T]`"""
    q, k, _ = projected(layer, x)
    return torch.einsum("bhtf,bhsf->bhts", q, k) / d_head**0.5


def combined(layer: MultiHeadAttention, x: Tensor, weights: Tensor) -> Tensor:
    """The output for these weights, `[B, T, d]`."""
    heads = weights @ projected(layer, x)[2]
    return F.linear(heads.transpose(1, 2).flatten(2), layer.out_proj.weight, layer.out_proj.bias)


def attended(layer: MultiHeadAttention, x: Tensor, mask: Tensor) -> Tensor:
    """The output by `F.scaled_dot_product_attention`, `[B, T, d]`, for a mask that hides no row entirely."""
    heads = F.scaled_dot_product_attention(*projected(layer, x), attn_mask=mask)
    return F.linear(heads.transpose(1, 2).flatten(2), layer.out_proj.weight, layer.out_proj.bias)


def padding(*real: list[int]) -> Tensor:
    """A padding mask `[B, 1, 1, T]`, from rows of 1 for a token and 0 for padding."""
    return torch.tensor(real, dtype=torch.bool)[:, None, None, :]
