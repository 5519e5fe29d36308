"""What a layer declares by the dispatch that its config names, `attn_implementation`.

A mask is what `transformers.masking_utils` makes for the dispatch: [B, 1, T, S], for eager added to the scores, for sdpa boolean
or added. The flag `is_causal` is sdpa's alone, and there for self-attention without a mask; eager takes it, and does nothing.
"""

from __future__ import annotations

from typing import Any

from properties.supports import Supports

DISPATCHES = ("eager", "sdpa")
_MASKS = ("none", "causal", "padding", "causal+padding", "sample")


def supports(dispatch: str, *, flag: bool = False, **declared: Any) -> Supports:
    """What a layer supports under this dispatch; `flag`: it can be made causal without a mask.

    Weights are eager's alone, and in training they are those after dropout. An empty row is what comes of a row of -inf: NaN, or,
    in torch's own function, zero.
    """
    common: dict[str, Any] = {"mask_shape": "[B, 1, T, S]", "grouped_heads": False, "training_weights": False}
    if dispatch == "eager":
        common |= {"masks": _MASKS, "encodings": ("additive", "bias"), "empty_rows": "nan"}
    else:
        common |= {"masks": (*_MASKS, "is_causal") if flag else _MASKS, "weights": False}
    return Supports(**{**common, **declared})
