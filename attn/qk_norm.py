"""QK norm: what counts is where queries and keys point, not how long they are."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attn.multihead import MultiHeadAttention


class QKNormAttention(MultiHeadAttention):
    """Attention with normalised queries and keys (Henry et al. 2020, https://arxiv.org/abs/2010.04245; as RMSNorm on each head
    in Qwen3, https://arxiv.org/abs/2505.09388, and Gemma 3, https://arxiv.org/abs/2503.19786).

        q_i <- q_i / sqrt(mean(q_i**2) + 1e-6) * query_norm.weight, likewise k_i
    """

    def __init__(self, d_model: int, num_heads: int, **options: Any) -> None:
        super().__init__(d_model, num_heads, **options)
        weight = self.in_proj.weight
        self.query_norm = nn.RMSNorm(self.d_head, eps=1e-6, device=weight.device, dtype=weight.dtype)
        self.key_norm = nn.RMSNorm(self.d_head, eps=1e-6, device=weight.device, dtype=weight.dtype)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Normalise, then compare as ever, with the scale as ever."""
        return super().score(*self.normalise(q, k))

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Bring each head of each token to one length, `[B, h, T or S, d_head]`."""
        return self.query_norm(q), self.key_norm(k)
