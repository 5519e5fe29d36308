"""A sliding window in `[batch*heads, tokens, head_dim]`: window and mask are one bias, which baddbmm adds to the products."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module

NEG_INF = float("-inf")


class LocalAttention(nn.Module):
    """Causal, and no further back than the window, which counts the query itself."""

    def __init__(self, dim: int, num_heads: int, num_kv_heads: int, window_size: int | None, bias: bool, p_drop: float) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.dim_head = num_heads, num_kv_heads, dim // num_heads
        self.window_size = window_size
        self.p_drop = p_drop
        self.to_q = nn.Linear(dim, dim, bias=bias)
        self.to_kv = nn.Linear(dim, 2 * num_kv_heads * self.dim_head, bias=bias)
        self.to_out = nn.Linear(dim, dim, bias=bias)

    def local_mask(self, tokens: int, device: torch.device) -> Tensor:
        """True where a query sees a key, [tokens, tokens]."""
        query = torch.arange(tokens, device=device).unsqueeze(1)
        key = torch.arange(tokens, device=device).unsqueeze(0)
        causal = key <= query
        if self.window_size is None:
            return causal
        return causal & (query - key < self.window_size)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        batch, tokens, _ = x.shape
        bh = batch * self.num_heads
        q = self.to_q(x).unflatten(2, (self.num_heads, self.dim_head))
        k, v = self.to_kv(x).unflatten(2, (2, self.num_kv_heads, 1, self.dim_head)).unbind(2)
        shape = (-1, -1, -1, self.num_heads // self.num_kv_heads, -1)
        k, v = k.expand(shape).flatten(2, 3), v.expand(shape).flatten(2, 3)
        # [batch, tokens, heads, dim_head] -> [batch*heads, tokens, dim_head]
        q, k, v = (part.permute(0, 2, 1, 3).reshape(bh, tokens, self.dim_head) for part in (q, k, v))

        visible = self.local_mask(tokens, x.device)
        bias = torch.zeros_like(visible, dtype=q.dtype).masked_fill(~visible, NEG_INF)
        if mask is not None:
            if mask.dtype == torch.bool:
                mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, NEG_INF)
            bias = bias + mask
        bias = bias.expand(batch, self.num_heads, tokens, tokens).reshape(bh, tokens, tokens)

        none = (bias == NEG_INF).all(-1, keepdim=True)
        bias = bias.masked_fill(none, 0.0)  # no NaN from the softmax of a query that sees nothing
        scores = torch.baddbmm(bias.to(q.dtype), q * self.dim_head**-0.5, k.transpose(1, 2))
        attn = scores.softmax(-1).masked_fill(none, 0.0)
        out = torch.bmm(F.dropout(attn, self.p_drop, self.training), v)

        out = out.view(batch, self.num_heads, tokens, self.dim_head).permute(0, 2, 1, 3).flatten(2)
        return self.to_out(out), attn.view(batch, self.num_heads, tokens, tokens)


def subject(name: str, supports: Supports) -> Subject:
    """It as a subject of the properties."""
    return of_module(name, build=_build, parameters=_parameters, arguments=_arguments, supports=supports)


def _build(inputs: Inputs) -> nn.Module:
    return LocalAttention(
        inputs.x.shape[2],
        inputs.num_heads,
        inputs.num_kv_heads,
        window_size=inputs.mechanisms.window,
        bias=inputs.weights.b_o is not None,
        p_drop=inputs.dropout,
    ).to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"to_q.weight": w.w_q, "to_kv.weight": torch.cat([w.w_k, w.w_v]), "to_out.weight": w.w_o}
    if w.b_q is not None and w.b_k is not None and w.b_v is not None and w.b_o is not None:
        named |= {"to_q.bias": w.b_q, "to_kv.bias": torch.cat([w.b_k, w.b_v]), "to_out.bias": w.b_o}
    return named


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.mask), {}
