"""GPT-2's attention. Its Conv1D takes only tokens that `view` can flatten: they are made contiguous, but for one subject."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

from properties.adapters.huggingface.dispatch import DISPATCHES, supports
from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.wrap import Arguments, of_module


def _build(dispatch: str, inputs: Inputs, *, cross: bool = False, **options: Any) -> nn.Module:
    config = GPT2Config(
        n_embd=inputs.x.shape[2],
        n_head=inputs.num_heads,
        attn_pdrop=inputs.dropout,
        resid_pdrop=0.0,
        attn_implementation=dispatch,
        **options,
    )
    attention: nn.Module = GPT2Attention(config, is_cross_attention=cross, layer_idx=0)
    return attention.to(inputs.x.dtype)


def _conv1d(name: str, *linears: tuple[Tensor, Tensor | None]) -> dict[str, Tensor]:
    """The parameters of a Conv1D: several linear layers in one, their weights transposed. It always has a bias."""
    biases = [weight.new_zeros(weight.shape[0]) if bias is None else bias for weight, bias in linears]
    return {f"{name}.weight": torch.cat([weight for weight, _ in linears]).T, f"{name}.bias": torch.cat(biases)}


def _parameters(w: Weights) -> dict[str, Tensor]:
    return {**_conv1d("c_attn", (w.w_q, w.b_q), (w.w_k, w.b_k), (w.w_v, w.b_v)), **_conv1d("c_proj", (w.w_o, w.b_o))}


def _cross_parameters(w: Weights) -> dict[str, Tensor]:
    queries, keys_and_values = _conv1d("q_attn", (w.w_q, w.b_q)), _conv1d("c_attn", (w.w_k, w.b_k), (w.w_v, w.b_v))
    return {**queries, **keys_and_values, **_conv1d("c_proj", (w.w_o, w.b_o))}


def _arguments(inputs: Inputs) -> Arguments:
    """Without a mask sdpa makes it causal if nothing else is said, hence the flag is always said."""
    return (inputs.x.contiguous(),), {"attention_mask": inputs.mask, "is_causal": inputs.is_causal}


def self_attention(dispatch: str) -> Subject:
    """`GPT2Attention`, called with `attention_mask`, attending to itself."""
    return of_module(
        f"transformers.GPT2Attention[{dispatch}]",
        build=partial(_build, dispatch),
        parameters=_parameters,
        arguments=_arguments,
        supports=supports(dispatch, flag=True, cross_attention=False),
    )


def upcast_attention() -> Subject:
    """`GPT2Attention` with `reorder_and_upcast_attn`, an option of eager: scores in float32, and nothing wider than that."""
    return of_module(
        "transformers.GPT2Attention[eager, reorder_and_upcast_attn]",
        build=partial(_build, "eager", reorder_and_upcast_attn=True),
        parameters=_parameters,
        arguments=_arguments,
        supports=supports("eager", cross_attention=False, dtypes=("float32", "bfloat16", "float16")),
    )


def any_layout_attention() -> Subject:
    """`GPT2Attention`, tokens handed to it as they lie in memory."""
    return of_module(
        "transformers.GPT2Attention[eager, any layout]",
        build=partial(_build, "eager"),
        parameters=_parameters,
        arguments=lambda inputs: ((inputs.x,), {"attention_mask": inputs.mask}),
        supports=supports("eager", cross_attention=False),
    )


def cross_attention(dispatch: str) -> Subject:
    """`GPT2Attention(is_cross_attention=True)`, called with `encoder_hidden_states` and `encoder_attention_mask`."""

    def arguments(inputs: Inputs) -> Arguments:
        named = {"encoder_hidden_states": inputs.keys.contiguous(), "encoder_attention_mask": inputs.mask}
        return (inputs.x.contiguous(),), named

    return of_module(
        f"transformers.GPT2Attention[{dispatch}, cross]",
        build=partial(_build, dispatch, cross=True),
        parameters=_cross_parameters,
        arguments=arguments,
        supports=supports(dispatch),
    )


SUBJECTS = (
    *(partial(subject, dispatch) for subject in (self_attention, cross_attention) for dispatch in DISPATCHES),
    upcast_attention,
    any_layout_attention,
)
