"""What `MultiHeadAttention` refuses, and how it says so: the argument, what was given, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from attn.multihead import MultiHeadAttention


def check_sizes(d_model: int, num_heads: int, num_kv_heads: int, dropout: float) -> None:
    """Raise ValueError or TypeError for sizes, or a dropout, that no attention can have."""
    for name, size in (("d_model", d_model), ("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name} must be an int, got {size!r}")
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if d_model % num_heads != 0:
        raise ValueError(f"d_model={d_model} is not divisible by num_heads={num_heads}: every head needs the same width")
    if num_heads % num_kv_heads != 0:
        raise ValueError(
            f"num_heads={num_heads} is not divisible by num_kv_heads={num_kv_heads}: every key/value head serves a whole group"
        )
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)):
        raise TypeError(f"dropout must be a number, got {dropout!r}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout}")


def check_inputs(attention: MultiHeadAttention, x: Tensor, attn_mask: Tensor | None, context: Tensor | None) -> None:
    """Raise ValueError or TypeError for arguments of `forward` that do not fit the layer or each other."""
    _check_tokens(attention, "x", x, "[B, T, d_model]")
    keys = x
    if context is not None:
        _check_tokens(attention, "context", context, "[B, S, d_model]")
        if context.shape[0] != x.shape[0]:
            raise ValueError(f"context has batch {context.shape[0]}, x has {x.shape[0]}: give both the same batch")
        keys = context
    if attn_mask is not None:
        _check_mask(attn_mask, (x.shape[0], attention.num_heads, x.shape[1], keys.shape[1]), x.dtype)


def _check_tokens(attention: MultiHeadAttention, name: str, tokens: Tensor, axes: str) -> None:
    if not isinstance(tokens, Tensor):
        raise TypeError(f"{name} must be a tensor of shape {axes}, got {type(tokens).__name__}")
    shape, weight = list(tokens.shape), attention.in_proj.weight
    if len(shape) != 3:
        raise ValueError(f"{name} must have shape {axes}, got {shape}: add or remove axes")
    if shape[2] != attention.d_model:
        raise ValueError(f"{name} must have width d_model={attention.d_model} in its last axis, got {shape}")
    if tokens.device != weight.device:
        raise ValueError(f"{name} is on {tokens.device}, the weights are on {weight.device}: move one of them with .to(device)")
    autocast = tokens.is_floating_point() and torch.is_autocast_enabled(tokens.device.type)
    if tokens.dtype != weight.dtype and not autocast:
        raise TypeError(f"{name} is {tokens.dtype}, the weights are {weight.dtype}: convert one of them with .to(dtype)")


def _check_mask(mask: Tensor, scores: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(f"attn_mask must be a tensor, got {type(mask).__name__}")
    shape = list(mask.shape)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"attn_mask is {mask.dtype}: does 1 mean 'may attend' or 'is hidden'? Give a boolean mask (True = may attend)"
        )
    if mask.is_floating_point() and mask.dtype != dtype:
        raise TypeError(f"attn_mask is {mask.dtype}, x is {dtype}: convert it with .to(x.dtype)")
    if len(shape) == 3:
        raise ValueError(f"attn_mask {shape} has three axes: batch or heads? Say so with mask[:, None] or mask[None]")
    if len(shape) not in (2, 4):
        raise ValueError(f"attn_mask must have shape [T, S] or four axes that broadcast to {list(scores)}, got {shape}")
    # Axis by axis from the right; a size of 1 is repeated.
    if any(shape[axis] not in (1, scores[axis]) for axis in range(-len(shape), 0)):
        hint = " A padding mask [B, S] needs mask[:, None, None, :]." if len(shape) == 2 else ""
        raise ValueError(f"attn_mask {shape} does not broadcast to the scores [B, h, T, S] = {list(scores)}.{hint}")
