"""Between the conventions of the laws and those that a subject declares: masks, scale, and the order of its heads.

Laws and oracle speak one language, that of `attn`. What a subject says otherwise is translated on the way in and out, so a wrong
declaration shows as wrong numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from properties.inputs import Inputs, Weights
from properties.supports import Supports


def to_subject(inputs: Inputs, supports: Supports) -> Inputs:
    """Say the inputs as the subject wants them."""
    order = _head_order(inputs, supports)
    if order is not None:
        inputs = inputs.permute_query_heads(order)
    return replace(inputs, weights=_scaled(inputs, supports), mask=_mask(inputs, supports))


def weights_to_subject(inputs: Inputs, weights: Weights, supports: Supports) -> Weights:
    """Say these weights, for inputs of these sizes, as the subject wants them."""
    return to_subject(replace(inputs, weights=weights, mask=None), supports).weights


def weights_from_subject(returned: Tensor, inputs: Inputs, supports: Supports) -> Tensor:
    """Put the heads of returned weights `[B, h, T, S]` back in order."""
    order = _head_order(inputs, supports)
    return returned if order is None else returned[:, order.argsort()]


def _head_order(inputs: Inputs, supports: Supports) -> Tensor | None:
    """Which of our query heads goes where: a subject that maps i to i % g has each group spread out. None: as they are."""
    h, g = inputs.num_heads, inputs.num_kv_heads
    if supports.kv_head_map == "blocks" or g == h:
        return None
    return torch.arange(h).reshape(g, h // g).T.flatten()


def _scaled(inputs: Inputs, supports: Supports) -> Weights:
    """Let the queries make up for another scale; where they are normalised, what they are multiplied by after it."""
    w, d_head = inputs.weights, inputs.d_head
    factor = 1 / math.sqrt(d_head) / supports.scale(d_head)
    if factor == 1.0:
        return w
    if w.n_q is not None:
        return replace(w, n_q=w.n_q * factor)
    return replace(w, w_q=w.w_q * factor, b_q=None if w.b_q is None else w.b_q * factor)


def _mask(inputs: Inputs, supports: Supports) -> Tensor | None:
    mask = inputs.mask
    if mask is None:
        return None
    if mask.dtype == torch.bool and supports.polarity == "hide":
        mask = ~mask
    B, h, T, S = inputs.scores_shape
    S += inputs.past  # a mask is over what is cached as well
    match supports.mask_shape:
        case "broadcast":
            return mask
        case "[T, S]":
            return mask if mask.dim() == 2 else mask[0, 0].expand(T, S)
        case "[B, S]":
            return mask.expand(B, h, T, S)[:, 0, 0]
        case "[B, T, S]":
            return mask.expand(B, h, T, S)[:, 0]
        case "[B, 1, T, S]":
            return mask.expand(B, h, T, S)[:, :1]
        case "[B, h, T, S]":
            return mask.expand(B, h, T, S)
        case "[B*h, T, S]":
            return mask.expand(B, h, T, S).flatten(0, 1)
        case _:
            raise AssertionError(supports.mask_shape)  # Supports has checked it
