"""A key/value cache: pieces against one pass, and one pass against PyTorch's own attention."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attn import Cache, CachedAttention, MultiHeadAttention
from attn.checks import check_capacity

B, T, h, d_head = 2, 5, 4, 3
d = h * d_head
close = torch.testing.assert_close
each_capacity = pytest.mark.parametrize("capacity", [None, T, T + 2])
each_split = pytest.mark.parametrize("split", [[1, 1, 1, 1, 1], [2, 1, 2], [1, 4], [3, 2], [5]])


def made(num_kv_heads: int | None = 2, dtype: torch.dtype = torch.float64) -> CachedAttention:
    return CachedAttention(d, h, bias=True, num_kv_heads=num_kv_heads, dtype=dtype)


def tokens(batch: int = B, number: int = T) -> Tensor:
    return torch.randn(batch, number, d, dtype=torch.float64)


def by_torch(attention: MultiHeadAttention, x: Tensor, mask: Tensor) -> Tensor:
    """The output of these weights by `F.scaled_dot_product_attention`."""
    q, k, v = (
        part.unflatten(-1, (-1, attention.d_head)).transpose(1, 2)
        for part in F.linear(x, attention.in_proj.weight, attention.in_proj.bias).split(attention.widths, dim=-1)
    )
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return F.linear(heads.transpose(1, 2).flatten(2), attention.out_proj.weight, attention.out_proj.bias)


def triangle(number: int = T) -> Tensor:
    return torch.ones(number, number, dtype=torch.bool).tril()


def in_pieces(
    attention: CachedAttention, x: Tensor, split: list[int], cache: Cache, mask: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    outputs, weights, end = [], [], 0
    for n in split:
        begin, end = end, end + n
        part = None if mask is None else mask[..., :end] if mask.shape[-2] == 1 else mask[..., begin:end, :end]
        output, shares = attention(x[:, begin:end], part, cache=cache)
        outputs.append(output)
        weights.append(shares)
    return torch.cat(outputs, dim=1), weights


def assert_pieces_of_one_pass(got: tuple[Tensor, list[Tensor]], want: tuple[Tensor, Tensor]) -> None:
    close(got[0], want[0])
    end = 0
    for shares in got[1]:
        begin, end = end, end + shares.shape[2]
        close(shares, want[1][:, :, begin:end, :end])


def test_without_a_cache_it_is_causal_attention() -> None:
    attention, x = made(), tokens()
    output, weights = attention(x)
    close(output, by_torch(attention, x, triangle()))
    assert weights.shape == (B, h, T, T)
    assert not weights.triu(1).any()


def test_a_mask_is_added_to_the_causal_one() -> None:
    attention, x = made(), tokens()
    mask = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 1, 1, 1]], dtype=torch.bool)[:, None, None]
    close(attention(x, mask)[0], by_torch(attention, x, triangle() & mask))


@each_capacity
@each_split
@pytest.mark.parametrize("num_kv_heads", [None, 1, 2])
def test_pieces_give_the_rows_of_one_pass(split: list[int], capacity: int | None, num_kv_heads: int | None) -> None:
    attention, x = made(num_kv_heads), tokens()
    cache = attention.new_cache(B, capacity)
    assert_pieces_of_one_pass(in_pieces(attention, x, split, cache), attention(x))
    assert cache.length == T


@each_capacity
@each_split
@pytest.mark.parametrize("kind", ["padding", "additive", "any"])
def test_pieces_with_a_mask(split: list[int], capacity: int | None, kind: str) -> None:
    attention, x = made(), tokens()
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 1, 1]], dtype=torch.bool)[:, None, None]  # [B, 1, 1, S]
    if kind == "additive":
        mask = torch.randn(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    elif kind == "any":
        mask = torch.rand(B, h, T, T) < 0.7
    assert_pieces_of_one_pass(in_pieces(attention, x, split, attention.new_cache(B, capacity), mask), attention(x, mask))


def test_a_growing_cache_holds_what_was_said() -> None:
    attention, x = made(), tokens()
    cache = attention.new_cache(B)
    assert (cache.length, cache.capacity) == (0, None)
    assert cache.keys.shape == cache.values.shape == (B, 2, 0, d_head)
    attention(x[:, :3], cache=cache)
    attention(x[:, 3:], cache=cache)
    _, k, v = attention.project_in(x, None)
    close(cache.keys, attention.split_heads(k))
    close(cache.values, attention.split_heads(v))


def test_a_static_cache_keeps_its_slots() -> None:
    attention, x = made(), tokens()
    cache = attention.new_cache(B, 7)
    assert (cache.length, cache.capacity) == (0, 7)
    assert cache.keys.shape == cache.values.shape == (B, 2, 7, d_head)
    assert not cache.keys.any() and not cache.values.any()
    keys, values = cache.keys, cache.values
    with torch.no_grad():
        attention(x[:, :2], cache=cache)
        attention(x[:, 2:], cache=cache)
    assert cache.keys is keys and cache.values is values, "a static cache was copied"
    _, k, v = attention.project_in(x, None)
    close(keys[:, :, :T], attention.split_heads(k))
    close(values[:, :, :T], attention.split_heads(v))
    assert not keys[:, :, T:].any() and not values[:, :, T:].any()


def test_what_is_appended_comes_back_with_all_before_it() -> None:
    attention = made()
    k, v = torch.randn(2, B, 2, 3, d_head, dtype=torch.float64)
    for capacity in (None, 3, 4):
        cache = attention.new_cache(B, capacity)
        attention.append(cache, k[:, :, :1], v[:, :, :1])
        keys, values = attention.append(cache, k[:, :, 1:], v[:, :, 1:])
        assert torch.equal(keys, k) and torch.equal(values, v)
        assert cache.length == 3


def test_a_cache_is_of_the_dtype_and_the_device_of_the_weights() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        cache = made(dtype=dtype).new_cache(1, 2)
        assert cache.keys.dtype == cache.values.dtype == dtype
    cache = CachedAttention(d, h, device="meta").new_cache(1, 2)
    assert cache.keys.device.type == cache.values.device.type == "meta"


def test_keys_and_values_have_memory_of_their_own() -> None:
    cache = made().new_cache(2, 2)
    cache.keys[0] = 1
    assert not cache.values.any() and not cache.keys[1].any()


@each_capacity
@pytest.mark.parametrize("order", [[1, 0], [0, 0], [1, 1]])
def test_beams_go_on_from_the_past_they_were_made_from(order: list[int], capacity: int | None) -> None:
    attention, x, samples = made(), tokens(), torch.tensor(order)
    cache = attention.new_cache(B, capacity)
    attention(x[:, :3], cache=cache)
    attention.reorder(cache, samples)
    moved = x[samples]
    close(attention(moved[:, 3:], cache=cache)[0], attention(moved)[0][:, 3:])


@each_capacity
def test_a_reset_cache_is_as_good_as_new(capacity: int | None) -> None:
    attention, x, y = made(), tokens(), tokens()
    cache = attention.new_cache(B, capacity)
    in_pieces(attention, x, [3, 2], cache)
    attention.reset(cache)
    assert cache.length == 0
    assert cache.keys.shape == cache.values.shape == (B, 2, capacity or 0, d_head)
    assert_pieces_of_one_pass(in_pieces(attention, y, [2, 1, 2], cache), attention(y))


@each_capacity
def test_two_caches_know_nothing_of_each_other(capacity: int | None) -> None:
    attention, x, y = made(), tokens(), tokens()
    one, other = attention.new_cache(B, capacity), attention.new_cache(B, capacity)
    attention(x[:, :3], cache=one)
    attention(y[:, :3], cache=other)
    close(attention(x[:, 3:], cache=one)[0], attention(x)[0][:, 3:])
    close(attention(y[:, 3:], cache=other)[0], attention(y)[0][:, 3:])


def test_gradients_pass_through_a_growing_cache() -> None:
    attention, x = made(), tokens()
    output, _ = in_pieces(attention, x, [2, 3], attention.new_cache(B))
    (pieces,) = torch.autograd.grad(output.square().sum(), attention.in_proj.weight)
    (whole,) = torch.autograd.grad(attention(x)[0].square().sum(), attention.in_proj.weight)
    close(pieces, whole)


def refuses(error: type[Exception], message: str) -> pytest.RaisesExc[Exception]:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize("capacity", [0, -1])
def test_no_capacity_is_refused(capacity: int) -> None:
    message = f"capacity must be at least 1 token, got {capacity}; leave it out for a cache that grows"
    with refuses(ValueError, message):
        made().new_cache(1, capacity)
    check_capacity(1)
    check_capacity(None)


def test_another_batch_is_refused() -> None:
    attention = made()
    with refuses(ValueError, "cache was made for batch 3, x has 2: make one with new_cache(batch)"):
        attention(tokens(), cache=attention.new_cache(3))


def test_a_full_cache_is_full() -> None:
    attention = made()
    cache = attention.new_cache(B, 4)
    attention(tokens(number=3), cache=cache)
    with refuses(ValueError, "cache has capacity=4 and holds 3: 2 more do not fit"):
        attention(tokens(number=2), cache=cache)
    assert cache.length == 3, "what does not fit was counted"
    attention(tokens(number=1), cache=cache)
    with refuses(ValueError, "cache has capacity=4 and holds 4: 1 more do not fit"):
        attention(tokens(number=1), cache=cache)


def test_a_mask_is_over_all_that_is_cached() -> None:
    attention = made()
    cache = attention.new_cache(B)
    attention(tokens(number=3), cache=cache)
    wrong, hint = torch.ones(2, 2, dtype=torch.bool), "A padding mask [B, S] needs mask[:, None, None, :]."
    with refuses(ValueError, f"attn_mask [2, 2] does not broadcast to the scores [B, h, T, S] = [2, 4, 2, 5]. {hint}"):
        attention(tokens(number=2), wrong, cache=cache)
    attention(tokens(number=2), torch.ones(2, 5, dtype=torch.bool), cache=cache)
    with refuses(ValueError, f"attn_mask [2, 5] does not broadcast to the scores [B, h, T, S] = [2, 4, 2, 2]. {hint}"):
        attention(tokens(number=2), torch.ones(2, 5, dtype=torch.bool))
    with refuses(TypeError, "attn_mask is torch.float32, x is torch.float64: convert it with .to(x.dtype)"):
        attention(tokens(number=2), torch.zeros(2, 7), cache=cache)


def test_tokens_are_checked() -> None:
    attention = made()
    with refuses(ValueError, "x must have shape [B, T, d_model], got [5, 12]: add or remove axes"):
        attention(tokens()[0])
    with refuses(TypeError, "x must be a tensor of shape [B, T, d_model], got list"):
        attention([], cache=attention.new_cache(B))


def test_only_tokens_and_mask_are_positional() -> None:
    with pytest.raises(TypeError, match="positional"):
        made()(tokens(), None, made().new_cache(B))


def test_a_cache_grows_unless_it_is_told_otherwise() -> None:
    keys, values = torch.zeros(2, B, 2, 0, d_head)
    cache = Cache(keys, values)
    assert (cache.length, cache.capacity) == (0, None)
