"""The attention in PyTorch itself: the module, and the function under it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.case import EXPLICIT
from properties.inputs import Inputs, Weights, merge_heads, split_heads
from properties.subject import Layer, Result, Subject, Supports, of_module

_NO_FLAG = ("none", *EXPLICIT)  # is_causal is aligned at the top left here, or is only a hint


def multihead_attention() -> Subject:
    """`nn.MultiheadAttention(batch_first=True)`, asked for the weights of every head."""

    def build(inputs: Inputs) -> nn.Module:
        return nn.MultiheadAttention(
            inputs.x.shape[2],
            inputs.num_heads,
            dropout=inputs.dropout,
            bias=inputs.weights.b_o is not None,
            batch_first=True,
            dtype=inputs.x.dtype,
        )

    def parameters(w: Weights) -> dict[str, Tensor]:
        named = {"in_proj_weight": torch.cat([w.w_q, w.w_k, w.w_v]), "out_proj.weight": w.w_o}
        if w.b_q is not None and w.b_k is not None and w.b_v is not None and w.b_o is not None:
            named |= {"in_proj_bias": torch.cat([w.b_q, w.b_k, w.b_v]), "out_proj.bias": w.b_o}
        return named

    def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, object]]:
        mask = inputs.mask
        if mask is not None:
            mask = ~mask if mask.dtype == torch.bool else mask  # True = may not attend
            mask = mask if mask.dim() == 2 else mask.expand(inputs.scores_shape).flatten(0, 1)  # [B*h, T, S]
        return (inputs.x, inputs.keys, inputs.keys), {"attn_mask": mask, "average_attn_weights": False}

    return of_module(
        "torch.nn.MultiheadAttention",
        build=build,
        parameters=parameters,
        arguments=arguments,
        supports=Supports(
            masks=_NO_FLAG,
            grouped_heads=False,
            training_weights=False,  # they are returned after dropout
            empty_rows="nan",
        ),
    )


def scaled_dot_product_attention() -> Subject:
    """`F.scaled_dot_product_attention`, between the projections of a layer."""

    def run(inputs: Inputs, training: bool) -> Result:
        w, d_head = inputs.weights, inputs.d_head

        def split(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return split_heads(F.linear(tokens, weight, bias), d_head)

        heads = F.scaled_dot_product_attention(
            split(inputs.x, w.w_q, w.b_q),
            split(inputs.keys, w.w_k, w.b_k),
            split(inputs.keys, w.w_v, w.b_v),
            attn_mask=inputs.mask,
            dropout_p=inputs.dropout if training else 0.0,
            enable_gqa=inputs.num_kv_heads != inputs.num_heads,
        )
        return Result(F.linear(merge_heads(heads), w.w_o, w.b_o))

    return Subject(
        name="torch.nn.functional.scaled_dot_product_attention",
        build=lambda inputs: Layer(run),
        supports=Supports(masks=_NO_FLAG, weights=False, training_weights=False, module=False),
    )
