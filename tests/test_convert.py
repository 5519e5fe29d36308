"""Weights to and from `torch.nn.MultiheadAttention`: copied exactly, and meaning the same on the other side."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from rounding_of import bounds_of
from torch import nn

from attn import MultiHeadAttention, from_torch, to_torch
from properties.compare import assert_close

D, HEADS = 12, 6
CONFIGURATIONS = [
    {},
    {"bias": True},
    {"dropout": 0.25},
    {"bias": True, "dropout": 0.5, "dtype": torch.float64},
]


def shuffled(module: nn.Module) -> nn.Module:
    """The same module with random parameters: nn.MultiheadAttention starts its biases at 0, where a lost one is not missed."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def assert_same_layer(attention: MultiHeadAttention, module: nn.MultiheadAttention) -> None:
    assert module.batch_first
    assert module.dropout == attention.dropout
    assert module.training == attention.training
    assert {p.dtype for p in module.parameters()} == {p.dtype for p in attention.parameters()}
    x = torch.randn(2, 3, D, dtype=module.out_proj.weight.dtype)
    mask = torch.tensor([[True, False, False], [True, True, False], [False, True, True]])
    bound = bounds_of(attention, x, mask)
    want, want_weights = module.eval()(x, x, x, attn_mask=~mask, average_attn_weights=False)
    output, weights = attention.eval()(x, mask)
    assert_close(output, want, bound.output, "output")
    assert_close(weights, want_weights, bound.weights, "weights")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_from_torch(configuration: dict[str, Any], training: bool) -> None:
    module = nn.MultiheadAttention(D, HEADS, batch_first=True, **{"bias": False, **configuration}).train(training)
    shuffled(module)
    attention = from_torch(module)
    assert_same_layer(attention, module)
    # A copy: training the one leaves the other as it is.
    assert not {p.data_ptr() for p in attention.parameters()} & {p.data_ptr() for p in module.parameters()}
    assert all(p.requires_grad for p in attention.parameters())


@pytest.mark.parametrize("num_kv_heads", [None, 2, 1])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_to_torch(configuration: dict[str, Any], training: bool, num_kv_heads: int | None) -> None:
    attention = MultiHeadAttention(D, HEADS, num_kv_heads=num_kv_heads, **configuration).train(training)
    shuffled(attention)
    module = to_torch(attention)
    assert_same_layer(attention, module)
    assert not {p.data_ptr() for p in attention.parameters()} & {p.data_ptr() for p in module.parameters()}
    assert all(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("bias", [False, True])
def test_there_and_back_again(bias: bool) -> None:
    attention = MultiHeadAttention(D, HEADS, bias)
    back = from_torch(to_torch(attention))
    want = attention.state_dict()
    assert back.state_dict().keys() == want.keys()
    assert all(torch.equal(value, want[name]) for name, value in back.state_dict().items())


def test_the_weights_stay_where_they_are() -> None:
    attention, module = MultiHeadAttention(D, HEADS), nn.MultiheadAttention(D, HEADS)
    with torch.device("meta"):  # where anything lands that is not told where to go
        made = (from_torch(module), to_torch(attention))
    assert {p.device.type for layer in made for p in layer.parameters()} == {"cpu"}


def test_tokens_first_is_turned_into_batch_first() -> None:
    module = nn.MultiheadAttention(D, HEADS)
    x = torch.randn(2, 3, D)
    attention = from_torch(module)
    want, _ = module(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1))
    assert_close(attention(x)[0], want.transpose(0, 1), bounds_of(attention, x).output, "output")


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ({"kdim": 8}, "from_torch: kdim=8 and vdim=12 must equal embed_dim=12"),
        ({"vdim": 8}, "from_torch: kdim=12 and vdim=8 must equal embed_dim=12"),
        ({"add_bias_kv": True}, "from_torch: add_bias_kv and add_zero_attn add keys that MultiHeadAttention does not have"),
        ({"add_zero_attn": True}, "from_torch: add_bias_kv and add_zero_attn add keys that MultiHeadAttention does not have"),
    ],
)
def test_from_torch_refuses_what_it_has_no_place_for(configuration: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        from_torch(nn.MultiheadAttention(D, HEADS, **configuration))
