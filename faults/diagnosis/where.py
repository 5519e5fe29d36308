"""Where a subject first departs from the formula, as far as its numbers show: what goes through right, and what does not.

Nothing is looked at inside: W_O is set to the identity to see the merged heads, and the weights are those it returns, or, since
the context of a head is linear in its values, are computed back from the merged heads and the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from faults.diagnosis.numbers import Place
from faults.looks import DECODED, GRADIENT, LATER, LATER_TRAINING, OUTPUT, TRAINING, TRAINING_GRADIENT
from properties.case import Case
from properties.inputs import make_inputs, split_heads
from properties.oracle import Truth, attend
from properties.rounding import bounds
from properties.subject import Subject
from properties.surroundings import seeded, undisturbed
from properties.time_limit import OutOfTime, Patience, time_limit

_CASES = 24  # looked at


@dataclass(frozen=True)
class Departure:
    """The first step that is wrong, and what that is known from."""

    step: str
    because: str

    def __str__(self) -> str:
        return f"{self.step}: {self.because}"


def departure(subject: Subject, wrong: Sequence[Place], right: Sequence[Place], patience: Patience) -> Departure | None:
    """Say where it departs; None where that cannot be shown. `wrong` and `right` are the places where it is the one or other."""
    if not wrong:
        return None
    outputs = [case for look, case in wrong if look == OUTPUT]
    if not outputs:
        return _elsewhere({look for look, _ in wrong})
    anatomies = [a for case in outputs[:_CASES] if (a := _dissected(subject, case, patience)) is not None]
    if not anatomies:
        return Departure("before anything is returned", "it raises on every case on which it is wrong")
    if all(a.weights for a in anatomies):
        return _after_the_weights(anatomies)
    if any(a.weights is None for a in anatomies):
        return None
    return _in_the_weights(list(outputs), [case for look, case in right if look == OUTPUT])


@dataclass(frozen=True)
class _Anatomy:
    """What is right on a case, part by part; None: that cannot be seen."""

    weights: bool | None
    mixed: bool  # the merged heads, by whatever weights it returned or must have used
    moved: bool  # the merged heads are the right numbers in other places
    merged: bool


def _dissected(subject: Subject, case: Case, patience: Patience) -> _Anatomy | None:
    inputs = make_inputs(case, subject.dtype).with_identity_out()
    try:
        with undisturbed(), time_limit(patience.seconds), seeded(case.seed):
            result = subject.layer(inputs)(inputs)
    except OutOfTime:
        patience.lose()
        return None
    except AssertionError:
        return None
    truth, bound = attend(inputs), bounds(inputs, subject.precision)
    got = split_heads(result.output.to(torch.float64), inputs.d_head)  # [B, h, T, d_head]
    heads = truth.weights @ truth.values
    weights = result.weights.to(torch.float64) if result.weights is not None else _computed_back(got, truth)
    seen = inputs.visible().any(-1, keepdim=True)
    slack = 64.0
    near = (got - heads).abs() <= slack * bound.heads
    values, wanted = got.flatten().sort().values, heads.flatten().sort().values
    return _Anatomy(
        weights=None if weights is None else bool((((weights - truth.weights).abs() <= slack * bound.weights) | ~seen).all()),
        mixed=weights is not None and bool(((got - weights @ truth.values).abs() <= slack * bound.heads.amax()).all()),
        moved=bool(((values - wanted).abs() <= slack * bound.heads.amax()).all()),
        merged=bool((near | ~seen).all()),
    )


def _computed_back(heads: Tensor, truth: Truth) -> Tensor | None:
    """The weights `[B, h, T, S]` with which these contexts are mixed of the right values; None if they do not follow."""
    keys, d_head = truth.values.shape[-2:]
    if keys > d_head:
        return None
    weights = torch.linalg.lstsq(truth.values.mT, heads.mT).solution.mT
    return weights if torch.allclose(weights @ truth.values, heads) else None


def _after_the_weights(anatomies: Sequence[_Anatomy]) -> Departure:
    known = "its weights are right on every case"
    if all(a.merged for a in anatomies):
        return Departure("out-projection", f"{known}, and so are the merged heads, seen through an identity as W_O")
    if all(a.moved for a in anatomies):
        return Departure("merging the heads", f"{known}, and the merged heads have the right numbers in other places")
    return Departure("mixing the values, or the values themselves", f"{known}, and the merged heads are other numbers")


_TRAITS: tuple[tuple[Callable[[Case], bool], str, str], ...] = (
    (lambda case: case.mask not in ("none", "full"), "masking", "a mask, and never without"),
    (lambda case: case.num_kv_heads is not None, "grouped key/value heads", "grouped heads, and never without"),
    (lambda case: case.num_heads > 1, "splitting the heads", "more than one head, and never with one"),
    (lambda case: case.keys is not None, "keys and values from the context", "a context, and never in self-attention"),
    (lambda case: case.batch > 1, "the axis of the samples", "more than one sample, and never with one"),
    (lambda case: case.bias, "the biases of the projections", "biases, and never without"),
)


def _in_the_weights(wrong: Sequence[Case], right: Sequence[Case]) -> Departure:
    known = "its weights are wrong"
    for has, step, words in _TRAITS:
        if all(map(has, wrong)) and not all(map(has, right)) and right:
            return Departure(f"before the weights, {step}", f"{known} on cases with {words}")
    return Departure("before the weights", f"{known}, whatever the mask and the heads")


def _elsewhere(looks: Iterable[str]) -> Departure | None:
    for names, step in (
        ((TRAINING,), "dropout, or what else training changes"),
        ((LATER, LATER_TRAINING), "what is kept from one call to the next"),
        ((GRADIENT, TRAINING_GRADIENT), "the way back: the gradient"),
        ((DECODED,), "the cache"),
    ):
        if set(names) & set(looks):
            return Departure(step, f"a first call in evaluation gives the right output; wrong is {names[0]}")
    return None
