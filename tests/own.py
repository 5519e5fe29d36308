"""Attention as somebody may hand it in: a small class to be broken, and its pieces."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Own(nn.Module):
    """Self-attention, right: `forward(x, mask)`, bool or added to the scores; an empty row is NaN."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        return self.attend(x, mask)[0]

    def attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = self.mask(q @ k.mT * q.shape[-1] ** -0.5, mask)
        weights = scores.softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2)), weights

    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores
        return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
