"""ALiBi, against slopes and biases that are written out."""

from __future__ import annotations

import doctest
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import attn.alibi
from attn import AlibiAttention, alibi_slopes


def attention(d_model: int = 16, num_heads: int = 2, **options: Any) -> AlibiAttention:
    torch.manual_seed(0)
    return AlibiAttention(d_model, num_heads, dtype=torch.float64, **options)


def tokens(batch: int = 2, length: int = 5, d_model: int = 16) -> Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (4, [2, 4, 6, 8]),
        (5, [2, 4, 6, 8, 1]),
        (6, [2, 4, 6, 8, 1, 3]),
        (7, [2, 4, 6, 8, 1, 3, 5]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (16, [(i + 1) / 2 for i in range(16)]),
    ],
)
def test_slopes(num_heads: int, exponents: list[float]) -> None:
    slopes = alibi_slopes(num_heads)
    assert slopes.dtype == torch.float64
    assert_close(slopes, torch.tensor([2.0**-e for e in exponents], dtype=torch.float64), rtol=1e-15, atol=0)
    layer = AlibiAttention(num_heads, num_heads)
    assert torch.equal(layer.slopes(torch.device("cpu")), slopes)


def test_slopes_are_made_where_they_are_wanted() -> None:
    layer, x = attention(), tokens()
    want = layer(x)[0]
    with torch.device("meta"):  # where anything lands that is not told where to go
        assert alibi_slopes(3, device="cpu").tolist() == [2.0**-4, 2.0**-8, 2.0**-2]
        assert layer.slopes(torch.device("cpu")).device.type == "cpu"
        got = layer(x)[0]
    assert got.device.type == "cpu"
    assert torch.equal(got, want)


def written_out(num_heads: int, queries: int, keys: int) -> Tensor:
    """The bias, `[h, T, S]`."""
    slopes = alibi_slopes(num_heads).tolist()
    rows = [[[-slope * abs(keys - queries + t - s) for s in range(keys)] for t in range(queries)] for slope in slopes]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (4, 4), (2, 5), (1, 3)])
def test_scores_lose_what_the_distance_costs(queries: int, keys: int) -> None:
    layer = attention(num_heads=4)
    q = torch.randn(2, 4, queries, 4, dtype=torch.float64)
    k = torch.randn(2, 4, keys, 4, dtype=torch.float64)
    got = layer.score(q, k)
    assert got.dtype == torch.float64
    assert_close(got, q @ k.mT / 2 + written_out(4, queries, keys))


@pytest.mark.parametrize("num_kv_heads", [None, 1])
@pytest.mark.parametrize("is_causal", [False, True])
def test_it_is_attention_with_a_bias(is_causal: bool, num_kv_heads: int | None) -> None:
    layer, x = attention(num_kv_heads=num_kv_heads), tokens()
    q, k, v = (layer.split_heads(part) for part in layer.in_proj(x).split(layer.widths, dim=-1))
    k, v = k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1)
    seen = torch.ones(5, 5, dtype=torch.bool)
    seen[3, 2] = False
    mask = seen.clone()
    if is_causal:
        seen = seen.tril()
    bias = written_out(2, 5, 5).masked_fill(~seen, -torch.inf)
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    output, weights = layer(x, mask, is_causal=is_causal)
    assert_close(output, layer.out_proj(heads.transpose(1, 2).flatten(2)))
    assert torch.equal(weights > 0, seen.expand(2, 2, -1, -1))


def test_the_flag_is_off_unless_it_is_given() -> None:
    assert (attention()(tokens())[1] > 0).all()
    assert torch.equal(attention()(tokens(), is_causal=True)[1] > 0, torch.ones(2, 2, 5, 5).tril().bool())


def test_equal_keys_are_weighed_by_their_distance_alone() -> None:
    layer = attention(2, 1)
    weights = layer(torch.ones(1, 3, 2, dtype=torch.float64))[1]
    costs = torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]], dtype=torch.float64) / 256
    assert_close(weights[0, 0], (-costs).softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_stays_in_its_dtype(dtype: torch.dtype) -> None:
    output, weights = attention().to(dtype)(tokens().to(dtype))
    assert (output.dtype, weights.dtype) == (dtype, dtype)


def test_there_is_no_distance_to_another_sequence() -> None:
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'context'"):
        attention()(tokens(), context=tokens())


def test_inputs_are_checked() -> None:
    said = "x must have shape [B, T, d_model], got [5, 16]: add or remove axes"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        attention()(tokens()[0])


def test_the_examples_of_the_docstrings() -> None:
    failed, tried = doctest.testmod(attn.alibi)
    assert (failed, tried > 0) == (0, True)
