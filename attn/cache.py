"""A key/value cache: what was said once need not be projected again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn import checks
from attn.multihead import MultiHeadAttention


@dataclass
class Cache:
    """Keys and values of the tokens so far, each `[B, g, slots, d_head]`; made by `CachedAttention.new_cache`."""

    keys: Tensor
    values: Tensor
    length: int = 0  # tokens so far; a static cache has more slots than that
    capacity: int | None = None  # None: it grows


class CachedAttention(MultiHeadAttention):
    """Causal self-attention that can be handed a sequence piece by piece, and gives each piece its rows of the whole.

    cache = attention.new_cache(batch)
    first, _ = attention(x[:, :5], cache=cache)   # the prompt
    sixth, _ = attention(x[:, 5:6], cache=cache)  # one token more
    """

    def new_cache(self, batch: int, capacity: int | None = None) -> Cache:
        """Return an empty cache for so many samples; with a capacity, of a fixed number of slots, so that nothing is copied.

        These are written in place: for generating, not for a backward pass.
        """
        checks.check_capacity(capacity)
        keys = self.in_proj.weight.new_zeros(batch, self.num_kv_heads, capacity or 0, self.d_head)
        return Cache(keys, torch.zeros_like(keys), capacity=capacity)

    def forward(  # type: ignore[override]  # no context: what is remembered are the tokens themselves
        self, x: Tensor, attn_mask: Tensor | None = None, *, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend from `x` `[B, T, d]` to itself and to all that the cache holds, and add it to the cache.

        With S tokens in all, `attn_mask` broadcasts to `[B, h, T, S]`, and so are the weights that come back.
        """
        checks.check_cached(self, x, attn_mask, cache)
        q, k, v = self.project_in(x, None)
        q, k, v = self.split_heads(q), self.split_heads(k), self.split_heads(v)
        if cache is not None:
            k, v = self.append(cache, k, v)
        return self.attend(q, k, v, attn_mask, True)

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values behind the old ones; return all that are filled, 2 x `[B, g, S, d_head]`."""
        old, cache.length = cache.length, cache.length + k.shape[2]
        if cache.capacity is None:
            cache.keys, cache.values = torch.cat([cache.keys, k], dim=2), torch.cat([cache.values, v], dim=2)
        else:
            cache.keys[:, :, old : cache.length] = k
            cache.values[:, :, old : cache.length] = v
        return cache.keys[:, :, : cache.length], cache.values[:, :, : cache.length]

    def reorder(self, cache: Cache, samples: Tensor) -> None:
        """Let sample i go on from what sample `samples[i]` was, `[B]`: beam search keeps some, and drops others."""
        cache.keys, cache.values = cache.keys[samples], cache.values[samples]

    def reset(self, cache: Cache) -> None:
        """Forget everything, and keep the slots."""
        cache.length = 0
        if cache.capacity is None:
            cache.keys, cache.values = cache.keys[:, :, :0], cache.values[:, :, :0]
