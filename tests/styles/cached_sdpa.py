"""A key/value cache around F.scaled_dot_product_attention; the cache lies as kernels like it, [batch, slots, heads, head_dim]."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import Caching, of_module


class KVCache:
    """What was projected so far. With `max_len`, all slots are allocated at once; otherwise it grows."""

    def __init__(self, batch: int, n_kv_heads: int, head_dim: int, max_len: int | None, like: Tensor) -> None:
        self.max_len = max_len
        self.pos = 0
        self.k = like.new_zeros(batch, max_len or 0, n_kv_heads, head_dim)
        self.v = like.new_zeros(batch, max_len or 0, n_kv_heads, head_dim)

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the new ones, [batch, tokens, heads, head_dim], and return them all, [batch, heads, tokens so far, head_dim]."""
        start, end = self.pos, self.pos + k.shape[1]
        if self.max_len is None:
            self.k = torch.cat([self.k, k], dim=1)
            self.v = torch.cat([self.v, v], dim=1)
        else:
            self.k[:, start:end] = k
            self.v[:, start:end] = v
        self.pos = end
        return self.k[:, :end].transpose(1, 2), self.v[:, :end].transpose(1, 2)

    def reorder(self, beam_idx: Tensor) -> None:
        self.k = self.k.index_select(0, beam_idx)
        self.v = self.v.index_select(0, beam_idx)

    def reset(self) -> None:
        self.pos = 0
        if self.max_len is None:
            self.k, self.v = self.k[:, :0], self.v[:, :0]


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int, n_kv_head: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.n_head, self.n_kv_head = n_head, n_kv_head
        self.head_dim = n_embd // n_head
        self.dropout = dropout
        self.c_attn = nn.Linear(n_embd, (n_head + 2 * n_kv_head) * self.head_dim, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)

    def make_cache(self, batch: int, max_len: int | None = None) -> KVCache:
        return KVCache(batch, self.n_kv_head, self.head_dim, max_len, like=self.c_attn.weight)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: KVCache | None = None) -> Tensor:
        B, T, C = x.shape
        past = 0 if cache is None else cache.pos
        if mask is not None and mask.shape[-1] not in (1, past + T):
            raise ValueError(f"mask has {mask.shape[-1]} columns for {past + T} tokens")
        qkv = self.c_attn(x).view(B, T, self.n_head + 2 * self.n_kv_head, self.head_dim)
        q, k, v = qkv.split([self.n_head, self.n_kv_head, self.n_kv_head], dim=2)
        q = q.transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v)
        else:
            k, v = k.transpose(1, 2), v.transpose(1, 2)

        # The flag is_causal has its corner at the first key. The last query is to see the last key, however many are cached.
        S = k.shape[2]
        attn_mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
        if mask is not None:
            attn_mask = attn_mask & mask if mask.dtype == torch.bool else mask.masked_fill(~attn_mask, -torch.inf)

        # A row in which everything is hidden is shown everything, and cleared afterwards: the kernels differ in what they do.
        hidden = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask == -torch.inf
        blank = hidden.all(dim=-1, keepdim=True)
        attn_mask = attn_mask | blank if attn_mask.dtype == torch.bool else attn_mask.masked_fill(blank, 0.0)

        rep = self.n_head // self.n_kv_head
        k, v = k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=p)
        y = y.masked_fill(blank, 0.0)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


def subject(name: str, supports: Supports) -> Subject:
    """It as a subject of the properties; the library function returns no weights."""
    return of_module(
        name,
        build=_build,
        parameters=_parameters,
        arguments=_arguments,
        caching=_caching,
        supports=replace(supports, weights=False, training_weights=False),
    )


def _build(inputs: Inputs) -> nn.Module:
    bias = inputs.weights.b_o is not None
    return CausalSelfAttention(inputs.x.shape[2], inputs.num_heads, inputs.num_kv_heads, bias, inputs.dropout).to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"c_attn.weight": torch.cat([w.w_q, w.w_k, w.w_v]), "c_proj.weight": w.w_o}
    if w.b_q is not None and w.b_k is not None and w.b_v is not None and w.b_o is not None:
        named |= {"c_attn.bias": torch.cat([w.b_q, w.b_k, w.b_v]), "c_proj.bias": w.b_o}
    return named


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.x, inputs.mask), {}


def _caching(module: nn.Module, inputs: Inputs) -> Caching:
    cache = module.make_cache(inputs.x.shape[0], inputs.mechanisms.capacity)
    return Caching(
        arguments=lambda piece: ((piece.x, piece.mask, cache), {}),
        reorder=cache.reorder,
        reset=cache.reset,
    )
