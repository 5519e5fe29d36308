"""A sliding window: a query sees the last few tokens only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn import checks
from attn.masks import restrict
from attn.multihead import MultiHeadAttention


def window_mask(window: int, queries: int, keys: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
    """Return the boolean mask `[T, S]` of a causal window: each query sees itself and the `window - 1` tokens before it.

    >>> window_mask(2, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    keys = queries if keys is None else keys
    checks.check_window(window)
    square = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return square.tril(keys - queries) & square.triu(keys - queries - window + 1)


class WindowAttention(MultiHeadAttention):
    """Causal self-attention in a sliding window (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150; Mistral 7B,
    https://arxiv.org/abs/2310.06825).

    Args:
        d_model, num_heads, options: as for `MultiHeadAttention`.
        window: how many tokens a query sees, itself among them; None: all.
    """

    def __init__(self, d_model: int, num_heads: int, *, window: int | None, **options: Any) -> None:
        super().__init__(d_model, num_heads, **options)
        if window is not None:
            checks.check_window(window)
        self.window = window

    def forward(  # type: ignore[override]  # no context: it has no last few tokens
        self, x: Tensor, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `MultiHeadAttention`, with the future and what is out of the window hidden."""
        return super().forward(x, attn_mask, is_causal=True)

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        """Hide what is out of the window as well."""
        return super().mask(scores, self.hide_distant(scores, attn_mask), is_causal)

    def hide_distant(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        """Hide, besides what `attn_mask` hides, what is out of the window."""
        if self.window is None:
            return attn_mask
        return restrict(attn_mask, window_mask(self.window, *scores.shape[-2:], device=scores.device))
