"""The self-attention inside PyTorch's encoder layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from properties.adapters.pytorch import causal_mask, masks_for
from properties.inputs import Inputs, Weights
from properties.subject import Result, Subject
from properties.supports import Supports
from properties.wrap import Arguments, of_module

GAIN = 2.0**53  # what the first norm divides by, and multiplies by


def transformer_encoder_layer(
    *, name: str = "torch.nn.TransformerEncoderLayer", mask_shape: str = "[B*h, T, S]", **declared: Any
) -> Subject:
    """`nn.TransformerEncoderLayer(batch_first=True, norm_first=True)`, called as everybody calls it.

    It computes `y = x + attention(norm1(x))`, and returns `y + feed_forward(norm2(y))`. Its sizes and weights are chosen so that
    only the attention does anything. (To call `_sa_block`, or to replace the norms, would be simpler, and never reach the layer's
    own fast path, the kernel `_transformer_encoder_layer_fwd`: in evaluation, for an even number of heads, with biases.)

    - Every feature x becomes three, (x, -x, 0). So the mean of a token is 0, and the norm has none to subtract.
    - The norm divides by sqrt(variance + eps) and multiplies by its weight: eps is GAIN**2, next to which no variance counts, and
      the weight is GAIN, a power of 2.
    - The attention reads the first of the three features, and writes the last, where the residual is 0. Its heads are three times
      as wide, hence the `scale`.
    - The feed-forward block is 0.

    Masks are handed in as `src_mask`, or, if `mask_shape` is "[B, S]", as `src_key_padding_mask`; True hides. No dropout is
    declared, because the layer also drops features of what the attention gives, and no float16, which does not hold GAIN. What a
    query gets that sees no key is not documented: zero, or NaN by the fast path. `declared`: other fields of `Supports`.
    """

    def build(inputs: Inputs) -> nn.Module:
        return nn.TransformerEncoderLayer(
            3 * inputs.x.shape[2],
            inputs.num_heads,
            dim_feedforward=1,
            dropout=0.0,
            layer_norm_eps=GAIN**2,
            batch_first=True,
            norm_first=True,
            bias=inputs.weights.b_o is not None,
            dtype=inputs.x.dtype,
        )

    def arguments(inputs: Inputs) -> Arguments:
        named: dict[str, Any] = {"src_key_padding_mask" if mask_shape == "[B, S]" else "src_mask": inputs.mask}
        if inputs.is_causal:
            named |= {"src_mask": causal_mask(inputs), "is_causal": True}
        x = inputs.x
        return (torch.stack([x, -x, torch.zeros_like(x)], dim=-1).flatten(-2),), named

    def result(returned: Tensor) -> Result:
        return Result(returned[..., 2::3])

    supports = Supports(
        masks=masks_for(mask_shape),
        mask_shape=mask_shape,
        polarity="hide",
        causal_alignment="top_left",
        empty_rows="undefined",
        scale=lambda d_head: (3 * d_head) ** -0.5,
        dtypes=("float64", "float32", "bfloat16"),
        cross_attention=False,
        grouped_heads=False,
        dropout=False,
        weights=False,
        training_weights=False,
    )
    return of_module(
        name, build=build, parameters=parameters, arguments=arguments, result=result, supports=replace(supports, **declared)
    )


def parameters(w: Weights) -> dict[str, Tensor]:
    """The parameters of the layer: every feature has become three, of which projections read the first and write `to`."""

    def wide(weight: Tensor, to: int) -> Tensor:
        place = torch.zeros([3] * weight.dim(), dtype=weight.dtype)
        place[(to, 0)[: weight.dim()]] = 1  # [to, 0] of a matrix, [to] of a bias
        return torch.kron(weight, place)

    d = w.w_o.shape[0]
    gain, zeros = w.w_o.new_full((3 * d,), GAIN), w.w_o.new_zeros(3 * d)
    named = {
        "self_attn.in_proj_weight": torch.cat([wide(weight, 0) for weight in (w.w_q, w.w_k, w.w_v)]),
        "self_attn.out_proj.weight": wide(w.w_o, 2),
        "norm1.weight": gain,
        "norm2.weight": gain,
        "linear1.weight": zeros[None],
        "linear2.weight": zeros[:, None],
    }
    if w.b_q is not None and w.b_k is not None and w.b_v is not None and w.b_o is not None:
        named |= {
            "self_attn.in_proj_bias": torch.cat([wide(bias, 0) for bias in (w.b_q, w.b_k, w.b_v)]),
            "self_attn.out_proj.bias": wide(w.b_o, 2),
            "norm1.bias": zeros,
            "norm2.bias": zeros,
            "linear1.bias": zeros[:1],
            "linear2.bias": zeros,
        }
    return named


def transformer_encoder_layer_key_padding_mask() -> Subject:
    """The same with a `src_key_padding_mask`, alone or next to a causal `src_mask`."""
    return transformer_encoder_layer(name="torch.nn.TransformerEncoderLayer, src_key_padding_mask", mask_shape="[B, S]")


def transformer_encoder_layer_boolean_mask() -> Subject:
    """The same with boolean masks only, and where half of the cases, those with biases, take the fast path in evaluation.

    For a query that sees no key it is held to what the other path gives, zero.
    """
    name = "torch.nn.TransformerEncoderLayer, boolean mask"
    return transformer_encoder_layer(name=name, encodings=("bool",), num_heads=(2, 4, 6), empty_rows="zero")


SUBJECTS = (transformer_encoder_layer, transformer_encoder_layer_key_padding_mask, transformer_encoder_layer_boolean_mask)
