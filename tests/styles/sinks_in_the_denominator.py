"""Attention with sinks and a softmax written out: a sink is one more term of the sum below the line.

The layout is that of the fused kernels, `[B, T, h, f]`; only scores and weights have the heads in front.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class SinkAttention(nn.Module):
    """Every head has a learned score for attending to nothing. Returns the output and the weights `[B, h, T, S]`."""

    def __init__(self, hidden_size, n_heads, n_kv_heads, *, bias=False, dropout=0.0, dtype=None):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, hidden_size // n_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(hidden_size, n_heads * self.head_dim, bias, dtype=dtype)
        self.k_proj = nn.Linear(hidden_size, n_kv_heads * self.head_dim, bias, dtype=dtype)
        self.v_proj = nn.Linear(hidden_size, n_kv_heads * self.head_dim, bias, dtype=dtype)
        self.o_proj = nn.Linear(n_heads * self.head_dim, hidden_size, bias, dtype=dtype)
        self.sinks = nn.Parameter(torch.zeros(n_heads, dtype=dtype))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, *, kv: Tensor | None = None, is_causal: bool = False):
        kv = x if kv is None else kv
        group = self.n_heads // self.n_kv_heads
        q = self.q_proj(x).unflatten(2, (self.n_heads, self.head_dim))
        k = self.k_proj(kv).unflatten(2, (self.n_kv_heads, self.head_dim)).repeat_interleave(group, dim=2)
        v = self.v_proj(kv).unflatten(2, (self.n_kv_heads, self.head_dim)).repeat_interleave(group, dim=2)

        scores = torch.einsum("bqhf,bkhf->bhqk", q, k) * self.head_dim**-0.5
        scores = self.hide(scores, attn_mask, is_causal)

        sinks = self.sinks.view(-1, 1, 1)
        # The sink is finite, and so is the maximum: a query without keys needs no care, its terms are all 0.
        top = torch.maximum(scores.amax(dim=-1, keepdim=True), sinks)
        terms = torch.exp(scores - top)
        total = terms.sum(dim=-1, keepdim=True) + torch.exp(sinks - top)
        weights = terms / total

        context = torch.einsum("bhqk,bkhf->bqhf", F.dropout(weights, self.dropout, self.training), v)
        return self.o_proj(context.flatten(2)), weights

    def hide(self, scores, attn_mask, is_causal):
        if is_causal:
            rows, columns = scores.shape[-2:]
            ahead = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).triu(columns - rows + 1)
            scores = scores.masked_fill(ahead, float("-inf"))
        if attn_mask is None:
            return scores
        if attn_mask.dtype == torch.bool:
            return scores.masked_fill(~attn_mask, float("-inf"))
        return scores + attn_mask


def subject(name: str, supports: Supports) -> Subject:
    """The class above as a subject of the properties."""

    def build(inputs: Inputs) -> nn.Module:
        sizes = inputs.x.shape[2], inputs.num_heads, inputs.num_kv_heads
        return SinkAttention(*sizes, bias=inputs.weights.b_o is not None, dropout=inputs.dropout, dtype=inputs.x.dtype)

    def parameters(w: Weights) -> dict[str, Tensor]:
        named = {"q_proj.weight": w.w_q, "k_proj.weight": w.w_k, "v_proj.weight": w.w_v, "o_proj.weight": w.w_o, "sinks": w.sinks}
        named |= {"q_proj.bias": w.b_q, "k_proj.bias": w.b_k, "v_proj.bias": w.b_v, "o_proj.bias": w.b_o}
        return {key: tensor for key, tensor in named.items() if tensor is not None}

    def arguments(inputs: Inputs) -> tuple[tuple[Tensor, Tensor | None], dict[str, object]]:
        return (inputs.x, inputs.mask), {"kv": inputs.context, "is_causal": inputs.is_causal}

    return of_module(name, build=build, parameters=parameters, arguments=arguments, supports=supports)
