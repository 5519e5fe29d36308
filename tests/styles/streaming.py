"""Attention that goes through the keys one after another and never holds a row of scores: an online softmax.

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


class StreamingAttention(nn.Module):
    """Multi-head attention from `[B, T, d]` to `[B, T, d]`. The weights `[B, h, T, S]` are made at the end, to be looked at."""

    def __init__(self, dim, heads, bias=False, *, kv_heads=None, dropout=0.0, dtype=None):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.width = dim // heads
        self.p_drop = dropout
        self.wq = nn.Linear(dim, dim, bias=bias, dtype=dtype)
        self.wkv = nn.Linear(dim, 2 * self.kv_heads * self.width, bias=bias, dtype=dtype)
        self.wo = nn.Linear(dim, dim, bias=bias, dtype=dtype)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, memory: Tensor | None = None, causal: bool = False):
        memory = x if memory is None else memory
        B, T, dim = x.shape
        S = memory.shape[1]
        q = self.wq(x).view(B, T, self.heads, self.width).transpose(1, 2)  # [B, h, T, f]
        kv = self.wkv(memory).view(B, S, 2, self.kv_heads, self.width)
        kv = kv.repeat_interleave(self.heads // self.kv_heads, dim=3)
        k, v = kv.transpose(1, 3).unbind(2)  # 2 x [B, h, S, f]
        bias = self.bias(mask, causal, q, S)

        q = q / math.sqrt(self.width)
        largest = q.new_full((B, self.heads, T, 1), -math.inf)  # so far
        total = torch.zeros_like(largest)  # of exp(score - largest)
        mix = torch.zeros_like(q)  # of the values, each times its exp(score - largest)
        seen = []  # the scores
        for s in range(S):
            score = (q * k[:, :, s, None]).sum(dim=-1, keepdim=True)  # [B, h, T, 1]
            if bias is not None:
                score = score + bias[..., s, None]
            seen.append(score)
            before, largest = largest, torch.maximum(largest, score.detach())
            shift = largest.masked_fill(largest == -math.inf, 0.0)  # -inf - -inf would be NaN
            rescale = torch.exp(before - shift)
            weight = torch.exp(score - shift)
            total = total * rescale + weight
            mix = mix * rescale + F.dropout(weight, self.p_drop, self.training) * v[:, :, s, None]

        total = total.masked_fill(total == 0.0, 1.0)  # a query that has seen no key has a mix of 0
        output = self.wo((mix / total).transpose(1, 2).reshape(B, T, dim))
        weights = torch.exp(torch.cat(seen, dim=-1) - shift) / total
        return output, weights.to(output.dtype)

    def bias(self, mask, causal, q, S):
        """What is added to the scores, of two axes or four, -inf where a key is hidden; None for nothing."""
        if causal:
            T = q.shape[2]
            past = torch.arange(S, device=q.device) <= torch.arange(T, device=q.device)[:, None] + (S - T)
            if mask is None:
                mask = past
            elif mask.dtype == torch.bool:
                mask = mask & past
            else:
                mask = torch.where(past, mask, -math.inf)
        if mask is None or mask.dtype != torch.bool:
            return self.spread(mask, S)
        return self.spread(torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, -math.inf), S)

    def spread(self, mask, S):
        """The mask with all its keys, where it has one for all of them."""
        return mask if mask is None else mask.expand(*mask.shape[:-1], S)


def subject(name: str, supports: Supports) -> Subject:
    """The class above as a subject of the properties."""

    def build(inputs: Inputs) -> nn.Module:
        sizes = {"kv_heads": inputs.num_kv_heads, "dropout": inputs.dropout, "dtype": inputs.x.dtype}
        return StreamingAttention(inputs.x.shape[2], inputs.num_heads, inputs.weights.b_o is not None, **sizes)

    def parameters(w: Weights) -> dict[str, Tensor]:
        named = {"wq.weight": w.w_q, "wkv.weight": torch.cat([w.w_k, w.w_v]), "wo.weight": w.w_o}
        if w.b_q is not None and w.b_k is not None and w.b_v is not None and w.b_o is not None:
            named |= {"wq.bias": w.b_q, "wkv.bias": torch.cat([w.b_k, w.b_v]), "wo.bias": w.b_o}
        return named

    def arguments(inputs: Inputs) -> tuple[tuple[Tensor, Tensor | None], dict[str, object]]:
        return (inputs.x, inputs.mask), {"memory": inputs.context, "causal": inputs.is_causal}

    return of_module(name, build=build, parameters=parameters, arguments=arguments, supports=supports)
