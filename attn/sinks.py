"""Sinks: a head that has nothing to say may attend to nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attn.multihead import MultiHeadAttention


class SinkAttention(MultiHeadAttention):
    """Attention in which every head has a learned score for no key at all (gpt-oss, https://arxiv.org/abs/2508.10925; what a
    model does without one: Xiao et al. 2023, https://arxiv.org/abs/2309.17453).

        weights = exp(scores) / (exp(sink of the head) + sum of exp(scores))

    Rows of weights sum to less than 1: the rest is the sink's, and brings no value.
    """

    def __init__(self, d_model: int, num_heads: int, **options: Any) -> None:
        super().__init__(d_model, num_heads, **options)
        weight = self.in_proj.weight
        self.sinks = nn.Parameter(torch.zeros(num_heads, device=weight.device, dtype=weight.dtype))

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        """Let the sink take its share as one more key, and leave it out again."""
        sinks = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)  # [h] -> [B, h, T, 1]
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        return weights if empty is None else weights.masked_fill(empty, 0.0)
