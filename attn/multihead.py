"""Multi-head attention, one step a method, to be read from top to bottom.

Letters in shapes: B batch, T queries, S keys, h heads, g key/value heads, d = d_model, d_head = d / h.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn import checks
from attn.masks import boolean_to_additive, causal_mask, possibly_any, restrict


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention in several heads (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

        head_i = softmax(q_i k_i^T / sqrt(d_head) + mask) v_i
        output = concat(head_1 ... head_h) W_O^T

    Args:
        d_model: width d of the tokens, in and out.
        num_heads: number of heads h; head i owns the features `i*d_head : (i+1)*d_head`.
        bias: give both projections a bias. Off, as in the paper.
        num_kv_heads: number of key/value heads g, for grouped queries (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245):
            query head i reads key/value head `i // (h // g)`. Default: g = h.
        dropout: probability in [0, 1) that one weight is dropped, in training only.

    Raises ValueError or TypeError, at once and with what to do, for sizes and inputs that do not fit.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        bias: bool = False,
        *,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        checks.check_sizes(d_model, num_heads, self.num_kv_heads, dropout)
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_head = d_model // num_heads
        self.dropout = dropout
        kv_width = self.num_kv_heads * self.d_head
        self.widths = [d_model, kv_width, kv_width]  # of q, k, v; three times d where g = h
        self.in_proj = nn.Linear(d_model, sum(self.widths), bias=bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias, device=device, dtype=dtype)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Attend from `x` to itself, or to `context`.

        Args:
            x: the tokens that ask, `[B, T, d]`.
            attn_mask: `[T, S]`, or four axes that broadcast to `[B, h, T, S]`. Boolean: True = may attend. Floating: added to the
                scores. An integer mask, or one of three axes (batch or heads?), is refused.
            context: the tokens that answer, `[B, S, d]`. Default: `x` itself.
            is_causal: also hide the future, as `attn.causal_mask(T, S)` does.

        Returns:
            The output `[B, T, d]` and the weights `[B, h, T, S]` as they were before dropout: every row sums to 1, or, for a
            query that may attend to no key, is zero. Such an empty row has a zero context, and harms no gradient.
        """
        checks.check_inputs(self, x, attn_mask, context)
        q, k, v = self.project_in(x, context)
        return self.attend(self.split_heads(q), self.split_heads(k), self.split_heads(v), attn_mask, is_causal)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor]:
        """From the heads, `[B, h, T, d_head]` and 2 x `[B, g, S, d_head]`, to the output and the weights."""
        k, v = self.expand_kv_heads(k), self.expand_kv_heads(v)
        scores = self.score(q, k)
        scores, empty = self.mask(scores, attn_mask, is_causal)
        weights = self.softmax(scores, empty)
        heads = self.combine(self.drop(weights), v)
        return self.project_out(self.merge_heads(heads)), weights

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries from `x`, keys and values from `context`: one projection, its rows in the order q, k, v."""
        if context is None:
            q, k, v = self.in_proj(x).split(
                self.widths, dim=-1
            )  # [B, T, 3d] -> 3 x [B, T, d], as chunk(3); k and v are narrower for g < h
            return q, k, v
        d, kv_width, _ = self.widths
        weight_q, weight_kv = self.in_proj.weight.split([d, 2 * kv_width])  # rows of the same matrix
        bias_q, bias_kv = (None, None) if self.in_proj.bias is None else self.in_proj.bias.split([d, 2 * kv_width])
        k, v = F.linear(context, weight_kv, bias_kv).chunk(2, dim=-1)  # 2 x [B, S, g*d_head]
        return F.linear(x, weight_q, bias_q), k, v

    def split_heads(self, x: Tensor) -> Tensor:
        """Give every head its own features: first name the head axis, then move it in front of the tokens."""
        x = x.view(*x.shape[:2], x.shape[2] // self.d_head, self.d_head)  # [B, T, d] -> [B, T, h, d_head]
        return x.transpose(1, 2)  # [B, h, T, d_head]

    def expand_kv_heads(self, x: Tensor) -> Tensor:
        """Repeat each key/value head for its group of query heads, neighbours first: 0 0 1 1, not 0 1 0 1."""
        return x if self.num_kv_heads == self.num_heads else x.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Compare every query with every key. Scaling q costs less than scaling the scores, and keeps half precision in range."""
        return (q / math.sqrt(self.d_head)) @ k.mT  # [B, h, T, d_head] @ [B, h, d_head, S] -> [B, h, T, S]

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        """Add the mask to the scores, in place, -inf for a hidden key; also say which rows are empty, `[..., 1]`, if any is."""
        if is_causal:
            *_, queries, keys = scores.shape
            attn_mask = restrict(attn_mask, causal_mask(queries, keys, device=scores.device))
        if attn_mask is None:
            return scores, None
        bias = boolean_to_additive(attn_mask, scores.dtype) if attn_mask.dtype == torch.bool else attn_mask
        empty = (bias == -math.inf).all(dim=-1, keepdim=True)
        if not possibly_any(empty):  # saves `softmax` a pass
            return scores.add_(bias), None
        # A row of nothing but -inf would be NaN, and its gradient too, even if the result is thrown away: leave it finite here.
        return scores.add_(bias.masked_fill(empty, 0.0)), empty

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        """Turn the scores of each query into weights over its keys; an empty row gives zero weights."""
        weights = scores.softmax(dim=-1)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    def drop(self, weights: Tensor) -> Tensor:
        """Drop single weights and scale up the others, in training only."""
        return F.dropout(weights, self.dropout, training=self.training)

    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        """Mix the values of each head by its weights."""
        return weights @ v  # [B, h, T, S] @ [B, h, S, d_head] -> [B, h, T, d_head]

    def merge_heads(self, heads: Tensor) -> Tensor:
        """Undo `split_heads`: move the head axis back, then lay the heads side by side."""
        heads = heads.transpose(1, 2).contiguous()  # [B, T, h, d_head]; a transposed view cannot be flattened in place
        return heads.view(*heads.shape[:2], self.d_model)  # [B, T, d]

    def project_out(self, merged: Tensor) -> Tensor:
        """Mix the heads."""
        return self.out_proj(merged)  # type: ignore[no-any-return]
