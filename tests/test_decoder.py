"""The decoder: pieces against one pass, one pass against the formula written out, and what the cache may forget."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attn import Cache, CachedAttention, DecoderAttention, RotaryAttention, WindowAttention

B, T, h, d_head = 2, 6, 4, 4
d = h * d_head
close = torch.testing.assert_close
each_window = pytest.mark.parametrize("window", [None, 1, 2, 3, 5, 6, 7])
each_split = pytest.mark.parametrize("split", [[1] * T, [2, 1, 3], [1, 5], [3, 3], [4, 2], [5, 1], [6]])


def made(window: int | None = 3, **options: int | float | bool) -> DecoderAttention:
    return DecoderAttention(d, h, window=window, bias=True, num_kv_heads=2, dtype=torch.float64, **options)


def tokens(number: int = T) -> Tensor:
    return torch.randn(B, number, d, dtype=torch.float64)


def band(window: int | None) -> Tensor:
    """Which key each of T queries sees."""
    back = torch.arange(T)[:, None] - torch.arange(T)
    return (back >= 0) & (back < (T if window is None else window))


def by_torch(attention: DecoderAttention, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """The output of these weights by `F.scaled_dot_product_attention`, rotated as complex numbers."""

    def heads(projected: Tensor, turned: bool) -> Tensor:
        split = projected.unflatten(-1, (-1, d_head)).transpose(1, 2)
        if not turned:
            return split
        pairs = torch.complex(*split.chunk(2, dim=-1))
        speed = 10_000.0 ** (-torch.arange(d_head // 2, dtype=torch.float64) / (d_head // 2))
        angles = positions.expand(B, T)[:, None, :, None] * speed
        pairs = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    q, k, v = F.linear(x, attention.in_proj.weight, attention.in_proj.bias).split(attention.widths, dim=-1)
    mixed = F.scaled_dot_product_attention(heads(q, True), heads(k, True), heads(v, False), attn_mask=mask, enable_gqa=True)
    return F.linear(mixed.transpose(1, 2).flatten(2), attention.out_proj.weight, attention.out_proj.bias)


def in_pieces(
    attention: DecoderAttention, x: Tensor, split: list[int], mask: Tensor | None = None, positions: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    cache, end, results = attention.new_cache(B), 0, []
    for n in split:
        begin, end = end, end + n
        part = None if mask is None else mask[..., :end] if mask.shape[-2] == 1 else mask[..., begin:end, :end]
        places = None if positions is None else positions[..., begin:end]
        results.append(attention(x[:, begin:end], part, positions=places, cache=cache))
        kept = end if attention.window is None else min(end, attention.window - 1)
        assert cache.length == end, "the tokens that were forgotten must be counted"
        assert cache.keys.shape == cache.values.shape == (B, 2, kept, d_head)
    return results


def assert_pieces_of_one_pass(pieces: list[tuple[Tensor, Tensor]], whole: tuple[Tensor, Tensor]) -> None:
    close(torch.cat([output for output, _ in pieces], dim=1), whole[0])
    end = 0
    for _, weights in pieces:
        begin, end = end, end + weights.shape[2]
        left = weights.shape[3]
        close(weights, whole[1][:, :, begin:end, end - left : end])
        assert not whole[1][:, :, begin:end, : end - left].any()


@each_window
def test_without_a_cache(window: int | None) -> None:
    attention, x = made(window), tokens()
    output, weights = attention(x)
    close(output, by_torch(attention, x, torch.arange(T), band(window)))
    assert torch.equal(weights > 0, band(window).expand(B, h, T, T))


@pytest.mark.parametrize("shape", [(T,), (B, T)])
def test_positions_may_be_given(shape: tuple[int, ...]) -> None:
    attention, x = made(), tokens()
    positions = torch.randint(1, 4, shape).cumsum(-1)
    close(attention(x, positions=positions)[0], by_torch(attention, x, positions, band(3)))


def test_a_mask_hides_more() -> None:
    attention, x = made(), tokens()
    mask = (torch.rand(B, 1, T, T) < 0.6) | torch.eye(T, dtype=torch.bool)
    close(attention(x, mask)[0], by_torch(attention, x, torch.arange(T), band(3) & mask))


@each_window
@each_split
def test_pieces_give_the_rows_of_one_pass(window: int | None, split: list[int]) -> None:
    attention, x = made(window), tokens()
    assert_pieces_of_one_pass(in_pieces(attention, x, split), attention(x))


@each_window
@each_split
@pytest.mark.parametrize("kind", ["padding", "additive", "any"])
def test_pieces_with_a_mask(window: int | None, split: list[int], kind: str) -> None:
    attention, x = made(window), tokens()
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 0, 1, 0, 1]], dtype=torch.bool)[:, None, None]
    if kind == "additive":
        mask = torch.randn(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    elif kind == "any":
        mask = torch.rand(B, h, T, T) < 0.7
    assert_pieces_of_one_pass(in_pieces(attention, x, split, mask), attention(x, mask))


@each_split
@pytest.mark.parametrize("shape", [(T,), (B, T)])
@pytest.mark.parametrize("window", [None, 3])
def test_pieces_with_positions(window: int | None, split: list[int], shape: tuple[int, ...]) -> None:
    attention, x = made(window), tokens()
    positions = torch.randint(1, 4, shape).cumsum(-1)
    assert_pieces_of_one_pass(in_pieces(attention, x, split, positions=positions), attention(x, positions=positions))


@each_split
def test_pieces_of_every_kind_of_rotation(split: list[int]) -> None:
    for options in ({"interleaved": True}, {"rotary_width": 2}, {"stretch": 4.0}, {"base": 100.0}):
        attention, x = made(3, **options), tokens()
        assert_pieces_of_one_pass(in_pieces(attention, x, split), attention(x))


def test_positions_go_on_where_the_cache_ends() -> None:
    attention = made(2)
    cpu = torch.device("cpu")
    assert attention.count(3, None, cpu).tolist() == [0, 1, 2]
    cache = attention.new_cache(B)
    assert attention.count(2, cache, cpu).tolist() == [0, 1]
    attention(tokens(4), cache=cache)
    assert attention.count(2, cache, cpu).tolist() == [4, 5]
    assert attention.count(1, cache, torch.device("meta")).device.type == "meta"


def test_given_positions_and_counted_ones_are_the_same() -> None:
    attention, x = made(), tokens()
    assert torch.equal(attention(x)[0], attention(x, positions=torch.arange(T))[0])
    assert not torch.equal(attention(x)[0], attention(x, positions=2 * torch.arange(T))[0])


@pytest.mark.parametrize(
    ("window", "kept"), [(None, [0, 1, 2, 3]), (1, []), (2, [3]), (3, [2, 3]), (4, [1, 2, 3]), (5, [0, 1, 2, 3])]
)
def test_what_is_forgotten(window: int | None, kept: list[int]) -> None:
    attention = made(window)
    cache = attention.new_cache(1)
    cache.keys = torch.arange(4.0)[None, None, :, None].expand(1, 2, 4, d_head)
    cache.values = cache.keys + 10
    attention.forget(cache)
    assert cache.keys[0, 0, :, 0].tolist() == kept
    assert cache.values[0, 0, :, 0].tolist() == [key + 10 for key in kept]


def test_a_mask_loses_the_columns_of_forgotten_tokens() -> None:
    attention = made()
    mask = torch.arange(8).view(2, 4)
    cropped = attention.crop(mask, 3)
    assert cropped is not None and cropped.tolist() == [[1, 2, 3], [5, 6, 7]]
    assert attention.crop(mask, 4) is not None and torch.equal(attention.crop(mask, 4), mask)  # type: ignore[arg-type]
    column = torch.ones(2, 1)
    assert attention.crop(column, 3) is column
    assert attention.crop(None, 3) is None


@pytest.mark.parametrize("window", [None, 1, 2, 4])
def test_a_mask_of_one_column_is_repeated(window: int | None) -> None:
    attention, x = made(window), tokens(5)
    cache, column = attention.new_cache(B), torch.tensor([[True], [False]])[:, None, None]
    attention(x[:, :4], cache=cache)
    want = attention(x)[0][:, 4:]
    got, weights = attention(x[:, 4:], column, cache=cache)
    close(got[0], want[0])
    assert not weights[1].any()


@pytest.mark.parametrize("order", [[1, 0], [0, 0], [1, 1]])
@pytest.mark.parametrize("window", [None, 1, 2, 3])
def test_beams(window: int | None, order: list[int]) -> None:
    attention, x, samples = made(window), tokens(), torch.tensor(order)
    cache = attention.new_cache(B)
    attention(x[:, :4], cache=cache)
    attention.reorder(cache, samples)
    moved = x[samples]
    close(attention(moved[:, 4:], cache=cache)[0], attention(moved)[0][:, 4:])


@pytest.mark.parametrize("window", [None, 1, 3])
def test_reset(window: int | None) -> None:
    attention, x = made(window), tokens()
    cache = attention.new_cache(B)
    attention(tokens(), cache=cache)
    attention.reset(cache)
    assert (cache.length, cache.keys.shape[2], cache.values.shape[2]) == (0, 0, 0)
    close(attention(x, cache=cache)[0], attention(x)[0])


def test_a_capacity_is_for_a_cache_without_a_window() -> None:
    attention, x = made(None), tokens()
    cache = attention.new_cache(B, T)
    assert cache.capacity == T
    assert cache.keys.shape == (B, 2, T, d_head)
    got = torch.cat([attention(x[:, :4], cache=cache)[0], attention(x[:, 4:], cache=cache)[0]], dim=1)
    close(got, attention(x)[0])
    with refuses(ValueError, f"cache has capacity={T} and holds {T}: 1 more do not fit"):
        attention(x[:, :1], cache=cache)
    with refuses(ValueError, "capacity=4: a cache with window=3 never holds more than that, leave it out"):
        made(3).new_cache(B, 4)
    assert made(3).new_cache(B).capacity is None
    with refuses(ValueError, "capacity must be at least 1 token, got 0; leave it out for a cache that grows"):
        made(None).new_cache(B, 0)


def refuses(error: type[Exception], message: str) -> pytest.RaisesExc[Exception]:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def test_what_is_refused() -> None:
    attention = made()
    cache = attention.new_cache(B)
    attention(tokens(), cache=cache)
    with refuses(ValueError, "cache was made for batch 1, x has 2: make one with new_cache(batch)"):
        attention(tokens(), cache=attention.new_cache(1))
    with refuses(ValueError, f"positions must have shape [T] or [B, T] = {[B, 2]}, got [6]"):
        attention(tokens(2), positions=torch.arange(6), cache=cache)
    with refuses(TypeError, "positions must be whole numbers, got torch.float32: convert them with .long()"):
        attention(tokens(2), positions=torch.zeros(2), cache=cache)
    with refuses(TypeError, "positions must be a tensor of whole numbers, got list"):
        attention(tokens(2), positions=[6, 7], cache=cache)
    mask = torch.ones(2, 4, dtype=torch.bool)  # over what the cache holds: it has to be over all that it has seen
    hint = "A padding mask [B, S] needs mask[:, None, None, :]."
    with refuses(ValueError, f"attn_mask [2, 4] does not broadcast to the scores [B, h, T, S] = [2, 4, 2, 8]. {hint}"):
        attention(tokens(2), mask, cache=cache)
    assert cache.length == T, "what was refused was counted"
    with refuses(ValueError, "window must be at least 1, a query sees itself; got 0"):
        made(0)


def test_it_is_all_three() -> None:
    attention = DecoderAttention(d, h)
    assert attention.window is None
    assert isinstance(attention, CachedAttention) and isinstance(attention, RotaryAttention)
    assert isinstance(attention, WindowAttention)
    attention = DecoderAttention(d, h, window=2, rotary_width=2, interleaved=True, base=5.0, stretch=2.0, dropout=0.25)
    given = (attention.window, attention.rotary_width, attention.interleaved, attention.base, attention.stretch)
    assert given == (2, 2, True, 5.0, 2.0)
    assert attention.dropout == 0.25


def test_positions_are_counted_where_the_tokens_are() -> None:
    class Asked(DecoderAttention):
        def count(self, tokens: int, cache: Cache | None, device: torch.device) -> Tensor:
            raise LookupError(str(device))

    with pytest.raises(LookupError, match="cpu"):
        Asked(d, h, dtype=torch.float64)(tokens())
