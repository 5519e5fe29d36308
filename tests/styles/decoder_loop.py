"""A decoder's attention, head by head: rotations as 2 x 2 matrices, a window, a cache with a list of tensors, one for a head."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import Caching, of_module


class Past:
    """Keys (turned already) and values of each key/value head, [batch, tokens held, head_dim], and how many tokens went by."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.clear()

    def clear(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.seen = 0

    def add(self, keys: list[Tensor], values: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Append the new tokens; return all that are held."""
        self.seen += keys[0].shape[1]
        if self.capacity is not None and self.seen > self.capacity:
            raise ValueError(f"{self.seen} tokens are more than {self.capacity}")
        if self.keys:
            keys = [torch.cat(pair, dim=1) for pair in zip(self.keys, keys, strict=True)]
            values = [torch.cat(pair, dim=1) for pair in zip(self.values, values, strict=True)]
        self.keys, self.values = keys, values
        return keys, values

    def keep_last(self, tokens: int) -> None:
        held = self.keys[0].shape[1]
        old = max(0, held - tokens)
        self.keys = [k[:, old:] for k in self.keys]
        self.values = [v[:, old:] for v in self.values]

    def select(self, samples: Tensor) -> None:
        self.keys = [k[samples] for k in self.keys]
        self.values = [v[samples] for v in self.values]


class DecoderSelfAttention(nn.Module):
    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        *,
        rotary_dim: int | None,
        interleaved: bool,
        stretch: float,
        window: int | None,
        bias: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.rotary_dim = rotary_dim or self.head_dim
        self.interleaved, self.stretch = interleaved, stretch
        self.window = window
        self.dropout = dropout
        self.q = nn.Linear(dim, dim, bias=bias)
        self.k = nn.Linear(dim, kv_heads * self.head_dim, bias=bias)
        self.v = nn.Linear(dim, kv_heads * self.head_dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    def rotations(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """A matrix for each token and pair of features, [tokens, pairs, 2, 2], or with the batch in front."""
        pair = torch.arange(self.rotary_dim // 2, dtype=torch.float64, device=positions.device)
        angle = positions[..., None] / self.stretch * 10000 ** (-2 * pair / self.rotary_dim)
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([torch.stack([cos, -sin], dim=-1), torch.stack([sin, cos], dim=-1)], dim=-2).to(dtype)

    def turn(self, x: Tensor, rotations: Tensor) -> Tensor:
        """Of one head, [batch, tokens, head_dim]."""
        turning, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        # [batch, tokens, pairs, 2]
        pairs = turning.unflatten(-1, (-1, 2)) if self.interleaved else turning.unflatten(-1, (2, -1)).transpose(-1, -2)
        pairs = (rotations * pairs.unsqueeze(-2)).sum(dim=-1)
        turned = pairs if self.interleaved else pairs.transpose(-1, -2)
        return torch.cat([turned.flatten(-2), rest], dim=-1)

    def visible(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """The queries are the last of the keys."""
        query = torch.arange(keys - queries, keys, device=device)[:, None]
        key = torch.arange(keys, device=device)[None, :]
        visible = key <= query
        if self.window is not None:
            visible = visible & (key > query - self.window)
        return visible

    def forward(
        self, x: Tensor, mask: Tensor | None = None, positions: Tensor | None = None, past: Past | None = None
    ) -> tuple[Tensor, Tensor]:
        batch, tokens, _ = x.shape
        if positions is None:
            offset = 0 if past is None else past.seen
            positions = torch.arange(offset, offset + tokens, device=x.device)
        qs = list(self.q(x).split(self.head_dim, dim=-1))
        ks = list(self.k(x).split(self.head_dim, dim=-1))
        vs = list(self.v(x).split(self.head_dim, dim=-1))
        rotations = self.rotations(positions, qs[0].dtype)
        qs = [self.turn(q, rotations) for q in qs]
        ks = [self.turn(k, rotations) for k in ks]
        if past is not None:
            ks, vs = past.add(ks, vs)
            if self.window is not None:
                past.keep_last(self.window - 1)  # the next token brings itself along

        total = ks[0].shape[1]
        visible = self.visible(tokens, total, x.device)
        bias = None
        if mask is not None:
            if mask.shape[-1] > 1:
                mask = mask[..., -total:]  # it is over all tokens, also those that the cache has let go
            mask = mask.expand(batch, self.heads, tokens, total)
            visible = visible & (mask if mask.dtype == torch.bool else mask > -math.inf)
            bias = mask if mask.is_floating_point() else None
        visible = visible.expand(batch, self.heads, tokens, total)

        results, shares = [], []
        for head in range(self.heads):
            k, v = (of_each[head * self.kv_heads // self.heads] for of_each in (ks, vs))
            scores = torch.matmul(qs[head], k.transpose(-2, -1)) * self.head_dim**-0.5
            if bias is not None:
                scores = scores + bias[:, head]
            seen = visible[:, head]
            some = seen.any(dim=-1, keepdim=True)
            # Where nothing is seen, exp(0) everywhere, times 0.
            share = torch.where(seen, scores, -math.inf).masked_fill(~some, 0.0).softmax(dim=-1).masked_fill(~some, 0.0)
            shares.append(share)
            results.append(F.dropout(share, self.dropout, self.training) @ v)
        return self.out(torch.cat(results, dim=-1)), torch.stack(shares, dim=1)


def subject(name: str, supports: Supports) -> Subject:
    """It as a subject of the properties."""
    return of_module(name, build=_build, parameters=_parameters, arguments=_arguments, caching=_caching, supports=supports)


def _build(inputs: Inputs) -> nn.Module:
    given = inputs.mechanisms
    return DecoderSelfAttention(
        inputs.x.shape[2],
        inputs.num_heads,
        inputs.num_kv_heads,
        rotary_dim=given.rotary_width,
        interleaved=given.placing == "rotary_interleaved",
        stretch=given.stretch,
        window=given.window,
        bias=inputs.weights.b_o is not None,
        dropout=inputs.dropout,
    ).to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"q.weight": w.w_q, "k.weight": w.w_k, "v.weight": w.w_v, "out.weight": w.w_o}
    named |= {"q.bias": w.b_q, "k.bias": w.b_k, "v.bias": w.b_v, "out.bias": w.b_o}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.mask), {"positions": inputs.positions}


def _caching(module: nn.Module, inputs: Inputs) -> Caching:
    past = Past(inputs.mechanisms.capacity if module.window is None else None)
    return Caching(
        arguments=lambda piece: ((piece.x, piece.mask), {"positions": piece.positions, "past": past}),
        reorder=past.select,
        reset=past.clear,
    )
