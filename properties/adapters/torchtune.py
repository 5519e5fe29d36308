"""The multi-head attention of torchtune, bare and with its rotary positions."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torchtune.modules import MultiHeadAttention, RotaryPositionalEmbeddings

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import MASK_SHAPES, Supports
from properties.wrap import Arguments, of_module

MASKS = tuple(mask for mask in MASK_SHAPES["[B, T, S]"] if mask != "is_causal+padding")  # the flag is for a call without a mask


def multi_head_attention(*, name: str = "torchtune.modules.MultiHeadAttention", rotary: bool = False, **declared: Any) -> Subject:
    """`torchtune.modules.MultiHeadAttention` over linear projections, without a cache.

    Declared as documented: a mask is boolean `[B, T, S]`, True = may attend; `is_causal` is said when it is built, for calls
    without a mask. The rest is what `F.scaled_dot_product_attention` does: the triangle at the top left, zero for an empty row,
    no weights. `declared`: other fields of `Supports`.
    """

    def build(inputs: Inputs) -> nn.Module:
        module: nn.Module = MultiHeadAttention(
            embed_dim=inputs.x.shape[2],
            num_heads=inputs.num_heads,
            num_kv_heads=inputs.num_kv_heads,
            head_dim=inputs.d_head,
            **projections(inputs.weights),
            pos_embeddings=RotaryPositionalEmbeddings(inputs.d_head, max_seq_len=4096) if rotary else None,
            is_causal=inputs.is_causal,
            attn_dropout=inputs.dropout,
        )
        return module

    def arguments(inputs: Inputs) -> Arguments:
        return (inputs.x, inputs.keys), {"mask": inputs.mask, **({"input_pos": inputs.positions} if rotary else {})}

    supports = Supports(
        masks=MASKS,
        encodings=("bool",),
        mask_shape="[B, T, S]",
        causal_alignment="top_left",
        weights=False,
        training_weights=False,
        placings=("rotary_interleaved" if rotary else "none",),
        explicit_positions=rotary,
        **declared,
    )
    return of_module(name, build=build, parameters=parameters, arguments=arguments, supports=supports)


def projections(w: Weights) -> dict[str, nn.Module]:
    """A linear layer for each of the weights."""
    pairs = {"q_proj": (w.w_q, w.b_q), "k_proj": (w.w_k, w.b_k), "v_proj": (w.w_v, w.b_v), "output_proj": (w.w_o, w.b_o)}
    return {
        name: nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
        for name, (weight, bias) in pairs.items()
    }


def parameters(w: Weights) -> dict[str, Tensor]:
    """The weights by the names of these layers."""
    layers = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "output_proj"}
    return {f"{layers[name[2]]}.{'weight' if name[0] == 'w' else 'bias'}": tensor for name, tensor in w.items()}


def multi_head_attention_with_rotary_positions() -> Subject:
    """`torchtune.modules.MultiHeadAttention` with `RotaryPositionalEmbeddings`.

    These turn pairs of features, so heads are of even width; in float32, on purpose ("to match the reference implementation").
    """
    name = "torchtune.modules.MultiHeadAttention, rotary positions"
    declared = {"d_heads": (2, 4), "floors": {"float64": "float32"}, "cross_attention": False}
    return multi_head_attention(name=name, rotary=True, **declared)


SUBJECTS = (multi_head_attention, multi_head_attention_with_rotary_positions)
