"""What the attention refuses, each with the words it refuses it in: they are part of the interface."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from attn import MultiHeadAttention


@pytest.mark.parametrize(
    ("sizes", "error", "said"),
    [
        (
            {"d_model": 10, "num_heads": 4},
            ValueError,
            "d_model=10 is not divisible by num_heads=4: every head needs the same width",
        ),
        (
            {"num_heads": 4, "num_kv_heads": 3},
            ValueError,
            "num_heads=4 is not divisible by num_kv_heads=3: every key/value head serves a whole group",
        ),
        (
            {"num_heads": 2, "num_kv_heads": 4},
            ValueError,
            "num_heads=2 is not divisible by num_kv_heads=4: every key/value head serves a whole group",
        ),
        ({"d_model": 8.0}, TypeError, "d_model must be an int, got 8.0"),
        ({"num_heads": "4"}, TypeError, "num_heads must be an int, got '4'"),
        ({"num_kv_heads": 1.0}, TypeError, "num_kv_heads must be an int, got 1.0"),
        ({"num_heads": True}, TypeError, "num_heads must be an int, got True"),
        ({"d_model": 0}, ValueError, "d_model must be at least 1, got 0"),
        ({"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
        ({"num_kv_heads": -2}, ValueError, "num_kv_heads must be at least 1, got -2"),
        ({"dropout": 1.0}, ValueError, "dropout must lie in [0, 1), got 1.0"),
        ({"dropout": -0.1}, ValueError, "dropout must lie in [0, 1), got -0.1"),
        ({"dropout": float("nan")}, ValueError, "dropout must lie in [0, 1), got nan"),
        ({"dropout": "0.1"}, TypeError, "dropout must be a number, got '0.1'"),
        ({"dropout": False}, TypeError, "dropout must be a number, got False"),
    ],
)
def test_sizes_that_are_refused(sizes: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        MultiHeadAttention(**{"d_model": 8, "num_heads": 4, **sizes})


@pytest.mark.parametrize(
    "sizes",
    [
        {"d_model": 1, "num_heads": 1},
        {"num_kv_heads": 1},
        {"num_kv_heads": 4},
        {"dropout": 0.0},
        {"dropout": 0},
        {"dropout": 0.999},
    ],
)
def test_sizes_at_the_edge_are_not(sizes: dict[str, Any]) -> None:
    attention = MultiHeadAttention(**{"d_model": 8, "num_heads": 4, **sizes})
    assert {name: getattr(attention, name) for name in sizes} == sizes


def mask(*shape: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


# For a layer of 4 heads of width 8, x [2, 3, 8] and context [2, 5, 8], unless the case says otherwise.
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "x as a list": (
        {"x": [[[1.0]]]},
        TypeError,
        "x must be a tensor of shape [B, T, d_model], got list",
    ),
    "context on another device": (
        {"context": torch.ones(2, 5, 8, device="meta")},
        ValueError,
        "context is on meta, the weights are on cpu: move one of them with .to(device)",
    ),
    "mask as a list": (
        {"attn_mask": [[True]]},
        TypeError,
        "attn_mask must be a tensor, got list",
    ),
    "x without batch": (
        {"x": torch.ones(3, 8)},
        ValueError,
        "x must have shape [B, T, d_model], got [3, 8]: add or remove axes",
    ),
    "x with heads": (
        {"x": torch.ones(2, 4, 3, 8)},
        ValueError,
        "x must have shape [B, T, d_model], got [2, 4, 3, 8]: add or remove axes",
    ),
    "x too narrow": (
        {"x": torch.ones(2, 3, 7)},
        ValueError,
        "x must have width d_model=8 in its last axis, got [2, 3, 7]",
    ),
    "x too wide": (
        {"x": torch.ones(2, 3, 9)},
        ValueError,
        "x must have width d_model=8 in its last axis, got [2, 3, 9]",
    ),
    "x in another dtype": (
        {"x": torch.ones(2, 3, 8, dtype=torch.float64)},
        TypeError,
        "x is torch.float64, the weights are torch.float32: convert one of them with .to(dtype)",
    ),
    "context without batch": (
        {"context": torch.ones(5, 8)},
        ValueError,
        "context must have shape [B, S, d_model], got [5, 8]: add or remove axes",
    ),
    "context too narrow": (
        {"context": torch.ones(2, 5, 4)},
        ValueError,
        "context must have width d_model=8 in its last axis, got [2, 5, 4]",
    ),
    "context in another dtype": (
        {"context": torch.ones(2, 5, 8, dtype=torch.float16)},
        TypeError,
        "context is torch.float16, the weights are torch.float32: convert one of them with .to(dtype)",
    ),
    "context of another batch": (
        {"context": torch.ones(1, 5, 8)},
        ValueError,
        "context has batch 1, x has 2: give both the same batch",
    ),
    "integer mask": (
        {"attn_mask": mask(3, 5, dtype=torch.int64)},
        TypeError,
        "attn_mask is torch.int64: does 1 mean 'may attend' or 'is hidden'? Give a boolean mask (True = may attend)",
    ),
    "mask in another dtype": (
        {"attn_mask": mask(3, 5, dtype=torch.float64)},
        TypeError,
        "attn_mask is torch.float64, x is torch.float32: convert it with .to(x.dtype)",
    ),
    "mask of three axes": (
        {"attn_mask": mask(2, 3, 5)},
        ValueError,
        "attn_mask [2, 3, 5] has three axes: batch or heads? Say so with mask[:, None] or mask[None]",
    ),
    "mask of one axis": (
        {"attn_mask": mask(5)},
        ValueError,
        "attn_mask must have shape [T, S] or four axes that broadcast to [2, 4, 3, 5], got [5]",
    ),
    "mask of five axes": (
        {"attn_mask": mask(1, 1, 1, 3, 5)},
        ValueError,
        "attn_mask must have shape [T, S] or four axes that broadcast to [2, 4, 3, 5], got [1, 1, 1, 3, 5]",
    ),
    "padding mask as it comes": (
        {"attn_mask": mask(2, 5)},
        ValueError,
        "attn_mask [2, 5] does not broadcast to the scores [B, h, T, S] = [2, 4, 3, 5]."
        " A padding mask [B, S] needs mask[:, None, None, :].",
    ),
    "mask for the queries, not the keys": (
        {"attn_mask": mask(2, 1, 3, 3)},
        ValueError,
        "attn_mask [2, 1, 3, 3] does not broadcast to the scores [B, h, T, S] = [2, 4, 3, 5].",
    ),
    "mask of too many heads": (
        {"attn_mask": mask(2, 8, 3, 5)},
        ValueError,
        "attn_mask [2, 8, 3, 5] does not broadcast to the scores [B, h, T, S] = [2, 4, 3, 5].",
    ),
    "mask of another batch": (
        {"attn_mask": mask(3, 1, 1, 5)},
        ValueError,
        "attn_mask [3, 1, 1, 5] does not broadcast to the scores [B, h, T, S] = [2, 4, 3, 5].",
    ),
}


@pytest.mark.parametrize(("arguments", "error", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_arguments_that_are_refused(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        MultiHeadAttention(8, 4)(**{"x": torch.ones(2, 3, 8), "context": torch.ones(2, 5, 8), **arguments})


def test_without_a_context_the_mask_must_fit_x() -> None:
    attention, x = MultiHeadAttention(8, 4), torch.ones(2, 3, 8)
    attention(x, mask(3, 3))
    with pytest.raises(ValueError, match=re.escape("[2, 4, 3, 3]")):
        attention(x, mask(3, 5))


def test_autocast_takes_a_dtype_that_the_weights_do_not_have() -> None:
    attention, x = MultiHeadAttention(8, 4), torch.ones(2, 3, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = attention(x)
        with pytest.raises(TypeError, match=r"^x is torch\.int64"):
            attention(x.long())
    assert output.dtype == torch.bfloat16
    with pytest.raises(TypeError, match=r"^x is torch\.bfloat16"):
        attention(x)
