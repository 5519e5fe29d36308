"""A relative position bias: every head learns what a distance is worth."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attn import checks
from attn.multihead import MultiHeadAttention


def distances(queries: int, keys: int, *, device: torch.device | str | None = None) -> Tensor:
    """Return how far each key stands before each query, `[T, S]`, negative for one after it; the last query is at the last key.

    >>> distances(2, 3).tolist()
    [[1, 0, -1], [2, 1, 0]]
    """
    places = torch.arange(keys - queries, keys, device=device)
    return places[:, None] - torch.arange(keys, device=device)


class RelativeBiasAttention(MultiHeadAttention):
    """Causal self-attention with a learned bias for each bucket of distances (T5, Raffel et al. 2019,
    https://arxiv.org/abs/1910.10683).

        scores = q k^T / sqrt(d_head) + table[bucket(position of the query - position of the key), head]

    Args:
        d_model, num_heads, options: as for `MultiHeadAttention`.
        buckets: how many there are. The first half has one distance each; the others share what is left by its logarithm.
        far: from this distance on everything is in the last bucket.
    """

    def __init__(self, d_model: int, num_heads: int, *, buckets: int = 32, far: int = 128, **options: Any) -> None:
        super().__init__(d_model, num_heads, **options)
        checks.check_buckets(buckets, far)
        self.buckets = buckets
        self.far = far
        weight = self.in_proj.weight
        self.table = nn.Parameter(torch.zeros(buckets, num_heads, device=weight.device, dtype=weight.dtype))

    def forward(  # type: ignore[override]  # no context: there is no distance between two sequences
        self, x: Tensor, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `MultiHeadAttention`, with the future hidden."""
        return super().forward(x, attn_mask, is_causal=True)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each distance, of the same shape. What lies ahead is hidden anyway; it gets bucket 0."""
        near = self.buckets // 2
        ratio = distance.clamp(min=near).double() / near
        far = near + (ratio.log() / math.log(self.far / near) * (self.buckets - near)).long()
        return torch.where(distance < near, distance.clamp(min=0), far.clamp(max=self.buckets - 1))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Add what the distance is worth."""
        scores = super().score(q, k)
        buckets = self.bucket(distances(q.shape[2], k.shape[2], device=q.device))  # [T, S]
        return scores + self.table[buckets].movedim(-1, 0)  # [T, S, h] -> [h, T, S]
