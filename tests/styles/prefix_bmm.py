"""Attention of a prefix language model, `[B*h, T, f]`, in which `baddbmm` adds the mask to the scores it makes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class PrefixAttention(nn.Module):
    """The first `prefix[b]` tokens of a sample see each other, the rest is causal. Returns output and weights `[B, h, T, T]`."""

    def __init__(self, width, heads, kv_heads, *, bias=False, dropout=0.0, dtype=None):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.dropout = dropout
        self.q = nn.Linear(width, width, bias=bias, dtype=dtype)
        self.k = nn.Linear(width, kv_heads * self.head_width, bias=bias, dtype=dtype)
        self.v = nn.Linear(width, kv_heads * self.head_width, bias=bias, dtype=dtype)
        self.out = nn.Linear(width, width, bias=bias, dtype=dtype)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, prefix: Tensor):
        B, T, width = x.shape
        q, k, v = self.fold(self.q(x)), self.fold(self.k(x)), self.fold(self.v(x))

        position = torch.arange(T, device=x.device)
        past = position[None, :] <= position[:, None]  # [T, T]
        in_prefix = position < prefix[:, None]  # [B, T]
        visible = past | in_prefix[:, None, :]  # [B, T, T]
        bias = self.additive(mask, q.dtype, (B, T)).masked_fill(~visible[:, None], float("-inf"))

        bias = bias.reshape(B * self.heads, T, T)
        blind = torch.isneginf(bias).all(dim=-1, keepdim=True)  # sees no key: softmax would give NaN
        scores = torch.baddbmm(bias.masked_fill(blind, 0.0), q, k.transpose(1, 2), alpha=self.head_width**-0.5)
        weights = scores.softmax(dim=-1).masked_fill(blind, 0.0)

        mixed = torch.bmm(F.dropout(weights, self.dropout, self.training), v)
        mixed = mixed.view(B, self.heads, T, self.head_width).transpose(1, 2).reshape(B, T, width)
        return self.out(mixed), weights.view(B, self.heads, T, T)

    def fold(self, x):
        """[B, T, heads or kv_heads * f] -> [B*heads, T, f]"""
        B, T, width = x.shape
        x = x.view(B, T, width // self.head_width, self.head_width).transpose(1, 2)
        x = x.repeat_interleave(self.heads // x.shape[1], dim=1)
        return x.reshape(B * self.heads, T, self.head_width)

    def additive(self, mask, dtype, sizes):
        """The caller's mask, `[B, h, T, T]`, as it is added to scores; zeros if there is none."""
        B, T = sizes
        if mask is None:
            mask = torch.zeros(T, T, dtype=dtype, device=self.q.weight.device)
        elif mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))
        return mask.to(dtype).expand(B, self.heads, T, T)


def subject(name: str, supports: Supports) -> Subject:
    """The class above as a subject of the properties."""

    def build(inputs: Inputs) -> nn.Module:
        sizes = inputs.x.shape[2], inputs.num_heads, inputs.num_kv_heads
        return PrefixAttention(*sizes, bias=inputs.weights.b_o is not None, dropout=inputs.dropout, dtype=inputs.x.dtype)

    def parameters(w: Weights) -> dict[str, Tensor]:
        named = {"q.weight": w.w_q, "k.weight": w.w_k, "v.weight": w.w_v, "out.weight": w.w_o}
        named |= {"q.bias": w.b_q, "k.bias": w.b_k, "v.bias": w.b_v, "out.bias": w.b_o}
        return {key: tensor for key, tensor in named.items() if tensor is not None}

    def arguments(inputs: Inputs) -> tuple[tuple[Tensor, Tensor | None], dict[str, object]]:
        return (inputs.x, inputs.mask), {"prefix": inputs.prefix}

    return of_module(name, build=build, parameters=parameters, arguments=arguments, supports=supports)
