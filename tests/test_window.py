"""The sliding window, against masks written out by hand and torch's own attention."""

from __future__ import annotations

import doctest
import re
from typing import Any

import pytest
import torch
from by_hand import B, T, attended, d, h, layer_and_tokens, padding
from torch import Tensor

import attn.window
from attn import WindowAttention, window_mask

OF_THREE = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize(
    ("window", "queries", "keys", "want"),
    [
        (1, 3, None, [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        (2, 3, None, [[1, 0, 0], [1, 1, 0], [0, 1, 1]]),
        (3, 3, None, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (9, 2, None, [[1, 0], [1, 1]]),
        (2, 2, 4, [[0, 1, 1, 0], [0, 0, 1, 1]]),  # two new tokens after two old ones: the last query sees the last key
        (2, 1, 4, [[0, 0, 1, 1]]),
        (2, 3, 2, [[0, 0], [1, 0], [1, 1]]),
    ],
)
def test_the_mask(window: int, queries: int, keys: int | None, want: list[list[int]]) -> None:
    mask = window_mask(window, queries, keys)
    assert mask.dtype == torch.bool
    assert mask.int().tolist() == want


def test_the_mask_is_made_where_it_is_wanted() -> None:
    layer, scores = WindowAttention(4, 2, window=2), torch.zeros(1, 2, 3, 3)
    with torch.device("meta"):  # where anything lands that is not told where to go
        assert window_mask(2, 3, device="cpu").device.type == "cpu"
        assert layer.hide_distant(scores, None).device.type == "cpu"


@pytest.mark.parametrize(
    ("window", "error", "said"),
    [
        (0, ValueError, "window must be at least 1, a query sees itself; got 0"),
        (-1, ValueError, "window must be at least 1, a query sees itself; got -1"),
        (2.0, TypeError, "window must be an int, got 2.0"),
        (True, TypeError, "window must be an int, got True"),
    ],
)
def test_a_window_that_is_none(window: Any, error: type[Exception], said: str) -> None:
    for make in (lambda: window_mask(window, 3), lambda: WindowAttention(4, 2, window=window)):
        with pytest.raises(error, match=f"^{re.escape(said)}$"):
            make()


def test_torch_agrees() -> None:
    layer, x = layer_and_tokens(WindowAttention, window=3)
    output, weights = layer(x)
    torch.testing.assert_close(output, attended(layer, x, OF_THREE))
    assert torch.equal(weights > 0, OF_THREE.expand(B, h, T, T))


@pytest.mark.parametrize("window", [None, 5, 100])
def test_a_window_that_hides_nothing(window: int | None) -> None:
    layer, x = layer_and_tokens(WindowAttention, window=window)
    assert layer.window == window
    torch.testing.assert_close(layer(x)[0], attended(layer, x, torch.ones(T, T, dtype=torch.bool).tril()))


def test_a_window_of_one_is_the_token_itself() -> None:
    layer, x = layer_and_tokens(WindowAttention, window=1)
    assert torch.equal(layer(x)[1], torch.eye(T, dtype=torch.float64).expand(B, h, T, T))


@pytest.mark.parametrize("window", [None, 3])
def test_beside_a_mask(window: int | None) -> None:
    layer, x = layer_and_tokens(WindowAttention, window=window)
    mask = padding([1, 1, 0, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 0])
    band = OF_THREE if window else torch.ones(T, T, dtype=torch.bool).tril()
    output, weights = layer(x, mask)
    torch.testing.assert_close(output, attended(layer, x, mask & band))
    assert torch.equal(weights > 0, (mask & band).expand(B, h, T, T))
    bias = torch.randn(T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(layer(x, bias)[0], attended(layer, x, bias.masked_fill(~band, -torch.inf)))


def test_the_window_of_scores_that_are_not_square() -> None:
    layer = WindowAttention(4, 2, window=2)
    assert torch.equal(layer.hide_distant(torch.zeros(2, 4), None), window_mask(2, 2, 4))


def test_a_row_whose_window_is_padding_is_empty() -> None:
    layer, x = layer_and_tokens(WindowAttention, window=2)
    output, weights = layer(x, padding([1, 0, 0, 1, 1]).expand(B, 1, 1, T))
    assert not weights[:, :, 2].any()
    assert torch.equal(output[:, 2], layer.out_proj.bias.expand(B, d))


def test_what_it_refuses() -> None:
    layer, x = layer_and_tokens(WindowAttention, window=2)
    with pytest.raises(ValueError, match=r"does not broadcast to the scores \[B, h, T, S\] = \[3, 4, 5, 5\]"):
        layer(x, torch.ones(T, 3, dtype=torch.bool))
    with pytest.raises(TypeError, match="window"):
        WindowAttention(4, 2)  # type: ignore[call-arg]


def test_the_options_of_the_plain_attention_are_its_own() -> None:
    layer = WindowAttention(6, 3, window=2, bias=True, num_kv_heads=1, dropout=0.5, device="meta", dtype=torch.bfloat16)
    assert (layer.d_model, layer.num_heads, layer.num_kv_heads, layer.dropout) == (6, 3, 1, 0.5)
    assert layer.in_proj.bias is not None
    assert (layer.in_proj.weight.device.type, layer.in_proj.weight.dtype) == ("meta", torch.bfloat16)


def test_the_examples_in_the_docstrings() -> None:
    failed, tried = doctest.testmod(attn.window)
    assert failed == 0 and tried > 0


def test_the_gradient_stops_at_the_window() -> None:
    layer, x = layer_and_tokens(WindowAttention, window=2)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0][:, 4].sum(), x)
    reached: Tensor = gradient.abs().sum((0, 2)) > 0
    assert reached.tolist() == [False, False, False, True, True]
