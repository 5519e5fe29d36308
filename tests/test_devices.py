"""What is made on the default device is noticed where there is only one, and nothing else is taken for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from attn import MultiHeadAttention
from faults.subject import subject
from properties import Case, failure, of_class, of_function
from properties.conformance import find
from properties.elsewhere import watching
from properties.subject import Subject

LAW = find("what_is_made_is_made_where_x_is")
CASE = Case(batch=2, queries=3, num_heads=2, d_head=2, mask="is_causal")


def that_masks(mask: Callable[[Tensor], Tensor]) -> Subject:
    """The clean attention, but for what it makes of its scores `[B, h, T, S]`."""

    class Masked(MultiHeadAttention):
        def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
            return super().mask(mask(scores), attn_mask, is_causal)

    return subject(Masked, "masked")


def triangle(scores: Tensor, **options: Any) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool, **options).tril()


def looked_up(scores: Tensor) -> Tensor:
    table = scores.new_zeros(4, scores.shape[-1])
    return scores + table[torch.arange(scores.shape[-2])]


def filled(scores: Tensor) -> Tensor:
    buffer = torch.zeros_like(scores)
    buffer.copy_(torch.ones(scores.shape))
    buffer[..., 0] = torch.tensor(2.0)
    return scores + buffer


@pytest.mark.parametrize(
    ("mask", "maker", "taker"),
    [
        (lambda scores: scores.masked_fill(~triangle(scores), -math.inf), "ones", "masked_fill"),
        (lambda scores: torch.where(triangle(scores), scores, -math.inf), "ones", "where"),
        (lambda scores: scores + torch.zeros(scores.shape).double(), "zeros", "add"),
        (lambda scores: scores * torch.tensor([1.0] * scores.shape[-1]), "tensor", "mul"),
        (lambda scores: scores + torch.tensor(0.0).expand(scores.shape), "tensor", "add"),
        (lambda scores: torch.cat([scores[..., 1:], torch.zeros(*scores.shape[:3], 1)], dim=-1), "zeros", "cat"),
        (lambda scores: scores.index_select(-1, torch.arange(scores.shape[-1])), "arange", "index_select"),
        (lambda scores: scores + F.pad(torch.ones(2).to(torch.float64), (0, 1)), "ones", "add"),
    ],
)
def test_what_meets_tensors_of_another_device_is_named(mask: Callable[[Tensor], Tensor], maker: str, taker: str) -> None:
    found = failure(LAW, that_masks(mask), CASE)
    assert found == f"torch.{maker}, without a device, made what {taker} takes along with tensors on that of x"


@pytest.mark.parametrize(
    "mask",
    [
        lambda scores: scores.masked_fill(~triangle(scores, device=scores.device), -math.inf),
        lambda scores: scores.masked_fill(~triangle(scores).to(scores.device), -math.inf),
        lambda scores: scores.masked_fill(~triangle(scores).float().to(scores).bool(), -math.inf),
        lambda scores: scores + torch.ones(scores.shape).type_as(scores),
        lambda scores: torch.where(scores > torch.tensor(9.0), torch.tensor(9.0, dtype=scores.dtype), scores),
        lambda scores: scores + torch.full((), 2.0, dtype=scores.dtype),
        lambda scores: scores + scores.new_zeros(3) + torch.zeros_like(scores) + scores.new_tensor([1.0, 2.0, 3.0]),
        lambda scores: scores + int(torch.arange(3).sum()),
        lambda scores: scores.expand_as(torch.empty(scores.shape)),
        lambda scores: scores + torch.as_tensor(scores),
        looked_up,
        filled,
    ],
)
def test_what_runs_on_any_device_is_left_alone(mask: Callable[[Tensor], Tensor]) -> None:
    assert failure(LAW, that_masks(mask), CASE) is None


def test_what_is_drawn_in_training_counts() -> None:
    class ByHand(MultiHeadAttention):
        def drop(self, weights: Tensor) -> Tensor:
            kept = torch.rand(weights.shape, dtype=weights.dtype) >= self.dropout if self.training else torch.ones_like(weights)
            return weights * kept

    found = failure(LAW, subject(ByHand, "by hand"), CASE)
    assert found == "torch.rand, without a device, made what mul takes along with tensors on that of x"


class Buffered(MultiHeadAttention):
    """What its constructor makes moves with the module."""

    table: Tensor

    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.register_buffer("table", torch.ones(8, 8, dtype=torch.bool).tril())

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return scores.masked_fill(~self.table[: scores.shape[-2], : scores.shape[-1]], -math.inf), None


def test_buffers_move_with_the_module() -> None:
    assert failure(LAW, subject(Buffered, "buffered"), CASE) is None


def test_a_function_is_watched_too() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        distance = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
        scores = q @ k.mT / q.shape[-1] ** 0.5 + 0 * distance
        return scores.softmax(-1) @ v

    found = failure(LAW, of_function(attention, empty_rows="undefined"), Case(queries=2))
    assert found == "torch.arange, without a device, made what add takes along with tensors on that of x"
    assert failure(LAW, of_function(F.scaled_dot_product_attention), Case(queries=2)) is None


def test_what_is_for_one_device_can_say_so() -> None:
    assert LAW.not_applicable(of_class(MultiHeadAttention, any_device=False)) == "it is declared for the default device alone"


def test_the_watch_ends_with_the_call() -> None:
    class Raises(MultiHeadAttention):
        def forward(self, x: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Any:
            if _get_current_function_mode_stack():
                raise NotImplementedError("not under a mode")
            return super().forward(x, attn_mask, **options)

    raising = subject(Raises, "raising")
    assert failure(LAW, raising, CASE) is None  # it runs; that it cannot be watched is nobody's fault
    layer, inputs = raising.start(CASE)
    with watching(layer) as (_, run), pytest.raises(AssertionError, match="not under a mode"):
        run(inputs, False)
    assert not _get_current_function_mode_stack()
    layer(inputs)  # no hook is left
