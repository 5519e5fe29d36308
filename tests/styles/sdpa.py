"""Multi-head attention by PyTorch's own kernel, which returns no weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class SdpaAttention(nn.Module):
    def __init__(self, dim: int, n_heads: int, n_kv_heads: int, bias: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.dropout = dropout
        self.wq = nn.Linear(dim, dim, bias=bias)
        self.wkv = nn.Linear(dim, 2 * n_kv_heads * self.head_dim, bias=bias)
        self.wo = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        context = x if context is None else context
        B, T, _ = x.shape
        S = context.shape[1]
        q = self.wq(x)
        k, v = self.wkv(context).chunk(2, dim=-1)
        q = q.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, S, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, S, self.n_kv_heads, self.head_dim).transpose(1, 2)

        if is_causal:
            # Not by the flag of the kernel: it takes no mask beside it, and begins its triangle at the first query and key.
            past = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
            if mask is None:
                mask = past
            elif mask.dtype == torch.bool:
                mask = mask & past
            else:
                mask = mask.masked_fill(~past, -math.inf)
        empty = None
        if mask is not None:
            # What a kernel makes of a query that sees nothing is its own affair: let it see everything, and drop what it gets.
            hidden = ~mask if mask.dtype == torch.bool else mask == -math.inf
            empty = hidden.all(dim=-1, keepdim=True)
            mask = mask | empty if mask.dtype == torch.bool else mask.masked_fill(empty, 0.0)

        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.n_kv_heads != self.n_heads,
        )
        if empty is not None:
            out = out.masked_fill(empty, 0.0)
        out = out.transpose(1, 2).flatten(2)  # [B, T, d]
        return self.wo(out)


def subject(name: str, supports: Supports) -> Subject:
    # On the CPU the kernel takes a row of NaN for one that sees nothing, and makes it zero.
    supports = replace(supports, weights=False, training_weights=False, nan_comes_out=False)
    return of_module(name, build=_build, parameters=_parameters, arguments=_arguments, supports=supports)


def _build(inputs: Inputs) -> nn.Module:
    bias = inputs.weights.b_o is not None
    attention = SdpaAttention(inputs.x.shape[2], inputs.num_heads, inputs.num_kv_heads, bias, inputs.dropout)
    return attention.to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"wq.weight": w.w_q, "wkv.weight": torch.cat([w.w_k, w.w_v]), "wo.weight": w.w_o}
    if w.b_o is not None:
        named |= {"wq.bias": w.b_q, "wkv.bias": torch.cat([w.b_k, w.b_v]), "wo.bias": w.b_o}
    return named


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.context), {"mask": inputs.mask, "is_causal": inputs.is_causal}
