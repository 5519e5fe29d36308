"""The attention in PyTorch itself: the module in the ways it can be called, and the function under it.

`nn.MultiheadAttention` has three ways to its result, and chooses between them by what it is asked (see its `forward`):

- the fast path, one native kernel: in evaluation, without gradients, for self-attention (one tensor thrice), batch first, an even
  number of heads, biases, and no mask of floats;
- otherwise, asked for weights, a softmax written out;
- otherwise `F.scaled_dot_product_attention`.

`multihead_attention_fast_path` and `..._fast_path_without_weights` declare little else than what leads to the first one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.case import EXPLICIT
from properties.inputs import Inputs, Weights
from properties.subject import Result, Subject
from properties.supports import TOOLS, USUAL_TOOLS, Supports
from properties.wrap import Arguments, of_function, of_module

MASKS = ("none", *EXPLICIT, "is_causal")  # the flag stands for an `attn_mask` of its own: it goes together with no other one


def multihead_attention(
    *,
    name: str = "torch.nn.MultiheadAttention",
    batch_first: bool = True,
    need_weights: bool = True,
    mask_shape: str = "[B*h, T, S]",
    **declared: Any,
) -> Subject:
    """`nn.MultiheadAttention`, by default batch first and asked for the weights of every head.

    Masks are handed in as `attn_mask`, or, if `mask_shape` is "[B, S]", as `key_padding_mask`; True hides. What its documentation
    says of `is_causal` is followed: it is a hint that `attn_mask` is the causal mask, so both are given, aligned at the top left.

    The documentation does not say what a query gets that sees no key. With weights it is NaN. Without, it is zero, or NaN by the
    fast path: batch first, it is declared to be undefined. Weights in training are those after dropout. `declared`: other fields
    of `Supports`.
    """

    def build(inputs: Inputs) -> nn.Module:
        return nn.MultiheadAttention(
            inputs.x.shape[2],
            inputs.num_heads,
            dropout=inputs.dropout,
            bias=inputs.weights.b_o is not None,
            batch_first=batch_first,
            dtype=inputs.x.dtype,
        )

    def arguments(inputs: Inputs) -> Arguments:
        named: dict[str, Any] = {"need_weights": need_weights, "average_attn_weights": False}
        named["key_padding_mask" if mask_shape == "[B, S]" else "attn_mask"] = inputs.mask
        if inputs.is_causal:
            named |= {"attn_mask": causal_mask(inputs), "is_causal": True}
        return query_key_value(inputs, batch_first), named

    def result(returned: tuple[Tensor, Tensor | None]) -> Result:
        output, weights = returned
        return Result(output if batch_first else output.transpose(0, 1), weights)

    supports = Supports(
        masks=masks_for(mask_shape),
        mask_shape=mask_shape,
        polarity="hide",
        causal_alignment="top_left",
        empty_rows="nan" if need_weights else "undefined" if batch_first else "zero",
        grouped_heads=False,
        weights=need_weights,
        training_weights=False,
        tools=TOOLS,
    )
    return of_module(
        name,
        build=build,
        parameters=parameters,
        arguments=arguments,
        result=result,
        supports=replace(supports, **declared),
    )


def masks_for(mask_shape: str) -> tuple[str, ...]:
    """The kinds of mask that can be said in this shape: not "full", which as a bias has numbers of its own for every head."""
    kinds = {"[B, S]": ("none", "padding", "is_causal", "is_causal+padding"), "[T, S]": ("none", "causal", "is_causal")}
    return kinds.get(mask_shape, MASKS)


def parameters(w: Weights) -> dict[str, Tensor]:
    """The weights as `nn.MultiheadAttention` has them: the three projections in one."""
    named = {"in_proj_weight": torch.cat([w.w_q, w.w_k, w.w_v]), "out_proj.weight": w.w_o}
    if w.b_q is not None and w.b_k is not None and w.b_v is not None and w.b_o is not None:
        named |= {"in_proj_bias": torch.cat([w.b_q, w.b_k, w.b_v]), "out_proj.bias": w.b_o}
    return named


def query_key_value(inputs: Inputs, batch_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The three tensors to call it with: in self-attention the same one thrice, by which the fast path knows it."""
    x = inputs.x if batch_first else inputs.x.transpose(0, 1)
    if inputs.context is None:
        return x, x, x
    context = inputs.context if batch_first else inputs.context.transpose(0, 1)
    return x, context, context


def causal_mask(inputs: Inputs) -> Tensor:
    """What `is_causal` hides, as a mask `[T, S]` of the type of the other mask, as the documentation wants it."""
    hidden = torch.ones(inputs.scores_shape[2:], dtype=torch.bool).triu(1)
    if inputs.mask is None or inputs.mask.dtype == torch.bool:
        return hidden
    return torch.zeros(hidden.shape, dtype=inputs.x.dtype).masked_fill(hidden, -torch.inf)


def multihead_attention_without_weights() -> Subject:
    """`nn.MultiheadAttention(batch_first=True)` with `need_weights=False`, which lets it use `scaled_dot_product_attention`."""
    return multihead_attention(name="torch.nn.MultiheadAttention, without weights", need_weights=False)


def multihead_attention_sequence_first() -> Subject:
    """`nn.MultiheadAttention` in its default layout `[T, B, d]`; it never takes the fast path."""
    return multihead_attention(name="torch.nn.MultiheadAttention, sequence first", batch_first=False)


def multihead_attention_sequence_first_without_weights() -> Subject:
    """`nn.MultiheadAttention` in its default layout `[T, B, d]`, with `need_weights=False`."""
    name = "torch.nn.MultiheadAttention, sequence first, without weights"
    return multihead_attention(name=name, batch_first=False, need_weights=False)


def multihead_attention_shared_mask() -> Subject:
    """`nn.MultiheadAttention(batch_first=True)` with an `attn_mask` `[T, S]`, the same one for all samples and heads."""
    return multihead_attention(name="torch.nn.MultiheadAttention, shared mask", mask_shape="[T, S]")


def multihead_attention_key_padding_mask() -> Subject:
    """`nn.MultiheadAttention(batch_first=True)` with a `key_padding_mask`, alone or next to a causal `attn_mask`.

    Without weights: the two masks are then merged for `scaled_dot_product_attention`.
    """
    name = "torch.nn.MultiheadAttention, key_padding_mask"
    return multihead_attention(name=name, mask_shape="[B, S]", need_weights=False)


def multihead_attention_fast_path() -> Subject:
    """`nn.MultiheadAttention` where it takes the fast path: half of the cases, those with biases, in evaluation.

    Counted by a trace of `aten::_native_multi_head_attention`. The laws about modes compare it with the other paths.
    """
    return _fast_path("torch.nn.MultiheadAttention, fast path", need_weights=True)


def multihead_attention_fast_path_without_weights() -> Subject:
    """The same with `need_weights=False`. For a query that sees no key it is held to what the other path gives, zero."""
    return _fast_path("torch.nn.MultiheadAttention, fast path, without weights", need_weights=False, empty_rows="zero")


def _fast_path(name: str, **declared: Any) -> Subject:
    declared |= {
        "encodings": ("bool",),
        "num_heads": (2, 4, 6),
        "tools": USUAL_TOOLS,
    }  # a graph being traced takes the other path
    return multihead_attention(name=name, cross_attention=False, **declared)


def scaled_dot_product_attention() -> Subject:
    """`F.scaled_dot_product_attention`, between the projections of a layer.

    As documented: True in a mask attends, `is_causal` is aligned at the top left and excludes a mask, `enable_gqa` is for grouped
    heads. That an empty row is zero is not documented, but done on purpose (`_safe_softmax`).
    """
    return of_function(
        F.scaled_dot_product_attention,
        name="torch.nn.functional.scaled_dot_product_attention",
        masks=MASKS,
        causal_alignment="top_left",
    )


SUBJECTS = (
    multihead_attention,
    multihead_attention_without_weights,
    multihead_attention_sequence_first,
    multihead_attention_sequence_first_without_weights,
    multihead_attention_shared_mask,
    multihead_attention_key_padding_mask,
    multihead_attention_fast_path,
    multihead_attention_fast_path_without_weights,
    scaled_dot_product_attention,
)
