"""Pieces of the clean steps, for the faults that keep them and break something else."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn.masks import boolean_to_additive, causal_mask


def whole_bias(scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """Mask and causal flag as one tensor to add, `[..., T, S]`, as the clean step makes it before it looks for empty rows."""
    bias = scores.new_zeros(scores.shape[-2:])
    if attn_mask is not None:
        bias = boolean_to_additive(attn_mask, scores.dtype) if attn_mask.dtype == torch.bool else attn_mask
    if is_causal:
        bias = bias.masked_fill(~causal_mask(*scores.shape[-2:], device=scores.device), -math.inf)
    return bias
