"""Multi-head attention by Einstein sums: the axes are named, and none is moved.

b sample, t query, s key, h head, g key/value head, r head of those that share one, d feature of a head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, einsum, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class EinsumAttention(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, use_bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim_head = heads, kv_heads, dim // heads
        self.q_proj = nn.Linear(dim, heads * self.dim_head, bias=use_bias)
        self.k_proj = nn.Linear(dim, kv_heads * self.dim_head, bias=use_bias)
        self.v_proj = nn.Linear(dim, kv_heads * self.dim_head, bias=use_bias)
        self.o_proj = nn.Linear(dim, dim, bias=use_bias)
        self.drop = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None, causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        memory = x if memory is None else memory
        q = self.q_proj(x).unflatten(-1, (self.heads, self.dim_head))  # b t h d
        k = self.k_proj(memory).unflatten(-1, (self.kv_heads, self.dim_head))  # b s g d
        v = self.v_proj(memory).unflatten(-1, (self.kv_heads, self.dim_head))  # b s g d

        scaled = q * self.dim_head**-0.5
        grouped = scaled.unflatten(2, (self.kv_heads, -1))  # b t g r d
        logits = einsum("btgrd,bsgd->bgrts", grouped, k).flatten(1, 2)  # b h t s

        bias = None
        if mask is not None:
            bias = additive(mask, logits.dtype)
        if causal:
            t, s = logits.shape[-2:]
            past = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(s - t)
            triangle = additive(past, logits.dtype)
            bias = triangle if bias is None else bias + triangle
        empty = None
        if bias is not None:
            # A row in which everything is hidden would be NaN, and so would its gradient.
            empty = (bias == -math.inf).all(dim=-1, keepdim=True)
            logits = logits + bias.masked_fill(empty, 0.0)
        weights = logits.softmax(dim=-1)
        if empty is not None:
            weights = weights.masked_fill(empty, 0.0)

        shares = self.drop(weights).unflatten(1, (self.kv_heads, -1))  # b g r t s
        mixed = einsum("bgrts,bsgd->btgrd", shares, v).flatten(2)
        return self.o_proj(mixed), weights


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is to be added to the logits: for a boolean mask, -inf where it is False."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


def subject(name: str, supports: Supports) -> Subject:
    return of_module(name, build=_build, parameters=_parameters, arguments=_arguments, supports=supports)


def _build(inputs: Inputs) -> nn.Module:
    bias = inputs.weights.b_o is not None
    attention = EinsumAttention(inputs.x.shape[2], inputs.num_heads, inputs.num_kv_heads, bias, inputs.dropout)
    return attention.to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"q_proj.weight": w.w_q, "k_proj.weight": w.w_k, "v_proj.weight": w.w_v, "o_proj.weight": w.w_o}
    if w.b_o is not None:
        named |= {"q_proj.bias": w.b_q, "k_proj.bias": w.b_k, "v_proj.bias": w.b_v, "o_proj.bias": w.b_o}
    return named


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x,), {"memory": inputs.context, "mask": inputs.mask, "causal": inputs.is_causal}
