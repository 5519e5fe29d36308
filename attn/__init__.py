"""A clean multi-head attention: the lesson, and the reference every fault in `faults` departs from by one step.

`MultiHeadAttention` is the lesson. What else attention has nowadays stands on top of it, each in a file of its own.
"""

from attn.alibi import AlibiAttention, alibi_slopes
from attn.cache import Cache, CachedAttention
from attn.convert import from_torch, to_torch
from attn.decoder import DecoderAttention
from attn.left_padding import positions_without_padding
from attn.masks import additive_to_boolean, boolean_to_additive, causal_mask, padding_mask
from attn.multihead import MultiHeadAttention
from attn.packed import PackedAttention, document_mask
from attn.prefix import PrefixAttention, prefix_mask
from attn.qk_norm import QKNormAttention
from attn.relative import RelativeBiasAttention
from attn.rotary import RotaryAttention
from attn.sinks import SinkAttention
from attn.soft_cap import SoftCapAttention
from attn.window import WindowAttention, window_mask

__all__ = [
    "AlibiAttention",
    "Cache",
    "CachedAttention",
    "DecoderAttention",
    "MultiHeadAttention",
    "PackedAttention",
    "PrefixAttention",
    "QKNormAttention",
    "RelativeBiasAttention",
    "RotaryAttention",
    "SinkAttention",
    "SoftCapAttention",
    "WindowAttention",
    "additive_to_boolean",
    "alibi_slopes",
    "boolean_to_additive",
    "causal_mask",
    "document_mask",
    "from_torch",
    "padding_mask",
    "positions_without_padding",
    "prefix_mask",
    "to_torch",
    "window_mask",
]
