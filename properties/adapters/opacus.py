"""The attention of Opacus, made of layers for which it can compute gradients per sample."""

from __future__ import annotations

from opacus.layers import DPMultiheadAttention
from torch import Tensor, nn

from properties.case import ENCODINGS, EXPLICIT
from properties.inputs import Inputs, Weights
from properties.subject import Result, Subject
from properties.supports import Supports
from properties.wrap import Arguments, of_module


def dp_multihead_attention(
    *,
    name: str = "opacus.layers.DPMultiheadAttention",
    batch_first: bool = False,
    padding: bool = False,
) -> Subject:
    """`opacus.layers.DPMultiheadAttention`, by default in its default layout `[T, B, d]`.

    It is documented as `nn.MultiheadAttention` for differential privacy, and refers to that for everything else. Masks are handed
    in as `attn_mask`, or, if `padding`, as `key_padding_mask`, of which it takes only boolean ones; True hides. `is_causal` is
    declared away: it says that it does not support that. So are weights: it returns their average over the heads. A query that
    sees no key gets the NaN of a plain softmax.
    """

    def build(inputs: Inputs) -> nn.Module:
        module: nn.Module = DPMultiheadAttention(
            inputs.x.shape[2],
            inputs.num_heads,
            dropout=inputs.dropout,
            bias=inputs.weights.b_o is not None,
            batch_first=batch_first,
            dtype=inputs.x.dtype,
        )
        return module

    def arguments(inputs: Inputs) -> Arguments:
        tokens = [inputs.x, inputs.keys, inputs.keys]
        if not batch_first:
            tokens = [t.transpose(0, 1) for t in tokens]
        return tuple(tokens), {"key_padding_mask" if padding else "attn_mask": inputs.mask}

    def result(returned: tuple[Tensor, Tensor]) -> Result:
        output, _ = returned
        return Result(output if batch_first else output.transpose(0, 1))

    supports = Supports(
        masks=("none", "full", "padding") if padding else ("none", *EXPLICIT),
        encodings=("bool",) if padding else ENCODINGS,
        mask_shape="[B, S]" if padding else "[B*h, T, S]",
        polarity="hide",
        empty_rows="nan",
        grouped_heads=False,
        weights=False,
        training_weights=False,
    )
    return of_module(name, build=build, parameters=parameters, arguments=arguments, result=result, supports=supports)


def parameters(w: Weights) -> dict[str, Tensor]:
    """The weights as it names them: a linear layer for each projection."""
    layers = {"qlinear": (w.w_q, w.b_q), "klinear": (w.w_k, w.b_k), "vlinear": (w.w_v, w.b_v), "out_proj": (w.w_o, w.b_o)}
    named = {f"{layer}.weight": weight for layer, (weight, _) in layers.items()}
    return named | {f"{layer}.bias": bias for layer, (_, bias) in layers.items() if bias is not None}


def dp_multihead_attention_batch_first() -> Subject:
    """The same with `batch_first=True`."""
    return dp_multihead_attention(name="opacus.layers.DPMultiheadAttention, batch first", batch_first=True)


def dp_multihead_attention_key_padding_mask() -> Subject:
    """The same in its default layout, with a boolean `key_padding_mask`."""
    return dp_multihead_attention(name="opacus.layers.DPMultiheadAttention, key_padding_mask", padding=True)


def dp_multihead_attention_batch_first_key_padding_mask() -> Subject:
    """The same with `batch_first=True` and a boolean `key_padding_mask`."""
    name = "opacus.layers.DPMultiheadAttention, batch first, key_padding_mask"
    return dp_multihead_attention(name=name, batch_first=True, padding=True)


SUBJECTS = (
    dp_multihead_attention,
    dp_multihead_attention_batch_first,
    dp_multihead_attention_key_padding_mask,
    dp_multihead_attention_batch_first_key_padding_mask,
)
