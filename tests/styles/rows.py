"""Attention over rows of a batch: the heads are folded into the batch, and every product is one `torch.bmm`.

B batch, T queries, S keys, h heads, g key/value heads, f features of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class RowsAttention(nn.Module):
    """Multi-head attention with separate projections, from `[B, T, d]` to `[B, T, d]` and weights `[B, h, T, S]`."""

    def __init__(self, d_model, num_heads, bias=False, *, num_kv_heads=None, dropout=0.0, dtype=None):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_dim = d_model // num_heads
        self.dropout = dropout
        kv_width = self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(d_model, d_model, bias=bias, dtype=dtype)
        self.k_proj = nn.Linear(d_model, kv_width, bias=bias, dtype=dtype)
        self.v_proj = nn.Linear(d_model, kv_width, bias=bias, dtype=dtype)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self):
        for proj in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(proj.weight)
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False):
        source = x if context is None else context
        B, T, d = x.shape
        S = source.shape[1]
        h, g, f = self.num_heads, self.num_kv_heads, self.head_dim

        k = self.k_proj(source).view(B, S, g, f)
        v = self.v_proj(source).view(B, S, g, f)
        q = self.q_proj(x).view(B, T, h, f)

        # Fold the heads into the batch: row b*h + i is head i of sample b.
        q = q.transpose(1, 2).reshape(B * h, T, f)
        k = k.repeat_interleave(h // g, dim=2).transpose(1, 2).reshape(B * h, S, f)
        v = v.repeat_interleave(h // g, dim=2).transpose(1, 2).reshape(B * h, S, f)

        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]

        # Mask and flag become one bias, which hides with -inf.
        bias = attn_mask
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            hidden = attn_mask.logical_not()
            bias = torch.zeros(hidden.shape, dtype=scores.dtype, device=x.device).masked_fill(hidden, -math.inf)
        if is_causal:  # the last query sees the last key
            future = torch.ones(T, S, dtype=torch.bool, device=x.device).triu(S - T + 1)
            if bias is None:
                bias = torch.zeros(T, S, dtype=scores.dtype, device=x.device)
            bias = bias.masked_fill(future, -math.inf)

        empty = None
        if bias is not None:
            empty = (bias == -math.inf).all(dim=-1, keepdim=True)  # a softmax over nothing would be NaN
            bias = bias.masked_fill(empty, 0.0)
            scores = scores + bias.expand(B, h, T, S).reshape(B * h, T, S)
        weights = torch.softmax(scores, dim=-1)
        if empty is not None:
            weights = weights.masked_fill(empty.expand(B, h, T, 1).reshape(B * h, T, 1), 0.0)

        dropped = F.dropout(weights, p=self.dropout, training=self.training)
        heads = torch.bmm(dropped, v)  # [B*h, T, f]

        merged = heads.view(B, h, T, f).transpose(1, 2).reshape(B, T, d)
        output = self.out_proj(merged)
        return output, weights.view(B, h, T, S)


def subject(name: str, supports: Supports) -> Subject:
    """The class above as a subject of the properties."""

    def build(inputs: Inputs) -> nn.Module:
        return RowsAttention(
            inputs.x.shape[2],
            inputs.num_heads,
            bias=inputs.weights.b_o is not None,
            num_kv_heads=inputs.num_kv_heads,
            dropout=inputs.dropout,
            dtype=inputs.x.dtype,
        )

    def parameters(w: Weights) -> dict[str, Tensor]:
        named = {"q_proj.weight": w.w_q, "k_proj.weight": w.w_k, "v_proj.weight": w.w_v, "out_proj.weight": w.w_o}
        biases = {"q_proj.bias": w.b_q, "k_proj.bias": w.b_k, "v_proj.bias": w.b_v, "out_proj.bias": w.b_o}
        return named | {key: bias for key, bias in biases.items() if bias is not None}

    def arguments(inputs: Inputs) -> tuple[tuple[Tensor, Tensor | None], dict[str, object]]:
        return (inputs.x, inputs.mask), {"context": inputs.context, "is_causal": inputs.is_causal}

    return of_module(name, build=build, parameters=parameters, arguments=arguments, supports=supports)
