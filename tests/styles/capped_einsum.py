"""Attention with a soft cap in einsums, in which the query heads of a group have an axis of their own.

Axes: b batch, t queries, s keys, g key/value heads, r query heads for each of them, f features of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class CappedAttention(nn.Module):
    """Scores are brought between -cap and cap before anything is hidden. Returns the output and the weights `[b, h, t, s]`."""

    def __init__(self, d_model, n_heads, cap, *, n_kv_heads=None, bias=False, dropout=0.0, dtype=None):
        super().__init__()
        self.kv_heads = n_kv_heads or n_heads
        self.group = n_heads // self.kv_heads
        self.head_dim = d_model // n_heads
        self.cap = cap
        self.to_q = nn.Linear(d_model, d_model, bias=bias, dtype=dtype)
        self.to_kv = nn.Linear(d_model, 2 * self.kv_heads * self.head_dim, bias=bias, dtype=dtype)
        self.to_out = nn.Linear(d_model, d_model, bias=bias, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, context: Tensor | None = None, causal: bool = False):
        context = x if context is None else context
        q = self.to_q(x).unflatten(-1, (self.kv_heads, self.group, self.head_dim))
        k, v = self.to_kv(context).unflatten(-1, (2, self.kv_heads, self.head_dim)).unbind(2)

        logits = torch.einsum("btgrf,bsgf->bgrts", q, k) * self.head_dim**-0.5
        logits = self.cap * torch.tanh(logits / self.cap)
        logits = logits.flatten(1, 2)

        visible = self.visible(mask, causal, logits)
        if mask is not None and mask.dtype != torch.bool:
            logits = logits + mask.masked_fill(mask == float("-inf"), 0.0)
        # Hidden keys get the smallest number, and nothing of what it leaves them: so rows without a key are zero.
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1).masked_fill(~visible, 0.0)

        kept = self.dropout(weights).unflatten(1, (self.kv_heads, self.group))
        heads = torch.einsum("bgrts,bsgf->btgrf", kept, v)
        return self.to_out(heads.flatten(2)), weights

    def visible(self, mask, causal, logits):
        """Which keys may be seen, of a shape that broadcasts to the scores."""
        t, s = logits.shape[-2:]
        visible = torch.ones(t, s, dtype=torch.bool, device=logits.device)
        if causal:
            visible = visible.tril(s - t)
        if mask is not None:
            visible = visible & (mask if mask.dtype == torch.bool else mask != float("-inf"))
        return visible


def subject(name: str, supports: Supports) -> Subject:
    """The class above as a subject of the properties."""

    def build(inputs: Inputs) -> nn.Module:
        return CappedAttention(
            inputs.x.shape[2],
            inputs.num_heads,
            inputs.mechanisms.soft_cap,
            n_kv_heads=inputs.num_kv_heads,
            bias=inputs.weights.b_o is not None,
            dropout=inputs.dropout,
            dtype=inputs.x.dtype,
        )

    def parameters(w: Weights) -> dict[str, Tensor]:
        named = {"to_q.weight": w.w_q, "to_kv.weight": torch.cat([w.w_k, w.w_v]), "to_out.weight": w.w_o}
        if w.b_q is not None and w.b_k is not None and w.b_v is not None and w.b_o is not None:
            named |= {"to_q.bias": w.b_q, "to_kv.bias": torch.cat([w.b_k, w.b_v]), "to_out.bias": w.b_o}
        return named

    def arguments(inputs: Inputs) -> tuple[tuple[Tensor, Tensor | None], dict[str, object]]:
        return (inputs.x, inputs.mask), {"context": inputs.context, "causal": inputs.is_causal}

    return of_module(name, build=build, parameters=parameters, arguments=arguments, supports=supports)
