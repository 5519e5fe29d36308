"""What decoders of today are made of: rotary positions, a sliding window, and a cache that holds no more than the window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn import checks
from attn.cache import Cache, CachedAttention
from attn.rotary import RotaryAttention
from attn.window import WindowAttention


class DecoderAttention(CachedAttention, RotaryAttention, WindowAttention):
    """Cached, rotary, windowed self-attention, as in Mistral 7B (https://arxiv.org/abs/2310.06825).

    Args:
        d_model, num_heads, options: as for `MultiHeadAttention` and `RotaryAttention`.
        window: how many tokens a query sees, itself among them; None: all.
    """

    def __init__(self, d_model: int, num_heads: int, *, window: int | None = None, **options: Any) -> None:
        super().__init__(d_model, num_heads, window=window, **options)

    def new_cache(self, batch: int, capacity: int | None = None) -> Cache:
        """As `CachedAttention`; with a window a cache has its own end, and takes no capacity."""
        if capacity is not None and self.window is not None:
            raise ValueError(f"capacity={capacity}: a cache with window={self.window} never holds more than that, leave it out")
        return super().new_cache(batch, capacity)

    def forward(  # type: ignore[override]  # no context, and the future is always hidden
        self, x: Tensor, attn_mask: Tensor | None = None, *, positions: Tensor | None = None, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `CachedAttention`; `positions` `[T]` or `[B, T]` are those of `x`, by default counted from the first token on.

        With a window, the cache forgets what is out of it, and the weights that come back are those of the tokens that are left.
        """
        checks.check_cached(self, x, attn_mask, cache)
        if positions is None:
            positions = self.count(x.shape[1], cache, x.device)
        checks.check_positions(positions, x)
        q, k, v = (self.split_heads(part) for part in self.project_in(x, None))
        q, k, v = self.place(q, k, v, positions)
        if cache is not None:
            k, v = self.append(cache, k, v)
            attn_mask = self.crop(attn_mask, k.shape[2])
            self.forget(cache)
        return self.attend(q, k, v, attn_mask, True)

    def count(self, tokens: int, cache: Cache | None, device: torch.device) -> Tensor:
        """The positions of so many new tokens, `[T]`: they go on where the cache ends."""
        first = 0 if cache is None else cache.length
        return torch.arange(first, first + tokens, device=device)

    def crop(self, attn_mask: Tensor | None, keys: int) -> Tensor | None:
        """Keep the columns of the mask, which is over all tokens, that belong to the keys that are left: the last ones."""
        return attn_mask if attn_mask is None or attn_mask.shape[-1] == 1 else attn_mask[..., -keys:]

    def forget(self, cache: Cache) -> None:
        """Keep what the next token sees besides itself. The keys of this call stay whole: its first query looks back furthest."""
        if self.window is not None:
            gone = max(0, cache.keys.shape[2] - (self.window - 1))
            cache.keys, cache.values = cache.keys[:, :, gone:], cache.values[:, :, gone:]
