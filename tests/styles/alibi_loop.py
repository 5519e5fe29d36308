"""ALiBi with a loop over the heads: every head is a small attention of its own, with its own slope."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


def power_of_two_slopes(n: int) -> list[float]:
    start = 2 ** (-8 / n)
    return [start ** (i + 1) for i in range(n)]


def get_slopes(n: int) -> list[float]:
    """One slope for each of n heads."""
    closest = 2 ** math.floor(math.log2(n))
    slopes = power_of_two_slopes(closest)
    # Not a power of two: fill up with every other slope of the next one.
    slopes += power_of_two_slopes(2 * closest)[0::2][: n - closest]
    return slopes


@dataclass
class Config:
    dim: int
    heads: int
    kv_heads: int
    bias: bool = False
    dropout: float = 0.0


class AlibiSelfAttention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_dim = config.dim // config.heads
        self.group = config.heads // config.kv_heads  # query heads that share a key/value head
        self.dropout = config.dropout
        self.slopes = get_slopes(config.heads)
        kv_dim = config.kv_heads * self.head_dim
        self.query = nn.Linear(config.dim, config.dim, bias=config.bias)
        self.key = nn.Linear(config.dim, kv_dim, bias=config.bias)
        self.value = nn.Linear(config.dim, kv_dim, bias=config.bias)
        self.proj = nn.Linear(config.dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> tuple[Tensor, Tensor]:
        batch, length, _ = x.shape
        queries = self.query(x).split(self.head_dim, dim=-1)  # one [batch, length, head_dim] per head
        keys = self.key(x).split(self.head_dim, dim=-1)
        values = self.value(x).split(self.head_dim, dim=-1)

        position = torch.arange(length, device=x.device)
        distance = (position[:, None] - position[None, :]).abs()
        distance = distance.to(x.dtype)
        hidden = torch.zeros(batch, self.heads, length, length, dtype=torch.bool, device=x.device)
        if mask is not None:
            hidden = hidden | (~mask if mask.dtype == torch.bool else mask == -math.inf)
        if is_causal:
            hidden = hidden | (position[None, :] > position[:, None])

        outputs, all_weights = [], []
        for i in range(self.heads):
            q, k, v = queries[i], keys[i // self.group], values[i // self.group]
            slope = self.slopes[i]
            scores = q @ k.transpose(1, 2) / math.sqrt(self.head_dim)
            scores = scores - slope * distance
            if mask is not None and mask.is_floating_point():
                scores = scores + mask.expand(batch, self.heads, length, length)[:, i]
            scores = scores.masked_fill(hidden[:, i], -math.inf)
            # A softmax over nothing is NaN: such a query gets zeros instead.
            empty = hidden[:, i].all(dim=-1, keepdim=True)
            weights = scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
            all_weights.append(weights)
            outputs.append(F.dropout(weights, self.dropout, self.training) @ v)
        return self.proj(torch.cat(outputs, dim=-1)), torch.stack(all_weights, dim=1)


def subject(name: str, supports: Supports) -> Subject:
    """It as a subject of the properties."""
    return of_module(name, build=_build, parameters=_parameters, arguments=_arguments, supports=supports)


def _build(inputs: Inputs) -> nn.Module:
    bias = inputs.weights.b_o is not None
    config = Config(inputs.x.shape[2], inputs.num_heads, inputs.num_kv_heads, bias, inputs.dropout)
    return AlibiSelfAttention(config).to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    short = {"query": "q", "key": "k", "value": "v", "proj": "o"}
    named = {f"{name}.{kind}": getattr(w, f"{kind[0]}_{letter}") for name, letter in short.items() for kind in ("weight", "bias")}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.mask), {"is_causal": inputs.is_causal}
