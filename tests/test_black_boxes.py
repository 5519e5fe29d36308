"""Laws that need no weights and no formula see through a black box; each holds for what is right, and notices what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import torch
from own import Own
from torch import Tensor, nn

from faults.catalog import find
from faults.fault import subject_of
from faults.subject import subject
from properties import PROPERTIES, Case, Subject, black_box, failure, of_class
from properties.compare import dimensions

LAWS = {law.name: law for law in PROPERTIES}
CASES = 20  # of each law, for what it should notice: a law can be about few of the cases on which a fault shows

# For each law: mistakes that it notices, and what it says then.
NOTICED = [
    (
        "gradients_are_slopes_of_the_output",
        "softmax-without-backward",
        r"the gradient by \w+ in a random direction is .* the slope",
    ),
    ("gradients_are_slopes_of_the_output", "scores-outside-the-graph", "in a random direction"),
    ("gradients_are_slopes_of_the_output", "detached-keys", "the gradient by (x|context|w_k)"),
    ("gradients_are_slopes_of_the_output", "detached-mask", "the gradient by mask .* is 0 in evaluation"),
    ("gradients_are_slopes_of_the_output", "context-rebuilt-from-numbers", "is 0 in evaluation"),
    ("gradients_are_slopes_of_the_output", "jacobian-without-row-dot", "in evaluation"),
    ("gradients_are_slopes_of_the_output", "dropout-ignored-in-the-backward", "in training"),
    ("gradients_are_slopes_of_the_output", "half-precision-softmax", "the output has no slope"),
    ("one_key_is_dropped_or_scaled_up", "dropout-not-rescaled", "the first is not the mean of the others by"),
    ("one_key_is_dropped_or_scaled_up", "dropout-lost-after-evaluation", "gave 1 different rows in 100 draws"),
    ("one_key_is_dropped_or_scaled_up", "dropout-before-softmax", "gave 1 different rows in 100 draws"),
    ("one_key_is_dropped_or_scaled_up", "dropout-on-the-output", r"gave ([3-9]|\d\d) different rows"),
    ("no_draw_is_the_evaluation", "dropout-not-rescaled", "training gave in draw .* what evaluation gives"),
    ("one_key_is_dropped_by_whole_heads", "dropout-on-the-output", r"in \d+ dimensions, and has only \d heads"),
    ("every_head_drops_for_itself", "dropout-shared-by-heads", "gave 2 different rows in 100 draws"),
    ("every_key_is_dropped_for_itself", "dropout-shared-by-keys", r"dropout moved output\[\d, \d\] in no more dimensions"),
    ("equal_rows_are_dropped_apart", "dropout-shared-by-queries", "which asks and sees the same"),
    ("training_returns_the_weights_before_dropout", "dropped-weights-returned", "weights in training"),
    ("every_head_chooses_for_itself", "averaged-heads", "two keys lie on a line"),
    ("a_shift_of_the_mask_changes_nothing", "mask-after-softmax", "added to the mask"),
    ("a_bias_multiplies_the_odds", "bias-lost", r"added to the mask at key \d"),
    ("a_bias_multiplies_the_odds", "scaled-mask", r"added to the mask at key \d"),
    ("no_bias_and_zeros_give_zeros", "half-honoured-bias", "output for zeros, without biases"),
    ("no_bias_and_zeros_give_zeros", "surplus-projection-bias", "output for zeros, without biases"),
]


def boxed(subject: Subject, **declared: bool) -> Subject:
    return replace(subject, supports=replace(subject.supports, loads_weights=False, **declared))


def first_failure(law: str, subject: Subject, cases: int = CASES) -> str | None:
    random = Random(0)
    assert LAWS[law].not_applicable(subject) is None
    found = (failure(LAWS[law], subject, LAWS[law].sample(random, subject)) for _ in range(cases))
    return next((evidence for evidence in found if evidence is not None), None)


@pytest.mark.parametrize(("law", "fault", "evidence"), NOTICED)
def test_a_mistake_in_a_black_box_is_noticed(law: str, fault: str, evidence: str) -> None:
    weights = "weights" in LAWS[law].needs
    with pytest.raises(AssertionError, match=evidence):
        raise AssertionError(first_failure(law, boxed(subject_of(find(fault)), weights=weights)))


@pytest.mark.parametrize("law", sorted({law for law, *_ in NOTICED}))
@pytest.mark.parametrize("dtypes", [("float64",), ("float32",)], ids=lambda dtypes: str(dtypes[0]))
def test_what_is_right_holds(law: str, dtypes: tuple[str, ...]) -> None:
    right = boxed(subject())
    right = replace(right, supports=replace(right.supports, dtypes=dtypes))
    assert "loads_weights" not in LAWS[law].needs and "formula" not in LAWS[law].needs
    if dtypes == ("float32",) and "double_precision" in LAWS[law].needs:
        pytest.skip("see below")
    assert first_failure(law, right) is None


class Sharp(nn.MultiheadAttention):
    """PyTorch's own, with weights as large as after a long training."""

    def __init__(self, d_model: int, num_heads: int, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout=dropout, bias=bias, batch_first=True)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(3)

    def forward(self, x: Tensor, mask: None = None, context: Tensor | None = None) -> Tensor:  # type: ignore[override]
        keys = x if context is None else context
        return super().forward(x, keys, keys, need_weights=False)[0]


@pytest.mark.parametrize("law", sorted({law for law, *_ in NOTICED}))
def test_a_module_with_sharp_weights_holds(law: str) -> None:
    subject = black_box(Sharp, masks=("none",))
    if LAWS[law].not_applicable(subject) is None:
        assert first_failure(law, subject) is None


class CutAtAParameter(Own):
    def attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        output, weights = super().attend(x, mask)
        return output.detach() + (self.out.bias - self.out.bias.detach()) * 2, weights


def test_the_slope_names_the_parameter_of_a_module_and_leaves_it_as_it_was() -> None:
    evidence = first_failure("gradients_are_slopes_of_the_output", black_box(CutAtAParameter, empty_rows="nan"))
    assert evidence is not None and "the gradient by its parameter out.bias" in evidence

    made: list[Own] = []

    def build(d_model: int, num_heads: int) -> Own:
        made.append(Own(d_model, num_heads))
        return made[-1]

    subject = black_box(build, empty_rows="nan")
    made.clear()
    assert failure(LAWS["gradients_are_slopes_of_the_output"], subject, Case(queries=3, num_heads=2, d_head=2)) is None
    fresh, *others = (layer.state_dict() for layer in made)
    assert others
    for other in others:
        for name, value in other.items():
            assert torch.equal(value, fresh[name]), name


class ReadsZeroAsVisible(Own):
    """Right for 0 and -inf, and for no other number."""

    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().mask(scores, mask if mask is None or mask.dtype == torch.bool else mask == 0)


@pytest.mark.parametrize(
    ("encodings", "holds"), [(("bool", "additive"), True), (("bool", "additive", "bias"), False)], ids=["0 or -inf", "any"]
)
def test_a_mask_is_moved_only_if_any_number_may_stand_in_it(encodings: tuple[str, ...], holds: bool) -> None:
    subject = black_box(ReadsZeroAsVisible, encodings=encodings, empty_rows="nan")
    assert (first_failure("gradients_are_slopes_of_the_output", subject) is None) == holds


class Forgetful(nn.Module):
    """Self-attention whose constructor takes a bias, and gives one to whoever asks for none."""

    def __init__(self, d_model: int, num_heads: int, bias: bool = True) -> None:
        super().__init__()
        self.own = Own(d_model, num_heads)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return self.own(x)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: black_box(Own), "it cannot be built without biases"),
        (lambda: black_box(Own, optional_bias=True), None),
        (lambda: black_box(Forgetful), None),
        (lambda: of_class(Own), None),
    ],
    ids=["a black box that has them anyway", "declared", "one that takes `bias`", "zero can be loaded"],
)
def test_biases_are_taken_to_be_optional_where_one_can_ask_for_none(make: Callable[[], Subject], reason: str | None) -> None:
    assert LAWS["no_bias_and_zeros_give_zeros"].not_applicable(make()) == reason


def test_a_bias_given_to_whoever_asks_for_none_is_noticed() -> None:
    assert first_failure("no_bias_and_zeros_give_zeros", black_box(Forgetful), cases=1) is not None


@pytest.mark.parametrize(
    ("law", "dtypes", "reason"),
    [
        ("gradients_are_slopes_of_the_output", ("float32", "bfloat16"), None),
        ("gradients_are_slopes_of_the_output", ("bfloat16",), "its dtypes are too coarse"),
        ("no_draw_is_the_evaluation", ("float64", "bfloat16"), None),
        ("no_draw_is_the_evaluation", ("float32",), "it does not compute in float64"),
        ("every_head_chooses_for_itself", ("float32",), "it does not compute in float64"),
    ],
)
def test_coarse_dtypes_are_not_asked_for_small_differences(law: str, dtypes: tuple[str, ...], reason: str | None) -> None:
    coarse = subject()
    coarse = replace(coarse, supports=replace(coarse.supports, dtypes=dtypes))
    assert (LAWS[law].not_applicable(coarse) or "").startswith(reason or "") and bool(reason) == bool(
        LAWS[law].not_applicable(coarse)
    )
    floored = replace(coarse, supports=replace(coarse.supports, dtypes=("float64",), floors={"float64": "bfloat16"}))
    assert LAWS[law].not_applicable(floored) is not None


def test_dimensions_count_what_an_error_cannot_make() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.0], [2.0, 1e-9, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    assert dimensions(rows, 1e-8) == 2
    assert dimensions(rows, 1e-11) == 3
    assert dimensions(torch.zeros(2, 3), 0.0) == 0
    noise = 1e-8 * torch.ones(3, 3, dtype=torch.float64)
    assert dimensions(noise, 1e-8) == 0


def test_a_black_box_that_begins_with_zeros_may_learn_later() -> None:
    class ZeroOut(Own):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__(d_model, num_heads)
            torch.nn.init.zeros_(self.out.weight)

    law = next(law for law in PROPERTIES if law.name == "every_parameter_learns")
    case = Case(queries=3, num_heads=2, d_head=2)
    assert failure(law, black_box(ZeroOut), case) is None
    assert failure(law, black_box(Own), case) is None
