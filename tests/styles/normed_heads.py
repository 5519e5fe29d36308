"""Attention with QK norm, the norm written by hand, as in the code of large language models.

Queries and keys are normalised as they come out of the projections, `[B, T, h, f]`; then the heads come first, `[h, B, T, f]`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class RMSNorm(nn.Module):
    """x / sqrt(mean(x**2) + eps) * weight, over the last axis."""

    def __init__(self, width, eps=1e-6, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width, dtype=dtype))

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # squares need the range
        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


class NormedAttention(nn.Module):
    """Queries and keys are normalised head by head. Returns the output and the weights `[B, h, T, S]`."""

    def __init__(self, dim, n_heads, n_kv_heads=None, bias=False, dropout=0.0, dtype=None):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads or n_heads, dim // n_heads
        kv_dim = self.n_kv_heads * self.head_dim
        self.wq = nn.Linear(dim, dim, bias, dtype=dtype)
        self.wk = nn.Linear(dim, kv_dim, bias, dtype=dtype)
        self.wv = nn.Linear(dim, kv_dim, bias, dtype=dtype)
        self.wo = nn.Linear(dim, dim, bias, dtype=dtype)
        self.q_norm = RMSNorm(self.head_dim, dtype=dtype)
        self.k_norm = RMSNorm(self.head_dim, dtype=dtype)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, source: Tensor | None = None, causal: bool = False):
        source = x if source is None else source
        B, T, dim = x.shape
        S = source.shape[1]
        xq = self.wq(x).view(B, T, self.n_heads, self.head_dim)
        xk = self.wk(source).view(B, S, self.n_kv_heads, self.head_dim)
        xv = self.wv(source).view(B, S, self.n_kv_heads, self.head_dim)
        xq, xk = self.q_norm(xq), self.k_norm(xk)

        xq, xk, xv = (heads.permute(2, 0, 1, 3) for heads in (xq, xk, xv))  # [heads, B, T or S, f]
        xk, xv = (heads.repeat_interleave(self.n_heads // self.n_kv_heads, dim=0) for heads in (xk, xv))
        scores = torch.matmul(xq * self.head_dim**-0.5, xk.transpose(-2, -1))  # [h, B, T, S]

        allowed = torch.ones(T, S, dtype=torch.bool, device=x.device)
        if causal:
            allowed = allowed.tril(S - T)
        if mask is not None:
            mask = mask.transpose(0, 1) if mask.dim() == 4 else mask  # heads first, like the scores
            if mask.dtype == torch.bool:
                allowed = allowed & mask
            else:
                allowed, scores = allowed & (mask > -torch.inf), scores + mask
        nothing = ~allowed.any(dim=-1, keepdim=True)
        scores = torch.where(allowed, scores, -torch.inf)
        weights = torch.where(nothing, 0.0, torch.softmax(torch.where(nothing, 0.0, scores), dim=-1))

        mixed = torch.matmul(self.drop(weights), xv)  # [h, B, T, f]
        output = self.wo(mixed.permute(1, 2, 0, 3).reshape(B, T, dim))
        return output, weights.transpose(0, 1)


def subject(name: str, supports: Supports) -> Subject:
    """The class above as a subject of the properties."""

    def build(inputs: Inputs) -> nn.Module:
        sizes = inputs.x.shape[2], inputs.num_heads, inputs.num_kv_heads
        return NormedAttention(*sizes, inputs.weights.b_o is not None, inputs.dropout, inputs.x.dtype)

    def parameters(w: Weights) -> dict[str, Tensor]:
        named = {"wq.weight": w.w_q, "wk.weight": w.w_k, "wv.weight": w.w_v, "wo.weight": w.w_o}
        named |= {"wq.bias": w.b_q, "wk.bias": w.b_k, "wv.bias": w.b_v, "wo.bias": w.b_o}
        named |= {"q_norm.weight": w.n_q, "k_norm.weight": w.n_k}
        return {key: tensor for key, tensor in named.items() if tensor is not None}

    def arguments(inputs: Inputs) -> tuple[tuple[Tensor, Tensor | None], dict[str, object]]:
        return (inputs.x, inputs.mask), {"source": inputs.context, "causal": inputs.is_causal}

    return of_module(name, build=build, parameters=parameters, arguments=arguments, supports=supports)
