"""The relative bias, against tables of buckets that are written out."""

from __future__ import annotations

import doctest
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import attn.relative
from attn import RelativeBiasAttention
from attn.relative import distances


def attention(d_model: int = 16, num_heads: int = 2, **options: Any) -> RelativeBiasAttention:
    torch.manual_seed(0)
    layer = RelativeBiasAttention(d_model, num_heads, dtype=torch.float64, **options)
    torch.nn.init.normal_(layer.table)
    return layer


def tokens(batch: int = 2, length: int = 7, d_model: int = 16) -> Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("queries", "keys", "want"),
    [
        (1, 1, [[0]]),
        (3, 3, [[0, -1, -2], [1, 0, -1], [2, 1, 0]]),
        (1, 4, [[3, 2, 1, 0]]),
        (2, 4, [[2, 1, 0, -1], [3, 2, 1, 0]]),
        (2, 1, [[-1], [0]]),
    ],
)
def test_distances(queries: int, keys: int, want: list[list[int]]) -> None:
    got = distances(queries, keys)
    assert got.dtype == torch.int64
    assert got.tolist() == want


def test_distances_are_made_where_they_are_wanted() -> None:
    layer, x = attention(), tokens()
    want = layer(x)[0]
    with torch.device("meta"):  # where anything lands that is not told where to go
        assert distances(1, 2, device="cpu").tolist() == [[1, 0]]
        got = layer(x)[0]
    assert got.device.type == "cpu"
    assert torch.equal(got, want)


# The first distance of each bucket, worked out by hand: the far ones begin at near * (far/near)**(i/n).
@pytest.mark.parametrize(
    ("buckets", "far", "begins"),
    [
        (2, 2, [0, 1]),
        (2, 100, [0, 1]),
        (4, 8, [0, 1, 2, 4]),
        (4, 18, [0, 1, 2, 6]),
        (8, 64, [0, 1, 2, 3, 4, 8, 16, 32]),
        (6, 81, [0, 1, 2, 3, 9, 27]),
    ],
)
def test_buckets(buckets: int, far: int, begins: list[int]) -> None:
    layer = attention(buckets=buckets, far=far)
    asked = torch.arange(-3, 4 * far)
    got = layer.bucket(asked)
    assert got.shape == asked.shape
    assert got.dtype == torch.int64
    exact = set(begins[buckets // 2 + 1 :])  # where the logarithm is whole, rounding may fall either way
    for distance, bucket in zip(asked.tolist(), got.tolist(), strict=True):
        want = max(0, sum(distance >= begin for begin in begins) - 1)
        allowed = (want - 1, want) if distance in exact and not math.log2(distance / (buckets // 2)).is_integer() else (want,)
        assert bucket in allowed, distance


@pytest.mark.parametrize(("buckets", "far"), [(2, 2), (4, 8), (8, 64), (32, 128)])
def test_the_first_far_bucket_is_the_one_a_near_distance_would_have(buckets: int, far: int) -> None:
    assert attention(buckets=buckets, far=far).bucket(torch.tensor([buckets // 2])).tolist() == [buckets // 2]


def test_the_buckets_of_t5() -> None:
    layer = attention(buckets=32, far=128)
    ends = {15: 15, 16: 16, 18: 16, 19: 17, 20: 17, 21: 18, 31: 21, 35: 22, 64: 26, 112: 30, 113: 31, 127: 31, 128: 31, 5000: 31}
    assert layer.bucket(torch.tensor(list(ends))).tolist() == list(ends.values())


def written_out(layer: RelativeBiasAttention, queries: int, keys: int) -> Tensor:
    """The bias of a layer whose buckets begin at 0, 1, 2 and 4, `[h, T, S]`."""
    numbers = layer.table.tolist()

    def entry(distance: int, head: int) -> float:
        return numbers[max(0, sum(distance >= begin for begin in (0, 1, 2, 4)) - 1)][head]  # type: ignore[no-any-return]

    rows = [[[entry(keys - queries + t - s, i) for s in range(keys)] for t in range(queries)] for i in range(layer.num_heads)]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (2, 6), (1, 7)])
def test_scores_gain_what_the_distance_is_worth(queries: int, keys: int) -> None:
    layer = attention(num_heads=4, buckets=4, far=8)
    q = torch.randn(2, 4, queries, 4, dtype=torch.float64)
    k = torch.randn(2, 4, keys, 4, dtype=torch.float64)
    assert_close(layer.score(q, k), q @ k.mT / 2 + written_out(layer, queries, keys))


@pytest.mark.parametrize("num_kv_heads", [None, 1])
def test_it_is_causal_attention_with_a_bias(num_kv_heads: int | None) -> None:
    layer, x = attention(num_kv_heads=num_kv_heads, buckets=4, far=8), tokens()
    q, k, v = (layer.split_heads(part) for part in layer.in_proj(x).split(layer.widths, dim=-1))
    k, v = k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1)
    mask = torch.ones(7, 7, dtype=torch.bool)
    mask[5, 2] = False
    bias = written_out(layer, 7, 7).masked_fill(~mask.tril(), -torch.inf)
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    output, weights = layer(x, mask)
    assert_close(output, layer.out_proj(heads.transpose(1, 2).flatten(2)))
    assert torch.equal(weights > 0, mask.tril().expand(2, 2, -1, -1))
    assert torch.equal(layer(x)[1] > 0, torch.ones(2, 2, 7, 7).tril().bool())


def test_the_table_learns() -> None:
    layer = attention(buckets=4, far=8)
    layer(tokens())[0].square().sum().backward()
    assert layer.table.grad is not None
    assert (layer.table.grad != 0).all()


def test_what_it_is_built_with() -> None:
    layer = RelativeBiasAttention(16, 2, num_kv_heads=1, dropout=0.25, bias=True)
    assert (layer.buckets, layer.far, layer.num_kv_heads, layer.dropout) == (32, 128, 1, 0.25)
    assert layer.in_proj.bias is not None
    assert layer.table.shape == (32, 2)
    assert layer.table.requires_grad
    assert (layer.table == 0).all()
    assert [name for name, _ in layer.named_parameters()][0] == "table"
    other = RelativeBiasAttention(16, 2, buckets=6, far=9, device="meta", dtype=torch.float16)
    assert (other.buckets, other.far, other.table.shape) == (6, 9, (6, 2))
    assert (other.table.device.type, other.table.dtype) == ("meta", torch.float16)


@pytest.mark.parametrize(
    ("buckets", "far", "said"),
    [
        (0, 8, "buckets must be even and at least 2, got 0"),
        (1, 8, "buckets must be even and at least 2, got 1"),
        (-2, 8, "buckets must be even and at least 2, got -2"),
        (5, 8, "buckets must be even and at least 2, got 5"),
        (8, 4, "far must be more than buckets/2=4, which have a bucket each, got 4"),
        (8, 3, "far must be more than buckets/2=4, which have a bucket each, got 3"),
    ],
)
def test_buckets_that_are_refused(buckets: int, far: int, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        RelativeBiasAttention(16, 2, buckets=buckets, far=far)


@pytest.mark.parametrize(("buckets", "far"), [(2, 2), (8, 5)])
def test_buckets_at_the_edge_are_not(buckets: int, far: int) -> None:
    layer = RelativeBiasAttention(16, 2, buckets=buckets, far=far)
    assert (layer.buckets, layer.far) == (buckets, far)


def test_there_is_no_distance_to_another_sequence() -> None:
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'context'"):
        attention()(tokens(), context=tokens())


def test_inputs_are_checked() -> None:
    said = "x must have shape [B, T, d_model], got [7, 16]: add or remove axes"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        attention()(tokens()[0])


def test_the_examples_of_the_docstrings() -> None:
    failed, tried = doctest.testmod(attn.relative)
    assert (failed, tried > 0) == (0, True)
