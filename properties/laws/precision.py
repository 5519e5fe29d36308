"""Laws of rounding, in each dtype and for large scores: what finite numbers can do, and how far they may stray."""

from __future__ import annotations

import torch

from properties.case import MASKS, Case
from properties.compare import assert_all, assert_close
from properties.inputs import Inputs, gradients, make_inputs
from properties.oracle import attend
from properties.property import Property
from properties.rounding import bounds, largest_number
from properties.subject import Subject


def rounding_explains_the_error(subject: Subject, case: Case) -> None:
    """In every dtype, the result is as near to the formula as its rounding allows, for small scores and large."""
    inputs = fitting(case, case.dtype)
    if inputs is None:
        return
    want, layer = attend(inputs), subject.layer(inputs)
    bound = bounds(inputs, subject.supports.precision(inputs.x.dtype))
    for training in (False, True) if case.dropout == 0.0 else (False,):
        got, mode = layer(inputs, training=training), "in training" if training else "in evaluation"
        assert_close(got.output, want.output, bound.output, f"output {mode}", subject.judged(inputs)[..., None])
        if got.weights is not None and subject.supports.weights:
            assert_close(got.weights, want.weights, bound.weights, f"weights {mode}", inputs.visible().any(-1, keepdim=True))


def finite_in_gives_finite_out(subject: Subject, case: Case) -> None:
    """Finite tokens, weights and scores give finite results, in every dtype."""
    for dtype in subject.supports.dtypes:
        inputs = fitting(case, dtype)
        if inputs is not None:
            output = subject.layer(inputs)(inputs).output
            assert_all(output.isfinite() | ~subject.judged(inputs)[..., None], output, f"in {dtype} the output must be finite")


def finite_in_gives_finite_gradients(subject: Subject, case: Case) -> None:
    """Finite tokens, weights and scores give finite gradients, where the dtype has the range for them."""
    inputs = fitting(case, case.dtype)
    if inputs is None:
        return
    judged = subject.judged(inputs)
    if not judged.all() and not subject.supports.finite_empty_rows:
        return
    leaves, named = inputs.leaves()
    output = subject.layer(inputs)(leaves, grad=True).output
    for name, gradient in gradients(output[judged], torch.ones_like(output[judged]), named).items():
        if not gradient.isfinite().all():
            raise AssertionError(f"in {case.dtype} the gradient of {name} must be finite")


def fitting(case: Case, dtype: str) -> Inputs | None:
    """The inputs in this dtype, with large scores if the case has them; None if what is met on the way does not fit the dtype."""
    inputs = make_inputs(case, getattr(torch, dtype), case.score_scale)
    return None if largest_number(inputs) > torch.finfo(inputs.x.dtype).max / 4 else inputs


# To rounding it is all one whether heads have masks of their own; without them, what is hidden from one head is hidden from all.
SHARED = tuple(mask for mask in MASKS if mask != "head")

PROPERTIES = (
    Property(law=rounding_explains_the_error, needs=("formula",), where={"mask": SHARED}),
    Property(law=finite_in_gives_finite_out, where={"mask": SHARED}),
    Property(
        law=finite_in_gives_finite_gradients,
        needs=("gradients",),
        where={"mask": SHARED, "dtype": ("float64", "float32", "bfloat16")},
    ),
)
