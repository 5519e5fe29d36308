"""Multi-head attention as fairseq and old versions of PyTorch have it.

One packed parameter, time first, and the heads of all samples in one axis: [B*h, T, d_head].
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class BmmAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, num_kv_heads: int, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads
        self.kv_dim = self.head_dim * num_kv_heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(embed_dim + 2 * self.kv_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.empty(embed_dim + 2 * self.kv_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.scaling = self.head_dim**-0.5
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)

    def forward(
        self, query: Tensor, key: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Batch first outside: query [B, T, d], key [B, S, d]; without key, self-attention."""
        query = query.transpose(0, 1)  # [T, B, d]
        key = query if key is None else key.transpose(0, 1)  # [S, B, d]
        tgt_len, bsz, _ = query.shape
        src_len = key.shape[0]

        q = self.in_proj(query, 0, self.embed_dim)
        k = self.in_proj(key, self.embed_dim, self.kv_dim)
        v = self.in_proj(key, self.embed_dim + self.kv_dim, self.kv_dim)
        q = q * self.scaling
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)  # [B*h, T, d_head]
        k = k.contiguous().view(src_len, bsz * self.num_kv_heads, self.head_dim).transpose(0, 1)  # [B*g, S, d_head]
        v = v.contiguous().view(src_len, bsz * self.num_kv_heads, self.head_dim).transpose(0, 1)
        shared_by = self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(shared_by, dim=0), v.repeat_interleave(shared_by, dim=0)  # [B*h, S, d_head]

        scores = torch.bmm(q, k.transpose(1, 2))  # [B*h, T, S]
        if attn_mask is not None:
            scores = masked(scores, for_every_head(attn_mask, bsz, self.num_heads, tgt_len, src_len))
        if is_causal:
            visible = torch.ones(tgt_len, src_len, dtype=torch.bool, device=scores.device).tril(src_len - tgt_len)
            scores = masked(scores, visible)

        # Where all is hidden there is nothing to attend to, and the softmax of it would be NaN.
        nothing = (scores == -math.inf).all(dim=-1, keepdim=True)
        weights = F.softmax(scores.masked_fill(nothing, 0.0), dim=-1)
        weights = weights.masked_fill(nothing, 0.0)

        attn = torch.bmm(F.dropout(weights, self.dropout, self.training), v)  # [B*h, T, d_head]
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, self.embed_dim)
        attn = self.out_proj(attn)
        return attn.transpose(0, 1), weights.view(bsz, self.num_heads, tgt_len, src_len)

    def in_proj(self, tokens: Tensor, start: int, width: int) -> Tensor:
        """Project by some rows of the packed parameter, which holds those of q, k and v in this order."""
        bias = None if self.in_proj_bias is None else self.in_proj_bias[start : start + width]
        return F.linear(tokens, self.in_proj_weight[start : start + width], bias)


def for_every_head(mask: Tensor, bsz: int, num_heads: int, tgt_len: int, src_len: int) -> Tensor:
    """[T, S], or what broadcasts to [B, h, T, S], as [B*h, T, S]"""
    if mask.dim() == 4 and mask.shape[1] > 1:  # the heads have masks of their own
        return mask.expand(bsz, num_heads, tgt_len, src_len).flatten(0, 1)
    mask = mask.expand(bsz, 1, tgt_len, src_len).squeeze(1)  # [B, T, S]
    return mask.repeat_interleave(num_heads, dim=0)


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """The scores under a mask: a boolean one shows where it is True, any other is added."""
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    return scores + mask


def subject(name: str, supports: Supports) -> Subject:
    return of_module(name, build=_build, parameters=_parameters, arguments=_arguments, supports=supports)


def _build(inputs: Inputs) -> nn.Module:
    bias = inputs.weights.b_o is not None
    attention = BmmAttention(inputs.x.shape[2], inputs.num_heads, inputs.num_kv_heads, bias, inputs.dropout)
    return attention.to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"in_proj_weight": torch.cat([w.w_q, w.w_k, w.w_v]), "out_proj.weight": w.w_o}
    if w.b_o is not None:
        named |= {"in_proj_bias": torch.cat([w.b_q, w.b_k, w.b_v]), "out_proj.bias": w.b_o}
    return named


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.context), {"attn_mask": inputs.mask, "is_causal": inputs.is_causal}
