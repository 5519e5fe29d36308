"""Laws about NaN, and about what is left of a call: what they ask, and what they leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attn import MultiHeadAttention
from faults.subject import subject
from properties import Case, failure, of_function
from properties.conformance import find
from properties.property import Property

NAN = find("a_nan_that_is_seen_comes_out")
OUTLIVES = find("a_result_outlives_the_next_call")
ONE_CALL = find("mask_and_flag_are_for_one_call")
FIRST = find("any_key_may_come_first")


class ValuesWithoutNan(MultiHeadAttention):
    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project_in(x, context)
        return q, k.nan_to_num(), v.nan_to_num()


class WeightsWithoutNan(MultiHeadAttention):
    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        return super().softmax(scores, empty).nan_to_num()


class WeightsInKeptMemory(MultiHeadAttention):
    kept: Tensor | None = None

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = super().softmax(scores, empty)
        if self.kept is None or self.kept.shape != weights.shape:
            self.kept = torch.empty_like(weights)
        return self.kept.copy_(weights)


class MaskKept(MultiHeadAttention):
    kept: Tensor | None = None

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        self.kept = self.kept if attn_mask is None else attn_mask
        return super().mask(scores, self.kept, is_causal)


class FirstKeyAlwaysSeen(MultiHeadAttention):
    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None:
            attn_mask = attn_mask.clone()
            attn_mask[..., 0] = True
        return super().mask(scores, attn_mask, is_causal)


CROSS = Case(batch=2, queries=3, keys=4, num_heads=2, d_head=2)


@pytest.mark.parametrize(
    ("attention", "law", "case", "evidence"),
    [
        (WeightsWithoutNan, NAN, CROSS, r"with NaN in every query, output[0, 0] must be NaN, but is [0.0, 0.0, 0.0, 0.0]"),
        (ValuesWithoutNan, NAN, CROSS, "with NaN in token 0, output[0, 0] must be NaN"),
        (WeightsInKeptMemory, OUTLIVES, CROSS, "weights, after another call,["),
        (MaskKept, ONE_CALL, Case(queries=2, mask="causal"), "output without a mask, after one with[0, 0, 0] = "),
        (FirstKeyAlwaysSeen, FIRST, Case(queries=1, keys=2, mask="padding"), "output, keys turned by 1[0, 0, 0] = "),
    ],
)
def test_the_law_says_what_is_wrong(attention: type[MultiHeadAttention], law: Property, case: Case, evidence: str) -> None:
    found = failure(law, subject(attention, "broken"), case)
    assert found is not None
    assert found.startswith(evidence)


@pytest.mark.parametrize("case", [CROSS, Case(queries=3, num_heads=2), Case(queries=3, keys=1), Case(queries=3, mask="empty")])
def test_nan_is_asked_for_where_it_must_come_out(case: Case) -> None:
    """Not of a query with a single key, whose weight is 1 whatever it scores, and not of one that sees none."""
    assert failure(NAN, subject(), case) is None


def test_a_single_key_need_not_be_compared() -> None:
    class WithoutScores(MultiHeadAttention):
        def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
            return torch.ones_like(scores) if scores.shape[-1] == 1 else super().softmax(scores, empty)

    assert failure(NAN, subject(WithoutScores, "without scores"), Case(queries=3, keys=1)) is None


def test_passing_on_nan_is_a_promise() -> None:
    """PyTorch's kernel for the CPU does not: its safe softmax takes a row of NaN for an empty one."""
    assert NAN.not_applicable(of_function(torch.nn.functional.scaled_dot_product_attention)) == (
        "it does not promise to pass on NaN"
    )
