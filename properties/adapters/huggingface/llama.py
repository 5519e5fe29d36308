"""Llama's attention: grouped heads, and rotary positions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from properties.adapters.huggingface.dispatch import DISPATCHES, supports
from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import Arguments, of_module


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

    def forward(self, x: Tensor, **kwargs: Any) -> Any:
        cos_and_sin = self.rotary(x, torch.arange(x.shape[1], device=x.device)[None])
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
        arguments=_arguments,
        supports=_supports(dispatch, positions=True),
    )


SUBJECTS = tuple(partial(subject, dispatch) for subject in (attention, rotary_attention) for dispatch in DISPATCHES)
