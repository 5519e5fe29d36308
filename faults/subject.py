"""The clean `MultiHeadAttention`, or a fault made from it, as a subject of the properties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn import MultiHeadAttention
from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import TOOLS, Supports
from properties.wrap import of_module


def subject(attention: type[MultiHeadAttention] = MultiHeadAttention, name: str = "attn.MultiHeadAttention") -> Subject:
    """Return the subject for `MultiHeadAttention` or a subclass; it supports everything."""

    def build(inputs: Inputs) -> MultiHeadAttention:
        return attention(
            inputs.x.shape[2],
            inputs.num_heads,
            bias=inputs.weights.b_o is not None,
            num_kv_heads=inputs.num_kv_heads,
            dropout=inputs.dropout,
            dtype=inputs.x.dtype,
        )

    supports = Supports(tools=TOOLS)
    made = of_module(name, build=build, parameters=_parameters, arguments=_arguments, supports=supports)
    module = attention.__module__
    expression = f"faults.subject.subject({module}.{attention.__qualname__})"
    return replace(made, expression=expression, imports=(f"import {module}", "import faults.subject"))


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"in_proj.weight": torch.cat([w.w_q, w.w_k, w.w_v]), "out_proj.weight": w.w_o}
    if w.b_q is not None and w.b_k is not None and w.b_v is not None and w.b_o is not None:
        named |= {"in_proj.bias": torch.cat([w.b_q, w.b_k, w.b_v]), "out_proj.bias": w.b_o}
    return named


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.mask), {"context": inputs.context, "is_causal": inputs.is_causal}
