"""x-transformers' `Attention`, with and without `flash`, which is torch's `F.scaled_dot_product_attention`.

It has no biases. A mask is boolean, `attn_mask`, True = may attend; what is added to the scores is `attn_bias`. By its comments
a row that is entirely masked is zero. Query head i reads key/value head i % g. Without flash the softmax is in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from x_transformers.x_transformers import AlibiPositionalBias, Attention, RotaryEmbedding

from properties.case import EXPLICIT
from properties.inputs import Inputs, Weights
from properties.subject import Result, Subject
from properties.supports import Supports
from properties.wrap import Arguments, of_module


def _build(inputs: Inputs, **options: Any) -> nn.Module:
    attention: nn.Module = Attention(
        inputs.x.shape[2],
        dim_head=inputs.d_head,
        heads=inputs.num_heads,
        kv_heads=inputs.num_kv_heads,
        dropout=inputs.dropout,
        project_out=True,  # also if there is one head
        **options,
    )
    return attention.to(inputs.x.dtype)


def _parameters(w: Weights) -> dict[str, Tensor]:
    return {"to_q.weight": w.w_q, "to_k.weight": w.w_k, "to_v.weight": w.w_v, "to_out.weight": w.w_o}


def _arguments(inputs: Inputs, **named: Any) -> Arguments:
    """A floating mask in two parts: what is hidden, and what is added to the rest."""
    mask = inputs.mask
    if mask is not None and mask.dtype == torch.bool:
        named["attn_mask"] = mask
    elif mask is not None:
        named |= {"attn_mask": mask > -torch.inf, "attn_bias": mask.masked_fill(mask == -torch.inf, 0.0)}
    return (inputs.x,), {"context": inputs.context, "return_intermediates": True, **named}


def _result(returned: tuple[Tensor, Any]) -> Result:
    output, intermediates = returned
    return Result(output, intermediates.post_softmax_attn)  # None, if flash


def _supports(flash: bool, **declared: Any) -> Supports:
    """Without flash it returns weights and is judged from float32 down, the dtypes it is made for: see `double_attention`."""
    kind: dict[str, Any] = {"weights": False} if flash else {"dtypes": ("float32", "bfloat16", "float16")}
    return Supports(**{"biases": "", "kv_head_map": "interleaved", **kind, **declared})


def _name(flash: bool, *options: str) -> str:
    listed = ", ".join((*(["flash"] if flash else []), *options))
    return "x_transformers.Attention" + (f"[{listed}]" if listed else "")


def attention(flash: bool) -> Subject:
    """`Attention`, to itself or to `context`, not causal."""
    return of_module(
        _name(flash),
        build=partial(_build, flash=flash),
        parameters=_parameters,
        arguments=_arguments,
        result=_result,
        supports=_supports(flash, masks=("none", *EXPLICIT)),
    )


def double_attention() -> Subject:
    """`Attention` in float64, of which the package says nothing."""
    return of_module(
        _name(False, "float64"),
        build=_build,
        parameters=_parameters,
        arguments=_arguments,
        result=_result,
        supports=_supports(False, masks=("none", *EXPLICIT), dtypes=("float64",), floors={"float64": "float32"}),
    )


def causal_attention(flash: bool) -> Subject:
    """`Attention(causal=True)`, to itself. As it is always causal, `the_flag_means_its_mask` says little of it."""
    return of_module(
        _name(flash, "causal"),
        build=partial(_build, flash=flash, causal=True),
        parameters=_parameters,
        arguments=_arguments,
        result=_result,
        supports=_supports(flash, masks=("is_causal", "is_causal+padding"), cross_attention=False),
    )


def causal_per_call(flash: bool) -> Subject:
    """`Attention`, to itself, called with `causal`, which overrules what the constructor was told."""
    return of_module(
        _name(flash, "causal per call"),
        build=partial(_build, flash=flash),
        parameters=_parameters,
        arguments=lambda inputs: _arguments(inputs, causal=inputs.is_causal),
        result=_result,
        supports=_supports(flash, masks=("none", "is_causal"), cross_attention=False),
    )


def padded_attention(flash: bool) -> Subject:
    """`Attention` with `context_mask` [B, S], which it takes for its own tokens, too.

    `mask` hides the same keys, but also sets the rows of hidden tokens to zero, on purpose; no law knows of that.
    """

    def arguments(inputs: Inputs) -> Arguments:
        return (inputs.x,), {"context": inputs.context, "context_mask": inputs.mask, "return_intermediates": True}

    return of_module(
        _name(flash, "padding"),
        build=partial(_build, flash=flash),
        parameters=_parameters,
        arguments=arguments,
        result=_result,
        supports=_supports(flash, mask_shape="[B, S]", masks=("none", "padding"), encodings=("bool",)),
    )


class _WithPositions(nn.Module):
    """An attention, and what makes positions of its tokens, as AttentionLayers has it for all its layers."""

    def __init__(self, attention: nn.Module, positions: nn.Module) -> None:
        super().__init__()
        self.attention, self.positions = attention, positions

    def forward(self, x: Tensor, **named: Any) -> Any:
        if isinstance(self.positions, RotaryEmbedding):
            return self.attention(x, rotary_pos_emb=self.positions.forward_from_seq_len(x.shape[1]), **named)
        return self.attention(x, rel_pos=self.positions, **named)


def _with_positions(name: str, positions: Callable[[Inputs], nn.Module], flash: bool, **declared: Any) -> Subject:
    """To itself, causal where the flag is set, which the constructor is told. What empty rows give is said by the others."""

    def build(inputs: Inputs) -> nn.Module:
        return _WithPositions(_build(inputs, flash=flash, causal=inputs.is_causal), positions(inputs)).to(inputs.x.dtype)

    return of_module(
        _name(flash, name),
        build=build,
        parameters=lambda w: {f"attention.{key}": value for key, value in _parameters(w).items()},
        arguments=_arguments,
        result=_result,
        supports=_supports(flash, cross_attention=False, empty_rows="undefined", **declared),
    )


def rotary_attention(flash: bool) -> Subject:
    """`Attention` with `RotaryEmbedding`, which turns pairs of features, and more than one. The angles are in float32."""
    floors: dict[str, Any] = {"floors": {"float64": "float32"}} if flash else {}
    return _with_positions(
        "rotary",
        lambda inputs: RotaryEmbedding(inputs.d_head),
        flash,
        d_heads=(4, 6),
        placings=("rotary_interleaved",),
        **floors,
    )


def alibi_attention(flash: bool) -> Subject:
    """`Attention` with `AlibiPositionalBias`, in the place of `attn_bias`: masks are boolean.

    Without grouped heads: its slopes are by the number of a head, so heads cannot be put in the order of another convention.
    """

    def alibi(inputs: Inputs) -> nn.Module:
        positions: nn.Module = AlibiPositionalBias(inputs.num_heads)
        return positions

    return _with_positions("alibi", alibi, flash, encodings=("bool",), grouped_heads=False, placings=("alibi",))


SUBJECTS = (
    *(
        partial(subject, flash)
        for subject in (attention, causal_attention, causal_per_call, padded_attention, rotary_attention, alibi_attention)
        for flash in (False, True)
    ),
    double_attention,
)
