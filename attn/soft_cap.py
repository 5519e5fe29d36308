"""A soft cap: no score leaves a range, and none hits its end."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attn import checks
from attn.multihead import MultiHeadAttention


class SoftCapAttention(MultiHeadAttention):
    """Attention with capped scores (Gemma 2, https://arxiv.org/abs/2408.00118).

        scores = cap * tanh(q k^T / sqrt(d_head) / cap)

    The cap comes before the mask: capped, -inf would be a score like any other.
    """

    def __init__(self, d_model: int, num_heads: int, *, soft_cap: float, **options: Any) -> None:
        super().__init__(d_model, num_heads, **options)
        checks.check_soft_cap(soft_cap)
        self.soft_cap = soft_cap

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Compare every query with every key, scale, then cap."""
        return self.cap(super().score(q, k))

    def cap(self, scores: Tensor) -> Tensor:
        """Bring the scores between the cap and its negative, smoothly."""
        return self.soft_cap * (scores / self.soft_cap).tanh()
