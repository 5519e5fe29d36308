"""Llama's attention: grouped heads, and rotary positions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from properties.adapters.huggingface.dispatch import DISPATCHES, supports
from properties.case import MASKS
from properties.inputs import Inputs, Weights, causal
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import Arguments, Caching, of_module


def _config(dispatch: str, inputs: Inputs) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=inputs.x.shape[2],
        num_attention_heads=inputs.num_heads,
        num_key_value_heads=inputs.num_kv_heads,
        attention_bias=inputs.weights.b_q is not None,
        attention_dropout=inputs.dropout,
        attn_implementation=dispatch,
    )


class _Rotary(nn.Module):
    """An attention, and the rotary embedding that LlamaModel computes for all its layers."""

    def __init__(self, dispatch: str, inputs: Inputs) -> None:
        super().__init__()
        config = _config(dispatch, inputs)
        self.attention = LlamaAttention(config, layer_idx=0).to(inputs.x.dtype)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor, positions: Tensor | None = None, past: int = 0, **kwargs: Any) -> Any:
        if positions is None:
            positions = torch.arange(past, past + x.shape[1], device=x.device)[None]
        cos_and_sin = self.rotary(x, positions)
        return self.attention(x, position_embeddings=cos_and_sin, **kwargs)


def _parameters(w: Weights, prefix: str = "") -> dict[str, Tensor]:
    kinds = {"w": "weight", "b": "bias"}
    return {f"{prefix}{name[2]}_proj.{kinds[name[0]]}": value for name, value in w.items()}


def _arguments(inputs: Inputs) -> Arguments:
    """Without a mask sdpa makes it causal if nothing else is said, hence the flag is always said."""
    return (inputs.x,), {"attention_mask": inputs.mask, "is_causal": inputs.is_causal}


def _supports(dispatch: str, **declared: Any) -> Supports:
    """Its config wants an even d_head. Eager computes the softmax in float32, on purpose, and in float64 too."""
    floors = {"float64": "float32"} if dispatch == "eager" else {}
    return supports(dispatch, flag=True, cross_attention=False, grouped_heads=True, d_heads=(2, 4), floors=floors, **declared)


def _rotary_supports(dispatch: str) -> Supports:
    """The angles are computed in float32, on purpose."""
    declared = _supports(dispatch, placings=("rotary",), explicit_positions=True)
    return replace(declared, floors={"float64": "float32"})


def attention(dispatch: str) -> Subject:
    """`LlamaAttention` without positions: every angle is 0."""

    def arguments(inputs: Inputs) -> Arguments:
        args, named = _arguments(inputs)
        one = inputs.x.new_ones(1, inputs.x.shape[1], inputs.d_head)
        return args, {**named, "position_embeddings": (one, torch.zeros_like(one))}

    return of_module(
        f"transformers.LlamaAttention[{dispatch}]",
        build=lambda inputs: LlamaAttention(_config(dispatch, inputs), layer_idx=0).to(inputs.x.dtype),
        parameters=_parameters,
        arguments=arguments,
        supports=_supports(dispatch),
    )


def rotary_attention(dispatch: str) -> Subject:
    """`LlamaAttention` with the positions of `LlamaRotaryEmbedding`, which turns pairs of features."""
    return of_module(
        f"transformers.LlamaAttention[{dispatch}, rotary]",
        build=partial(_Rotary, dispatch),
        parameters=partial(_parameters, prefix="attention."),
        arguments=_placed,
        supports=_rotary_supports(dispatch),
    )


def cached_attention(dispatch: str) -> Subject:
    """The same with a `DynamicCache`, and the causal mask that LlamaModel makes for it."""

    def arguments(inputs: Inputs) -> Arguments:
        args, named = _placed(inputs)
        T, S = inputs.x.shape[1], inputs.past + inputs.x.shape[1]
        return args, {**named, "is_causal": False, "attention_mask": _causal(inputs.mask, T, S, inputs.x.dtype)}

    def caching(module: nn.Module, inputs: Inputs) -> Caching:
        cache = DynamicCache()

        def with_cache(piece: Inputs) -> Arguments:
            args, named = arguments(piece)
            return args, {**named, "past": piece.past, "past_key_values": cache}

        return Caching(arguments=with_cache, reorder=cache.reorder_cache, reset=cache.reset)

    return of_module(
        f"transformers.LlamaAttention[{dispatch}, rotary, cache]",
        build=partial(_Rotary, dispatch),
        parameters=partial(_parameters, prefix="attention."),
        arguments=arguments,
        caching=caching,
        supports=replace(_rotary_supports(dispatch), masks=MASKS, always_causal=True, cache=True, reorders=True),
    )


def _placed(inputs: Inputs) -> Arguments:
    args, named = _arguments(inputs)
    return args, {**named, "positions": inputs.positions}


def _causal(mask: Tensor | None, queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """The additive mask [B or 1, 1, T, S] of a causal layer, with this one in it."""
    bias = torch.zeros(1, 1, queries, keys, dtype=dtype).masked_fill(~causal(queries, keys), -torch.inf)
    if mask is None:
        return bias
    return bias + mask if mask.is_floating_point() else bias.masked_fill(~mask, -torch.inf)


SUBJECTS = tuple(
    partial(subject, dispatch) for subject in (attention, rotary_attention, cached_attention) for dispatch in DISPATCHES
)
