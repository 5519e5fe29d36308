"""What many attentions have besides the formula, as a part of the inputs, and what it adds to the formula.

Rotary positions turn queries and keys, ALiBi and a relative bias are added to the scores, a soft cap bounds them, sinks take a
share of the softmax, QK norm makes queries and keys all one size; a window is a mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from properties.case import Case

BUCKETS, FAR = 4, 8  # of a relative bias: so many buckets, the last of them for all that is as far as this


@dataclass(frozen=True)
class Mechanisms:
    """Which of them there are; `Mechanisms()` is the plain formula. Parameters, where one has any, are among the weights."""

    window: int | None = None  # a query sees so many tokens, itself and those before it
    soft_cap: float | None = None
    placing: str = "none"  # of `properties.case.PLACINGS`
    rotary_width: int | None = None  # features of a head that are rotated, the first ones; None: all
    stretch: float = 1.0  # rotary positions are divided by this
    rotary_base: float = 10_000.0
    qk_norm_eps: float = 1e-6  # added to the mean square
    capacity: int | None = None  # slots of a cache; None: it grows

    @classmethod
    def of(cls, case: Case) -> Mechanisms:
        capacity = None if case.spare is None else case.T + case.spare
        names = ("window", "soft_cap", "placing", "rotary_width", "stretch", "rotary_base", "qk_norm_eps")
        return cls(**{name: getattr(case, name) for name in names}, capacity=capacity)


def rotate(vectors: Tensor, positions: Tensor, mechanisms: Mechanisms) -> Tensor:
    """Turn every pair of features of `[B, h, n, d_head]` by position / stretch * base**(-2i/width), for positions `[B, n]`.

    Su et al. 2021, https://arxiv.org/abs/2104.09864; stretched: Chen et al. 2023, https://arxiv.org/abs/2306.15595.
    """
    if not mechanisms.placing.startswith("rotary"):
        return vectors
    first, second, angles = _pairs(vectors, positions, mechanisms)
    a, b = vectors[..., first], vectors[..., second]
    turned = vectors.clone()
    turned[..., first] = a * angles.cos() - b * angles.sin()
    turned[..., second] = a * angles.sin() + b * angles.cos()
    return turned


def rotated_sizes(sizes: Tensor, positions: Tensor, mechanisms: Mechanisms) -> Tensor:
    """The sum of the absolute values that each feature of the rotated vectors is made of."""
    if not mechanisms.placing.startswith("rotary"):
        return sizes
    first, second, _ = _pairs(sizes, positions, mechanisms)
    both = sizes.clone()
    both[..., first] = both[..., second] = sizes[..., first] + sizes[..., second]
    return both


def _pairs(vectors: Tensor, positions: Tensor, mechanisms: Mechanisms) -> tuple[Tensor, Tensor, Tensor]:
    """The features that turn together, and the angles `[B, 1, n, width/2]`."""
    width = mechanisms.rotary_width or vectors.shape[-1]
    pair = torch.arange(width // 2)
    first, second = (pair, pair + width // 2) if mechanisms.placing == "rotary" else (2 * pair, 2 * pair + 1)
    frequencies = mechanisms.rotary_base ** (-2 * pair.to(torch.float64) / width)
    return first, second, positions[:, None, :, None].to(torch.float64) / mechanisms.stretch * frequencies


def alibi_slopes(num_heads: int) -> Tensor:
    """The slope of each head, float64 `[h]`: 2**(-8/n), its square, ... for the largest power of two n in h; then every other one
    of the series for 2n. Press et al. 2021, https://arxiv.org/abs/2108.12409, and their code for numbers between powers of two.
    """
    n = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / n) for i in range(n)]
    slopes += [2 ** (-8 * (2 * i + 1) / (2 * n)) for i in range(num_heads - n)]
    return torch.tensor(slopes, dtype=torch.float64)


def bucket(distance: int) -> int:
    """The bucket of a key that stands so far before its query: near ones each have one, far ones share, by their logarithm.

    Raffel et al. 2019, https://arxiv.org/abs/1910.10683, for a decoder: what lies ahead is in the bucket of 0.
    """
    near = BUCKETS // 2
    if distance < near:
        return max(distance, 0)
    far = near + int(math.log(distance / near) / math.log(FAR / near) * (BUCKETS - near))
    return min(far, BUCKETS - 1)


def position_bias(queries: Tensor, keys: Tensor, num_heads: int, mechanisms: Mechanisms, table: Tensor | None) -> Tensor | None:
    """What is added to the scores for where a key stands, float64 `[B, h, T, S]`, for positions `[B, T]` and `[B, S]`.

    `table` are the numbers of a relative bias, `[BUCKETS, h]`.
    """
    distance = queries[:, :, None] - keys[:, None, :]  # [B, T, S]
    if mechanisms.placing == "alibi":
        return -alibi_slopes(num_heads)[:, None, None] * distance[:, None].abs().to(torch.float64)
    if mechanisms.placing == "relative_bias" and table is not None:
        buckets = torch.tensor([bucket(d) for d in distance.flatten().tolist()], dtype=torch.long).view(distance.shape)
        return table[buckets].movedim(-1, 1)
    return None


def qk_norm(vectors: Tensor, scale: Tensor | None, eps: float) -> Tensor:
    """Divide by the root of the mean square, and multiply by the scale `[d_head]`; `None`: leave them as they are.

    Henry et al. 2020, https://arxiv.org/abs/2010.04245; here as RMSNorm on each head, as in Qwen3 and Gemma 3.
    """
    return vectors if scale is None else vectors * root_mean_square(vectors, eps).reciprocal() * scale


def root_mean_square(vectors: Tensor, eps: float) -> Tensor:
    """[..., d_head] -> [..., 1]"""
    return (vectors.square().mean(-1, keepdim=True) + eps).sqrt()


def soft_cap(scores: Tensor, cap: float | None) -> Tensor:
    """cap * tanh(scores / cap): Gemma 2, https://arxiv.org/abs/2408.00118. `None`: as they are."""
    return scores if cap is None else cap * (scores / cap).tanh()


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax over the keys of `[B, h, T, S]`, and over the sink of each head `[h]`, whose share belongs to no key.

    gpt-oss, https://arxiv.org/abs/2508.10925. Without sinks, a row of nothing but -inf is NaN.
    """
    if sinks is None:
        return scores.softmax(-1)
    column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
