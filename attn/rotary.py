"""Rotary positions: queries and keys are turned by where they stand, so that their product knows how far apart they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn import checks
from attn.multihead import MultiHeadAttention


class RotaryAttention(MultiHeadAttention):
    """Self-attention with rotary positions (Su et al. 2021, https://arxiv.org/abs/2104.09864).

        pair i of the token at position p turns by the angle p / stretch * base**(-2i / rotary_width)

    Args:
        d_model, num_heads, options: as for `MultiHeadAttention`.
        rotary_width: how many features of each head turn, the first ones; even. Default: all.
        interleaved: feature 2i turns with 2i + 1, as in the paper; otherwise, as in GPT-NeoX and most after it, i with
            i + rotary_width/2. Weights trained with one are garbage with the other.
        base: the wave length of the slowest pair is about 2 pi times this, in tokens.
        stretch: positions are divided by this, to reach further than in training (Chen et al. 2023,
            https://arxiv.org/abs/2306.15595).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        rotary_width: int | None = None,
        interleaved: bool = False,
        base: float = 10_000.0,
        stretch: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **options)
        self.rotary_width = self.d_head if rotary_width is None else rotary_width
        checks.check_rotary(self.rotary_width, self.d_head, base, stretch)
        self.interleaved = interleaved
        self.base = base
        self.stretch = stretch

    def forward(  # type: ignore[override]  # no context: a position in one sequence is none in another
        self, x: Tensor, attn_mask: Tensor | None = None, *, positions: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `MultiHeadAttention`; `positions` are whole numbers, `[T]` or `[B, T]`, by default 0, 1, 2, ..."""
        checks.check_inputs(self, x, attn_mask, None)
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        checks.check_positions(positions, x)
        q, k, v = (self.split_heads(part) for part in self.project_in(x, None))
        return self.attend(*self.place(q, k, v, positions), attn_mask, is_causal)

    def place(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turn queries and keys, both in the same sense; values are not compared, and stay as they are."""
        return self.rotate(q, positions), self.rotate(k, positions), v

    def frequencies(self, device: torch.device) -> Tensor:
        """How far each pair turns from one position to the next, `[rotary_width/2]`."""
        even = torch.arange(0, self.rotary_width, 2, dtype=torch.float64, device=device)  # 2i
        return self.base ** (-even / self.rotary_width)

    def angles(self, positions: Tensor) -> Tensor:
        """`[T]` or `[B, T]` -> `[1, T, rotary_width/2]` or `[B, 1, T, rotary_width/2]`, the same for every head."""
        places = positions.double() / self.stretch  # in bfloat16, 257 would be 256
        angles = places[..., None] * self.frequencies(positions.device)
        return angles.unsqueeze(-3)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn the pairs of the first features of every head, `[B, h, T, d_head]`."""
        turning, still = x.split([self.rotary_width, self.d_head - self.rotary_width], dim=-1)
        angles = self.angles(positions)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = self.pair(turning)  # 2 x [B, h, T, rotary_width/2]
        return torch.cat([self.unpair(a * cos - b * sin, a * sin + b * cos), still], dim=-1)

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The features that turn together: `[..., width]` -> 2 x `[..., width/2]`."""
        if self.interleaved:
            return x[..., 0::2], x[..., 1::2]
        a, b = x.chunk(2, dim=-1)
        return a, b

    def unpair(self, a: Tensor, b: Tensor) -> Tensor:
        """Put them back where `pair` took them from."""
        return torch.stack([a, b], dim=-1).flatten(-2) if self.interleaved else torch.cat([a, b], dim=-1)
