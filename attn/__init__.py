"""A clean multi-head attention: the lesson, and the reference every fault in `faults` departs from by one step."""

from attn.convert import from_torch, to_torch
from attn.masks import additive_to_boolean, boolean_to_additive, causal_mask, padding_mask
from attn.multihead import MultiHeadAttention

__all__ = [
    "MultiHeadAttention",
    "additive_to_boolean",
    "boolean_to_additive",
    "causal_mask",
    "from_torch",
    "padding_mask",
    "to_torch",
]
