"""T5's relative bias in einsum, the query heads in groups: one axis for the key/value heads, one for those that share one."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.mechanisms import BUCKETS, FAR
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class T5SelfAttention(nn.Module):
    """Of a decoder, and with scaled scores."""

    def __init__(
        self, d_model: int, n_heads: int, n_kv_heads: int, num_buckets: int, max_distance: int, bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.d_kv = n_heads, n_kv_heads, d_model // n_heads
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.q = nn.Linear(d_model, n_heads * self.d_kv, bias=bias)
        self.kv = nn.Linear(d_model, 2 * n_kv_heads * self.d_kv, bias=bias)
        self.o = nn.Linear(n_heads * self.d_kv, d_model, bias=bias)
        self.relative_attention_bias = nn.Parameter(torch.zeros(num_buckets, n_heads))
        self.drop = nn.Dropout(dropout)

    def relative_position_bucket(self, relative_position: Tensor) -> Tensor:
        """relative_position = where the key is - where the query is"""
        distance = -torch.clamp(relative_position, max=0)
        max_exact = self.num_buckets // 2
        max_distance = self.max_distance
        logs = torch.log(distance.clamp(min=1).double() / max_exact) / math.log(max_distance / max_exact)
        if_large = max_exact + (logs * (self.num_buckets - max_exact)).long()
        if_large = if_large.clamp(max=self.num_buckets - 1)
        return torch.where(distance < max_exact, distance, if_large)

    def compute_bias(self, length: int) -> Tensor:
        """[heads, length, length]"""
        positions = torch.arange(length, device=self.relative_attention_bias.device)
        buckets = self.relative_position_bucket(positions[None, :] - positions[:, None])
        bias = F.embedding(buckets, self.relative_attention_bias)  # [length, length, heads]
        return bias.permute(2, 0, 1)

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        b, n, _ = hidden_states.shape
        g, r = self.n_kv_heads, self.n_heads // self.n_kv_heads
        q = self.q(hidden_states).view(b, n, g, r, self.d_kv)
        k, v = self.kv(hidden_states).view(b, n, 2, g, self.d_kv).unbind(2)

        scores = torch.einsum("bigrd,bjgd->bgrij", q, k) * self.d_kv**-0.5
        scores = scores + self.compute_bias(n).view(g, r, n, n)

        allowed = torch.ones(n, n, dtype=torch.bool, device=scores.device).tril()
        if mask is not None:
            if mask.dim() == 4:
                mask = mask.expand(b, self.n_heads, n, n).unflatten(1, (g, r))
            if mask.is_floating_point():
                scores = scores + mask
                mask = mask > -math.inf
            allowed = allowed & mask
        nothing = ~allowed.any(-1, keepdim=True)
        # Rows without any key stay finite in the softmax and are cleared behind it.
        scores = scores.masked_fill(~allowed & ~nothing, -math.inf).masked_fill(nothing, 0.0)
        attn = torch.softmax(scores, -1).masked_fill(nothing, 0.0)

        out = torch.einsum("bgrij,bjgd->bigrd", self.drop(attn), v)
        return self.o(out.flatten(2)), attn.flatten(1, 2)


def subject(name: str, supports: Supports) -> Subject:
    """It as a subject of the properties."""
    return of_module(name, build=_build, parameters=_parameters, arguments=_arguments, supports=supports)


def _build(inputs: Inputs) -> nn.Module:
    return T5SelfAttention(
        inputs.x.shape[2],
        inputs.num_heads,
        inputs.num_kv_heads,
        num_buckets=BUCKETS,
        max_distance=FAR,
        bias=inputs.weights.b_o is not None,
        dropout=inputs.dropout,
    ).to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"q.weight": w.w_q, "kv.weight": torch.cat([w.w_k, w.w_v]), "o.weight": w.w_o, "relative_attention_bias": w.table}
    if w.b_k is not None and w.b_v is not None:
        named |= {"q.bias": w.b_q, "kv.bias": torch.cat([w.b_k, w.b_v]), "o.bias": w.b_o}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.mask), {}
