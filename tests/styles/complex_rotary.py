"""Rotary positions as products of complex numbers, tokens before heads: [batch, tokens, heads, head_dim]."""

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


def precompute_freqs_cis(positions: Tensor, dim: int, base: float, stretch: float) -> Tensor:
    """A complex number of length 1 for each position and pair: [..., tokens] -> [..., tokens, dim/2]."""
    freqs = 1.0 / base ** (torch.arange(0, dim, 2, device=positions.device).double() / dim)
    angles = (positions.double() / stretch).unsqueeze(-1) * freqs
    return torch.polar(torch.ones_like(angles), angles)


def apply_rotary_emb(x: Tensor, freqs_cis: Tensor, dim: int, interleaved: bool) -> Tensor:
    """Turn the first `dim` features of every head, of [batch, tokens, heads, head_dim]."""
    x_rot, x_pass = x[..., :dim], x[..., dim:]
    x_rot = x_rot.to(torch.promote_types(x.dtype, torch.float32))  # there are no complex numbers of 16-bit halves
    if interleaved:
        pairs = torch.view_as_complex(x_rot.unflatten(-1, (-1, 2)).contiguous())
    else:
        pairs = torch.complex(*x_rot.chunk(2, dim=-1))
    turned = pairs * freqs_cis.to(pairs.dtype).unsqueeze(-2)  # the same for all heads
    if interleaved:
        out = torch.view_as_real(turned).flatten(-2)
    else:
        out = torch.cat([turned.real, turned.imag], dim=-1)
    return torch.cat([out.to(x.dtype), x_pass], dim=-1)


class Attention(nn.Module):
    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        *,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        base: float = 10000.0,
        stretch: float = 1.0,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.rotary_dim = rotary_dim or self.head_dim
        self.interleaved = interleaved
        self.base, self.stretch = base, stretch
        self.p = dropout
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=bias)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=bias)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=bias)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=bias)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, positions: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)

        if positions is None:
            positions = torch.arange(seqlen, device=x.device)
        freqs_cis = precompute_freqs_cis(positions, self.rotary_dim, self.base, self.stretch)
        xq = apply_rotary_emb(xq, freqs_cis, self.rotary_dim, self.interleaved)
        xk = apply_rotary_emb(xk, freqs_cis, self.rotary_dim, self.interleaved)

        xk = xk.repeat_interleave(self.n_heads // self.n_kv_heads, dim=2)
        xv = xv.repeat_interleave(self.n_heads // self.n_kv_heads, dim=2)
        scores = torch.einsum("bqhd,bkhd->bhqk", xq, xk) / math.sqrt(self.head_dim)
        bias = torch.zeros(seqlen, seqlen, dtype=x.dtype, device=x.device)
        if mask is not None:
            bias = bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask
        if is_causal:
            bias = bias + torch.full((seqlen, seqlen), -math.inf, dtype=x.dtype, device=x.device).triu(1)
        blind = (bias == -math.inf).all(dim=-1, keepdim=True)  # sees no key: zero, not NaN
        probs = F.softmax(scores + bias.masked_fill(blind, 0.0), dim=-1).masked_fill(blind, 0.0)

        output = torch.einsum("bhqk,bkhd->bqhd", F.dropout(probs, self.p, self.training), xv)
        return self.wo(output.flatten(2)), probs


def subject(name: str, supports: Supports) -> Subject:
    """It as a subject of the properties."""
    return of_module(name, build=_build, parameters=_parameters, arguments=_arguments, supports=supports)


def _build(inputs: Inputs) -> nn.Module:
    given = inputs.mechanisms
    return Attention(
        inputs.x.shape[2],
        inputs.num_heads,
        inputs.num_kv_heads,
        rotary_dim=given.rotary_width,
        interleaved=given.placing == "rotary_interleaved",
        stretch=given.stretch,
        bias=inputs.weights.b_o is not None,
        dropout=inputs.dropout,
    ).to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"wq.weight": w.w_q, "wk.weight": w.w_k, "wv.weight": w.w_v, "wo.weight": w.w_o}
    named |= {"wq.bias": w.b_q, "wk.bias": w.b_k, "wv.bias": w.b_v, "wo.bias": w.b_o}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.mask), {"positions": inputs.positions, "is_causal": inputs.is_causal}
