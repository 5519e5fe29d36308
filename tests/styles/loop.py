"""Multi-head attention as a loop over the heads, each with projections of its own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Layer, Subject
from properties.supports import Supports
from properties.wrap import of_module

HIDDEN = -math.inf  # the score of a key that may not be seen


class LoopAttention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.d_head = width // heads
        self.group = heads // kv_heads  # so many heads share a key and a value
        self.to_query = nn.ModuleList([nn.Linear(width, self.d_head, bias=bias) for _ in range(heads)])
        self.to_key = nn.ModuleList([nn.Linear(width, self.d_head, bias=bias) for _ in range(kv_heads)])
        self.to_value = nn.ModuleList([nn.Linear(width, self.d_head, bias=bias) for _ in range(kv_heads)])
        self.mix = nn.Linear(width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None, causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        source = x if memory is None else memory
        T, S = x.shape[1], source.shape[1]
        keys = [project(source) for project in self.to_key]  # each [B, S, d_head]
        values = [project(source) for project in self.to_value]
        future = torch.ones(T, S, dtype=torch.bool, device=x.device).triu(S - T + 1)
        outputs, weights = [], []
        for i, project in enumerate(self.to_query):
            shared = i // self.group
            key, value = keys[shared], values[shared]
            query = project(x) / math.sqrt(self.d_head)
            scores = query @ key.transpose(1, 2)  # [B, T, S]
            if mask is not None:
                own = of_head(mask, i)
                scores = scores.masked_fill(~own, HIDDEN) if own.dtype == torch.bool else scores + own
            if causal:
                scores = scores.masked_fill(future, HIDDEN)
            empty = (scores == -math.inf).all(dim=-1, keepdim=True)  # nothing to see: the softmax would be 0 / 0
            weight = scores.masked_fill(empty, 0.0).softmax(dim=-1)
            weight = weight.masked_fill(empty, 0.0)
            outputs.append(self.dropout(weight) @ value)
            weights.append(weight)
        return self.mix(torch.cat(outputs, dim=-1)), torch.stack(weights, dim=1)


def of_head(mask: Tensor, i: int) -> Tensor:
    """The mask of one head, [T, S] or [B, T, S], from [T, S] or what broadcasts to [B, h, T, S]."""
    if mask.dim() == 2:
        return mask
    return mask[:, i] if mask.shape[1] > 1 else mask[:, 0]


def subject(name: str, supports: Supports) -> Subject:
    def layer(inputs: Inputs) -> Layer:
        def parameters(w: Weights) -> dict[str, Tensor]:
            """Cut the rows of the whole matrices into those of the heads."""
            named = {"mix.weight": w.w_o}
            for projection, rows in (("to_query", w.w_q), ("to_key", w.w_k), ("to_value", w.w_v)):
                named |= {f"{projection}.{i}.weight": own for i, own in enumerate(rows.split(inputs.d_head))}
            if w.b_o is not None:
                named["mix.bias"] = w.b_o
                for projection, bias in (("to_query", w.b_q), ("to_key", w.b_k), ("to_value", w.b_v)):
                    named |= {f"{projection}.{i}.bias": own for i, own in enumerate(bias.split(inputs.d_head))}
            return named

        return of_module(name, build=_build, parameters=parameters, arguments=_arguments, supports=supports).build(inputs)

    return Subject(name=name, build=layer, supports=supports)  # the heads have to be known to name the parameters


def _build(inputs: Inputs) -> nn.Module:
    bias = inputs.weights.b_o is not None
    attention = LoopAttention(inputs.x.shape[2], inputs.num_heads, inputs.num_kv_heads, bias, inputs.dropout)
    return attention.to(inputs.x.dtype)


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.mask), {"memory": inputs.context, "causal": inputs.is_causal}
