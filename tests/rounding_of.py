"""The error that rounding explains, for a layer of `attn` and the tensors it is called with."""

from __future__ import annotations

from torch import Tensor

from attn import MultiHeadAttention
from properties.inputs import Inputs, Weights
from properties.rounding import Bounds, bounds


def inputs_of(attention: MultiHeadAttention, x: Tensor, mask: Tensor | None = None) -> Inputs:
    """The call `attention(x, mask)` as the properties see it."""
    w_q, w_k, w_v = attention.in_proj.weight.detach().split(attention.widths)
    weights = Weights(w_q, w_k, w_v, attention.out_proj.weight.detach())
    if attention.in_proj.bias is not None:
        b_q, b_k, b_v = attention.in_proj.bias.detach().split(attention.widths)
        weights = Weights(w_q, w_k, w_v, weights.w_o, b_q, b_k, b_v, attention.out_proj.bias.detach())
    return Inputs(x, None, weights, mask, False, attention.num_heads, attention.num_kv_heads)


def bounds_of(attention: MultiHeadAttention, x: Tensor, mask: Tensor | None = None) -> Bounds:
    """How far two correct results of `attention(x, mask)` may be apart, computed in the dtype of x."""
    return bounds(inputs_of(attention, x, mask), x.dtype)
