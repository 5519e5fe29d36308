"""What `MultiHeadAttention` and its extensions refuse, and how it says so: the argument, what was given, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from attn.cache import Cache
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


def check_cached(attention: MultiHeadAttention, x: Tensor, attn_mask: Tensor | None, cache: Cache | None) -> None:
    """Raise ValueError or TypeError for arguments that do not fit the layer, or what the cache holds."""
    _check_tokens(attention, "x", x, "[B, T, d_model]")
    keys = x.shape[1]
    if cache is not None:
        if cache.keys.shape[0] != x.shape[0]:
            raise ValueError(
                f"cache was made for batch {cache.keys.shape[0]}, x has {x.shape[0]}: make one with new_cache(batch)"
            )
        keys += cache.length
        if cache.capacity is not None and keys > cache.capacity:
            raise ValueError(f"cache has capacity={cache.capacity} and holds {cache.length}: {x.shape[1]} more do not fit")
    if attn_mask is not None:
        _check_mask(attn_mask, (x.shape[0], attention.num_heads, x.shape[1], keys), x.dtype)


def check_positions(positions: Tensor, x: Tensor) -> None:
    """Raise unless there is a whole number for each token, `[T]` or `[B, T]`."""
    _check_whole("positions", positions)
    if list(positions.shape) not in ([x.shape[1]], list(x.shape[:2])):
        raise ValueError(f"positions must have shape [T] or [B, T] = {list(x.shape[:2])}, got {list(positions.shape)}")


def check_labels(name: str, labels: Tensor, x: Tensor) -> None:
    """Raise unless there is a whole number for each token of each sample, `[B, T]`."""
    _check_whole(name, labels)
    if labels.shape != x.shape[:2]:
        raise ValueError(f"{name} must have shape [B, T] = {list(x.shape[:2])}, got {list(labels.shape)}")


def check_prefix(prefix: Tensor, x: Tensor) -> None:
    """Raise unless there is a number of tokens for each sample, `[B]`."""
    _check_whole("prefix", prefix)
    if prefix.shape != x.shape[:1]:
        raise ValueError(f"prefix must have shape [B] = {list(x.shape[:1])}, one length a sample, got {list(prefix.shape)}")


def check_rotary(rotary_width: int, d_head: int, base: float, stretch: float) -> None:
    """Raise for features that cannot turn in pairs, or a base and a stretch that are none."""
    if rotary_width % 2 != 0 or not 2 <= rotary_width <= d_head:
        raise ValueError(f"rotary_width must be even and at most d_head={d_head}, got {rotary_width}: features turn in pairs")
    for name, number in (("base", base), ("stretch", stretch)):
        if not number > 0:
            raise ValueError(f"{name} must be positive, got {number}")


def check_buckets(buckets: int, far: int) -> None:
    """Raise unless there are buckets for near and for far, and far is further than near."""
    if buckets < 2 or buckets % 2 != 0:
        raise ValueError(f"buckets must be even and at least 2, got {buckets}")
    if 2 * far <= buckets:
        raise ValueError(f"far must be more than buckets/2={buckets // 2}, which have a bucket each, got {far}")


def check_window(window: int) -> None:
    """Raise for a window in which not even the query itself would fit."""
    if isinstance(window, bool) or not isinstance(window, int):
        raise TypeError(f"window must be an int, got {window!r}")
    if window < 1:
        raise ValueError(f"window must be at least 1, a query sees itself; got {window}")


def check_soft_cap(soft_cap: float) -> None:
    """Raise for a cap under which there is no room."""
    if not soft_cap > 0:
        raise ValueError(f"soft_cap must be positive, got {soft_cap}: for no cap, take MultiHeadAttention")


def check_capacity(capacity: int | None) -> None:
    """Raise for a cache that could hold nothing."""
    if capacity is not None and capacity < 1:
        raise ValueError(f"capacity must be at least 1 token, got {capacity}; leave it out for a cache that grows")


def _check_whole(name: str, numbers: Tensor) -> None:
    if not isinstance(numbers, Tensor):
        raise TypeError(f"{name} must be a tensor of whole numbers, got {type(numbers).__name__}")
    if numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise TypeError(f"{name} must be whole numbers, got {numbers.dtype}: convert them with .long()")


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
