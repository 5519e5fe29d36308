"""T5's attention: no scale, no biases, and in its first layer a relative bias."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from properties.adapters.huggingface.dispatch import DISPATCHES, supports
from properties.inputs import Inputs, Weights
from properties.mechanisms import BUCKETS, FAR
from properties.subject import Result, Subject
from properties.supports import Supports
from properties.wrap import of_module


def unscaled(d_head: int) -> float:
    """T5 does not scale its scores: its initialisation makes up for it."""
    return 1.0


def _supports(dispatch: str, **declared: Any) -> Supports:
    """Under sdpa an empty row is undefined: it depends on how the mask is written, see `create_position_bias_mask`."""
    empty_rows = "nan" if dispatch == "eager" else "undefined"
    return supports(dispatch, biases="", scale=unscaled, empty_rows=empty_rows, **declared)


def _build(dispatch: str, inputs: Inputs, *, relative: bool = False) -> nn.Module:
    config = T5Config(
        d_model=inputs.x.shape[2],
        d_kv=inputs.d_head,
        num_heads=inputs.num_heads,
        dropout_rate=inputs.dropout,
        is_decoder=relative,  # an encoder has other buckets: half of them for what lies ahead
        relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=FAR,
        attn_implementation=dispatch,
    )
    attention: nn.Module = T5Attention(config, has_relative_attention_bias=relative, layer_idx=0)
    return attention.to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"q.weight": w.w_q, "k.weight": w.w_k, "v.weight": w.w_v, "o.weight": w.w_o}
    return named if w.table is None else {**named, "relative_attention_bias.weight": w.table}


def _result(returned: tuple[Tensor, Tensor, Tensor | None]) -> Result:
    output, _, weights = returned  # between them the relative bias, for the next layer
    return Result(output, weights)


def attention(dispatch: str) -> Subject:
    """`T5Attention` without a relative bias, as in every layer but the first, called with `mask` and `key_value_states`."""
    return of_module(
        f"transformers.T5Attention[{dispatch}]",
        build=partial(_build, dispatch),
        parameters=_parameters,
        arguments=lambda inputs: ((inputs.x,), {"mask": inputs.mask, "key_value_states": inputs.context}),
        result=_result,
        supports=_supports(dispatch),
    )


def relative_attention(dispatch: str) -> Subject:
    """`T5Attention(has_relative_attention_bias=True)` of a decoder, attending to itself."""
    return of_module(
        f"transformers.T5Attention[{dispatch}, relative]",
        build=partial(_build, dispatch, relative=True),
        parameters=_parameters,
        arguments=lambda inputs: ((inputs.x,), {"mask": inputs.mask, "is_causal": inputs.is_causal}),
        result=_result,
        supports=_supports(dispatch, flag=True, cross_attention=False, placings=("relative_bias",)),
    )


SUBJECTS = tuple(partial(subject, dispatch) for subject in (attention, relative_attention) for dispatch in DISPATCHES)
