"""PyTorch's attention for quantization, before it is quantized."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from properties.adapters.pytorch import query_key_value
from properties.case import ENCODINGS, EXPLICIT
from properties.inputs import Inputs, Weights
from properties.subject import Result, Subject
from properties.supports import Supports
from properties.wrap import Arguments, of_module


def quantizable_multihead_attention(
    *,
    name: str = "torch.ao.nn.quantizable.MultiheadAttention",
    batch_first: bool = False,
    padding: bool = False,
) -> Subject:
    """`torch.ao.nn.quantizable.MultiheadAttention`, unconverted: the layer in floating point that one trains or calibrates.

    By default in its default layout `[T, B, d]`. It is documented to be called like `nn.MultiheadAttention`, and asked for the
    weights of every head, which in training are those after dropout. Masks are handed in as `attn_mask`, or, if `padding`, as
    `key_padding_mask`, of which it promises only boolean ones; True hides. `is_causal` is declared away: it stands in the
    documentation, and is refused ("causal mask not supported"). A query that sees no key gets the NaN of a plain softmax.
    """

    def build(inputs: Inputs) -> nn.Module:
        return torch.ao.nn.quantizable.MultiheadAttention(
            inputs.x.shape[2],
            inputs.num_heads,
            dropout=inputs.dropout,
            bias=inputs.weights.b_o is not None,
            batch_first=batch_first,
            dtype=inputs.x.dtype,
        )

    def arguments(inputs: Inputs) -> Arguments:
        mask_name = "key_padding_mask" if padding else "attn_mask"
        return query_key_value(inputs, batch_first), {mask_name: inputs.mask, "average_attn_weights": False}

    def result(returned: tuple[Tensor, Tensor]) -> Result:
        output, weights = returned
        return Result(output if batch_first else output.transpose(0, 1), weights)

    supports = Supports(
        masks=("none", "full", "padding") if padding else ("none", *EXPLICIT),
        encodings=("bool",) if padding else ENCODINGS,
        mask_shape="[B, S]" if padding else "[B*h, T, S]",
        polarity="hide",
        empty_rows="nan",
        grouped_heads=False,
        training_weights=False,
    )
    return of_module(name, build=build, parameters=parameters, arguments=arguments, result=result, supports=supports)


def parameters(w: Weights) -> dict[str, Tensor]:
    """The weights as it uses them: a linear layer for each projection."""
    layers = {"linear_Q": (w.w_q, w.b_q), "linear_K": (w.w_k, w.b_k), "linear_V": (w.w_v, w.b_v), "out_proj": (w.w_o, w.b_o)}
    named = {f"{layer}.weight": weight for layer, (weight, _) in layers.items()}
    return named | {f"{layer}.bias": bias for layer, (_, bias) in layers.items() if bias is not None}


def quantizable_multihead_attention_batch_first() -> Subject:
    """The same with `batch_first=True`."""
    name = "torch.ao.nn.quantizable.MultiheadAttention, batch first"
    return quantizable_multihead_attention(name=name, batch_first=True)


def quantizable_multihead_attention_key_padding_mask() -> Subject:
    """The same in its default layout, with a `key_padding_mask`."""
    name = "torch.ao.nn.quantizable.MultiheadAttention, key_padding_mask"
    return quantizable_multihead_attention(name=name, padding=True)


SUBJECTS = (
    quantizable_multihead_attention,
    quantizable_multihead_attention_batch_first,
    quantizable_multihead_attention_key_padding_mask,
)
