"""Rotary positions with a `rotate_half` and tables of cosines and sines; attention by bmm, [batch*heads, tokens, head_dim]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class RotaryEmbedding(nn.Module):
    """Cosine and sine for every position and every feature that turns."""

    def __init__(self, dim: int, interleaved: bool, base: float = 10000.0, scaling: float = 1.0) -> None:
        super().__init__()
        self.dim, self.interleaved, self.base, self.scaling = dim, interleaved, base, scaling

    def inv_freq(self, device: torch.device) -> Tensor:
        return self.base ** (-torch.arange(0, self.dim, 2, dtype=torch.float64, device=device) / self.dim)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        t = positions.to(torch.float64) / self.scaling
        freqs = t[..., None] * self.inv_freq(positions.device)
        emb = freqs.repeat_interleave(2, dim=-1) if self.interleaved else torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(dtype), emb.sin().to(dtype)


def rotate_half(x: Tensor, interleaved: bool) -> Tensor:
    """A quarter turn of every pair."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class RotarySelfAttention(nn.Module):
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        *,
        rotary_ndims: int | None,
        interleaved: bool,
        scaling: float,
        bias: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads
        self.rotary_ndims = self.head_dim if rotary_ndims is None else rotary_ndims
        self.interleaved = interleaved
        self.rotary = RotaryEmbedding(self.rotary_ndims, interleaved, scaling=scaling)
        self.qkv_proj = nn.Linear(embed_dim, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def fold_heads(self, tokens: Tensor, repeats: int) -> Tensor:
        """[batch, tokens, some heads] -> [batch*num_heads, tokens, head_dim]"""
        heads = tokens.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return heads.repeat_interleave(repeats, dim=1).flatten(0, 1)

    def apply_rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x_rot, x_pass = x[..., : self.rotary_ndims], x[..., self.rotary_ndims :]
        x_rot = x_rot * cos + rotate_half(x_rot, self.interleaved) * sin
        return torch.cat((x_rot, x_pass), dim=-1)

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        b, n, _ = x.shape
        h, g, d = self.num_heads, self.num_kv_heads, self.head_dim
        q, k, v = self.qkv_proj(x).split([h * d, g * d, g * d], dim=-1)
        q, k, v = self.fold_heads(q, 1), self.fold_heads(k, h // g), self.fold_heads(v, h // g)

        if position_ids is None:
            position_ids = torch.arange(n, device=x.device)
        position_ids = position_ids.expand(b, n)
        cos, sin = self.rotary(position_ids, q.dtype)
        cos, sin = cos.repeat_interleave(h, dim=0), sin.repeat_interleave(h, dim=0)  # each sample's, for all its heads
        q, k = self.apply_rotary(q, cos, sin), self.apply_rotary(k, cos, sin)

        visible, bias = torch.ones(n, n, dtype=torch.bool, device=x.device), None
        if causal:
            visible = visible.tril()
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            visible = visible & attention_mask
        elif attention_mask is not None:
            visible = visible & (attention_mask != -torch.inf)
            bias = attention_mask.expand(b, h, n, n).flatten(0, 1)
        visible = visible.expand(b, h, n, n).flatten(0, 1)
        empty = ~visible.any(dim=-1, keepdim=True)

        attn = torch.bmm(q * d**-0.5, k.transpose(1, 2))
        if bias is not None:
            attn = attn + bias
        attn = attn.masked_fill(~visible, -torch.inf).masked_fill(empty, 0.0)
        attn = attn.softmax(dim=-1).masked_fill(empty, 0.0)

        out = torch.bmm(self.dropout(attn), v)
        out = out.unflatten(0, (b, h)).transpose(1, 2).flatten(2)
        return self.out_proj(out), attn.unflatten(0, (b, h))


def subject(name: str, supports: Supports) -> Subject:
    """It as a subject of the properties."""
    return of_module(name, build=_build, parameters=_parameters, arguments=_arguments, supports=supports)


def _build(inputs: Inputs) -> nn.Module:
    return RotarySelfAttention(
        inputs.x.shape[2],
        inputs.num_heads,
        inputs.num_kv_heads,
        rotary_ndims=inputs.mechanisms.rotary_width,
        interleaved=inputs.mechanisms.placing == "rotary_interleaved",
        scaling=inputs.mechanisms.stretch,
        bias=inputs.weights.b_o is not None,
        dropout=inputs.dropout,
    ).to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"qkv_proj.weight": torch.cat([w.w_q, w.w_k, w.w_v]), "out_proj.weight": w.w_o}
    if w.b_q is not None and w.b_k is not None and w.b_v is not None and w.b_o is not None:
        named |= {"qkv_proj.bias": torch.cat([w.b_q, w.b_k, w.b_v]), "out_proj.bias": w.b_o}
    return named


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.mask), {"position_ids": inputs.positions, "causal": inputs.is_causal}
