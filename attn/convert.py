"""Weights to and from `torch.nn.MultiheadAttention`, which keeps them in the same order: rows of q, then k, then v."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attn.multihead import MultiHeadAttention


def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention:
    """Return a `MultiHeadAttention` with a copy of the weights, dropout and mode of `module`.

    Whatever `module.batch_first` says, the result takes `[B, T, d]`; its boolean masks say True = may attend, the opposite of
    the module's. Raises ValueError for what it has no place for: kdim or vdim other than embed_dim, add_bias_kv, add_zero_attn.
    """
    # A packed in_proj_weight is what nn.MultiheadAttention has exactly when kdim = vdim = embed_dim.
    if module.in_proj_weight is None:
        raise ValueError(f"from_torch: kdim={module.kdim} and vdim={module.vdim} must equal embed_dim={module.embed_dim}")
    if module.bias_k is not None or module.add_zero_attn:
        raise ValueError("from_torch: add_bias_kv and add_zero_attn add keys that MultiHeadAttention does not have")
    weight = module.in_proj_weight
    attention = MultiHeadAttention(
        module.embed_dim,
        module.num_heads,
        bias=module.in_proj_bias is not None,
        dropout=module.dropout,
        device=weight.device,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        attention.in_proj.weight.copy_(weight)
        attention.out_proj.weight.copy_(module.out_proj.weight)
        if module.in_proj_bias is not None:
            attention.in_proj.bias.copy_(module.in_proj_bias)
            attention.out_proj.bias.copy_(module.out_proj.bias)
    return attention.train(module.training)


def to_torch(attention: MultiHeadAttention) -> nn.MultiheadAttention:
    """Return a `torch.nn.MultiheadAttention(batch_first=True)` with a copy of the weights, dropout and mode of `attention`.

    It has no grouped heads: a key/value head that serves a group is copied for each query head of the group.
    """
    weight, bias = attention.in_proj.weight, attention.in_proj.bias
    module = nn.MultiheadAttention(
        attention.d_model,
        attention.num_heads,
        dropout=attention.dropout,
        bias=bias is not None,
        batch_first=True,
        device=weight.device,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        module.in_proj_weight.copy_(_repeat_kv_rows(attention, weight))
        module.out_proj.weight.copy_(attention.out_proj.weight)
        if bias is not None:
            module.in_proj_bias.copy_(_repeat_kv_rows(attention, bias))
            module.out_proj.bias.copy_(attention.out_proj.bias)
    return module.train(attention.training)


def _repeat_kv_rows(attention: MultiHeadAttention, rows: Tensor) -> Tensor:
    """Repeat the rows of each key/value head of a packed projection: [d + 2*g*d_head, ...] -> [3d, ...]."""
    q, k, v = rows.split(attention.widths)
    group = attention.num_heads // attention.num_kv_heads
    k, v = (x.unflatten(0, (-1, attention.d_head)).repeat_interleave(group, dim=0).flatten(0, 1) for x in (k, v))
    return torch.cat([q, k, v])
