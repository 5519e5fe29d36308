"""ALiBi: the further a key is away, the lower its score, in every head at another rate."""

from __future__ import annotations

import torch
from torch import Tensor

from attn.multihead import MultiHeadAttention
from attn.relative import distances


def alibi_slopes(num_heads: int, *, device: torch.device | str | None = None) -> Tensor:
    """Return the slope of each head, `[h]`, float64.

    For a power of two, the geometric series that begins with its own ratio, 2**(-8/h). Any other number takes the series of the
    next lower power of two, and what is missing from that of the next higher one, every other slope of it.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    >>> alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    lower = 2 ** (num_heads.bit_length() - 1)
    first = 2 * torch.arange(1, lower + 1, device=device)  # counted in slopes of the next higher power
    rest = 2 * torch.arange(num_heads - lower, device=device) + 1
    return torch.exp2(-4 / lower * torch.cat([first, rest]).to(torch.float64))


class AlibiAttention(MultiHeadAttention):
    """Self-attention with linear biases (Press et al. 2021, https://arxiv.org/abs/2108.12409).

        scores = q k^T / sqrt(d_head) - slope_of_the_head * |position of the query - position of the key|

    The last query stands at the last key: with fewer queries than keys, the first keys are older.
    """

    def forward(  # type: ignore[override]  # no context: there is no distance between two sequences
        self, x: Tensor, attn_mask: Tensor | None = None, *, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `MultiHeadAttention`."""
        return super().forward(x, attn_mask, is_causal=is_causal)

    def slopes(self, device: torch.device) -> Tensor:
        """The slope of each head, `[h]`."""
        return alibi_slopes(self.num_heads, device=device)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Take off what the distance costs."""
        scores = super().score(q, k)
        cost = self.slopes(q.device)[:, None, None] * distances(q.shape[2], k.shape[2], device=q.device).abs()  # [h, T, S]
        return scores - cost.to(scores.dtype)
