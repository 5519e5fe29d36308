"""A broken subject gets a verdict, whatever it does, and the message says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from attn import MultiHeadAttention, causal_mask
from faults.subject import subject
from properties import PROPERTIES, Case, check, failure, falsify
from properties.compare import assert_close
from properties.property import Property
from properties.subject import Subject
from properties.supports import Supports

LAWS = {law.name: law for law in PROPERTIES}


def subject_that(answers: Callable[[Tensor], Any]) -> Subject:
    class Broken(MultiHeadAttention):
        def forward(self, x: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Any:
            return answers(x)

    return subject(Broken, "broken")


def raise_(error: Exception) -> Any:
    raise error


def forbid_backward(x: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.rand(x.shape[0], 1, x.shape[1], x.shape[1], dtype=x.dtype)
    output = x.exp()
    output.detach().zero_()  # what exp needs to go backward is overwritten, behind autograd's back
    output.zero_()
    return output, weights


@pytest.mark.parametrize(
    ("answers", "evidence"),
    [
        (lambda x: raise_(RuntimeError("no kernel")), "it raised RuntimeError: no kernel"),
        (lambda x: None, r"it returned None, not an output, or \(output, weights\)"),
        (lambda x: (None, None), "its output is None, not a tensor"),
        (lambda x: (x[0], None), r"its output has shape \[1, 1\], not \[1, 1, 1\]"),
        (lambda x: (x.float(), None), "its output is torch.float32, x is torch.float64"),
        (lambda x: (x.to("meta"), None), "its output is on meta, x is on cpu"),
        (lambda x: (x * torch.nan, None), r"output\[0, 0, 0\] = nan, should be"),
        (lambda x: iter([x, None, None]), "it returned a list_iterator, not an output"),
    ],
)
def test_a_broken_answer_is_a_failure(answers: Callable[[Tensor], Any], evidence: str) -> None:
    found = failure(LAWS["output_is_the_formula"], subject_that(answers), Case())
    assert found is not None
    with pytest.raises(AssertionError, match=evidence):
        raise AssertionError(found)


@pytest.mark.parametrize("law", PROPERTIES, ids=lambda law: law.name)
@pytest.mark.parametrize(
    "answers", [forbid_backward, lambda x: (x, None), lambda x: 1 / 0], ids=["backward", "identity", "raising"]
)
def test_no_law_crashes_on_it(law: Property, answers: Callable[[Tensor], Any]) -> None:
    broken = subject_that(answers)
    if law.not_applicable(broken) is None:
        failure(law, broken, law.sample(Random(0), broken))


def test_a_constructor_that_raises_is_a_failure() -> None:
    class Broken(MultiHeadAttention):
        def __init__(self, *sizes: Any, **options: Any) -> None:
            raise ValueError("unsupported head width")

    found = failure(LAWS["output_is_the_formula"], subject(Broken, "broken"), Case())
    assert found == "building it raised ValueError: unsupported head width"


def test_check_leads_with_the_law_the_case_and_the_numbers() -> None:
    broken = subject_that(lambda x: (x, torch.ones(x.shape[0], 1, x.shape[1], x.shape[1], dtype=x.dtype)))
    with pytest.raises(AssertionError) as error:
        check(LAWS["output_is_the_formula"], broken)
    first, second, third, *_ = str(error.value).splitlines()
    assert first == "broken breaks a law of attention: The output is concat(softmax(q k^T / sqrt(d_head) + mask) v) W_O^T."
    assert second.strip().startswith("on Case(")
    assert "should be" in third or "shape" in third


@pytest.mark.parametrize(
    "drop",
    [
        lambda w: w * torch.bernoulli(torch.full_like(w, 0.25)) / 0.75,  # keeps with the probability of dropping
        lambda w: w * (torch.rand_like(w) > 0.25**2) / 0.75,
    ],
)
def test_dropout_at_the_wrong_rate_is_noticed(drop: Callable[[Tensor], Tensor]) -> None:
    class Broken(MultiHeadAttention):
        def drop(self, weights: Tensor) -> Tensor:
            return drop(weights) if self.training else weights

    case = Case(batch=2, queries=4, num_heads=2, d_head=2, dropout=0.25)
    assert "was dropped, should be 0.25" in str(failure(LAWS["the_share_of_dropped_weights_is_p"], subject(Broken), case))
    assert failure(LAWS["the_share_of_dropped_weights_is_p"], subject(), case) is None


def test_a_causal_mask_kept_from_another_size_is_noticed() -> None:
    class Broken(MultiHeadAttention):
        kept: Tensor | None = None

        def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
            queries, keys = scores.shape[-2:]
            if self.kept is None or self.kept.shape[0] < queries:
                self.kept = causal_mask(queries, keys)
            return super().mask(scores, self.kept[:queries, :keys], False)

    case = Case(queries=3, keys=5, d_head=2, mask="is_causal")
    assert "fewer tokens after more" in str(failure(LAWS["one_layer_serves_all_sizes"], subject(Broken), case))


def test_a_law_is_not_asked_about_cases_it_is_not_about() -> None:
    with pytest.raises(ValueError, match=r"a_mask_may_be_written_in_any_form is not about Case\(\)"):
        failure(LAWS["a_mask_may_be_written_in_any_form"], subject(), Case())


def test_falsify_finds_nothing_in_what_is_right() -> None:
    assert falsify(LAWS["rows_sum_to_one"], subject(), max_examples=20) is None


def test_nobody_elses_random_numbers_change() -> None:
    state = torch.get_rng_state()
    for law in PROPERTIES:
        if law.not_applicable(subject()) is None:
            failure(law, subject(), law.sample(Random(0), subject()))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_comparison_says_where_how_much_and_what_rounding_explains() -> None:
    got, want = torch.tensor([[1.0, 2.0], [3.0, 4.5]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(AssertionError, match=r"^output\[1, 1\] = 4.5, should be 4 \(off by 0.5; rounding explains 1e-06\)$"):
        assert_close(got, want, 1e-6, "output")
    with pytest.raises(AssertionError, match=r"should be 4 \(should be equal\)|should be equal"):
        assert_close(got, want, 0.0, "output")
    assert_close(got, want, 0.5, "output")
    assert_close(got, want, 0.0, "output", where=got < 4)


def test_nan_and_infinity_are_only_close_to_themselves() -> None:
    special = torch.tensor([torch.nan, torch.inf, -torch.inf])
    assert_close(special, special.clone(), 0.0, "output")
    for got, want in ((special, special.flip(0)), (torch.zeros(3), special), (special, torch.zeros(3))):
        with pytest.raises(AssertionError):
            assert_close(got, want, 1e300, "output")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"masks": ["triangle"]}, r"masks must be some of none, .*, got \['triangle'\]"),
        ({"masks": "causal"}, "masks must be some of .*, got 'causal'"),
        ({"dtypes": ()}, r"dtypes must be some of .*, got \(\)"),
        ({"empty_rows": "zeros"}, r"empty_rows must be one of zero \| nan \| uniform \| undefined, got 'zeros'"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Supports(**declared)
