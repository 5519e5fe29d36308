"""PyTorch's flex_attention, whose masks are functions."""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from properties.case import EXPLICIT
from properties.subject import Subject
from properties.wrap import of_function


def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, enable_gqa: bool = False) -> Tensor:
    """`flex_attention` with a mask that is a tensor."""
    sizes = (*query.shape[:3], key.shape[2])  # [B, h, T, S]
    block_mask = score_mod = None
    if attn_mask is not None:
        mask = attn_mask.detach().expand(sizes)

        def attends(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
            return mask[b, h, t, s]

        def add(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
            return score + mask[b, h, t, s]

        if mask.is_floating_point():
            score_mod = add
        else:
            B, h, T, S = sizes
            block_mask = flex.create_block_mask(attends, B, h, T, S, device=str(query.device))
    q, k, v = query.detach(), key.detach(), value.detach()
    with mock.patch.object(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
        output: Tensor = flex.flex_attention(q, k, v, score_mod, block_mask, enable_gqa=enable_gqa)
    return output


def flex_attention() -> Subject:
    """`torch.nn.attention.flex_attention.flex_attention`, eager on the CPU, between the projections of a layer.

    A boolean mask is said by a `mask_mod` and the block mask made of it, a mask of numbers by a `score_mod` that adds it, grouped
    heads by `enable_gqa`. It has no dropout and no causal flag; it returns zero for a query that sees no key. On the CPU it has
    no backward pass and refuses tensors that want gradients, so these are declared away, and tensors detached.

    It would trace itself anew for every size and mask. Its switch for debugging, of which a warning of its own speaks, has it run
    the same formula untraced, which is much faster.
    """
    one = torch.ones(1, 1, 1, 1)
    attention(one, one, one, one > 0)  # the first call imports half of torch: not in the time that a case is given
    return of_function(
        attention,
        name="torch.nn.attention.flex_attention.flex_attention",
        masks=("none", *EXPLICIT),
        empty_rows="zero",
        gradients=False,
    )


SUBJECTS = (flex_attention,)
