"""Where a subject first departs from the formula, as far as its numbers show: what goes through right, and what does not.

Nothing is looked at inside: W_O is set to the identity to see the merged heads, and the weights are those it returns, or, since
the context of a head is linear in its values, are computed back from the merged heads and the values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from faults.diagnosis.numbers import Place
from faults.facts import has_empty_rows
from faults.looks import DECODED, GRADIENT, LATER, LATER_TRAINING, OUTPUT, RESET, TRAINING, TRAINING_GRADIENT
from properties.case import EXPLICIT, Case
from properties.inputs import make_inputs, split_heads
from properties.oracle import Truth, attend
from properties.rounding import bounds
from properties.subject import Subject
from properties.surroundings import seeded, undisturbed
from properties.time_limit import OutOfTime, Patience, time_limit

_CASES = 24  # looked at
_ENOUGH = 3  # cases that are right, to say on what kind of case it never is wrong
_ROOM = 1024.0  # times what rounding explains, since the numbers are wrong ones: see `faults.diagnosis.sights`


@dataclass(frozen=True)
class Departure:
    """The first step that is wrong, and what that is known from."""

    step: str
    because: str

    def __str__(self) -> str:
        return f"{self.step}: {self.because}"


def departure(subject: Subject, wrong: Sequence[Place], right: Sequence[Place], patience: Patience) -> Departure | None:
    """Say where it departs; None where that cannot be shown. `wrong` and `right` are the places where it is the one or other."""
    outputs = [case for look, case in wrong if look == OUTPUT and case.batch]
    if not outputs:
        return _elsewhere({look for look, _ in wrong})
    if all(map(has_empty_rows, outputs)):
        return Departure("queries that see no key", "it is wrong only on cases that have such a query")
    anatomies = [a for case in outputs[:_CASES] if (a := _dissected(subject, case, patience)) is not None]
    if not anatomies:
        return None
    if all(a.moved for a in anatomies) and not all(a.merged for a in anatomies):
        return Departure("merging the heads", "through an identity as W_O they are seen to be the right numbers in other places")
    seen = [a for a in anatomies if a.weights is not None]
    if not seen:
        return None
    if all(a.weights for a in seen):
        return _after_the_weights(seen, subject.supports.module)
    return _in_the_weights([a for a in seen if not a.weights], outputs, [case for look, case in right if look == OUTPUT])


@dataclass(frozen=True)
class _Anatomy:
    """What is right on a case, part by part, in the rows that see a key."""

    weights: bool | None  # None: they cannot be seen
    returned: bool  # they were, and not computed back from what became of the values
    hidden: bool  # hidden keys have no weight
    whole: bool  # the weights of every row add up to 1
    stretched: bool | None  # the log of the ratio of any two is the right one, times one number; None: a bias is added
    moved: bool  # the merged heads are the right numbers in other places
    merged: bool


def _dissected(subject: Subject, case: Case, patience: Patience) -> _Anatomy | None:
    """Take apart what it gives with an identity as W_O; None if it gives nothing that can be compared."""
    inputs = make_inputs(case, subject.dtype).with_identity_out()
    try:
        with undisturbed(), time_limit(patience.seconds), seeded(case.seed):
            result = subject.layer(inputs)(inputs)
    except OutOfTime:
        patience.lose()
        return None
    except AssertionError:
        return None
    truth, bound, visible = attend(inputs), bounds(inputs, subject.precision), inputs.visible()
    got = split_heads(result.output.to(torch.float64), inputs.d_head)  # [B, h, T, d_head]
    some = visible.any(-1, keepdim=True)
    if not some.any() or not got[some.expand_as(got)].isfinite().all():
        return None
    heads = truth.weights @ truth.values
    weights = _computed_back(got, truth) if result.weights is None else result.weights.to(torch.float64)
    room, little = _ROOM * bound.heads.amax(), _ROOM * bound.weights.amax()

    def small(off: Tensor, where: Tensor = some) -> bool:
        return bool((off.abs() <= little)[where.expand_as(off)].all())

    return _Anatomy(
        weights=None if weights is None else small(weights - truth.weights),
        returned=result.weights is not None,
        hidden=weights is not None and small(weights, ~visible & some),
        whole=weights is not None and small(weights.sum(-1, keepdim=True) - 1),
        stretched=None if weights is None or case.encoding == "bias" else _stretched(weights, truth.weights, visible),
        moved=bool((got.flatten().sort().values - heads.flatten().sort().values).abs().amax() <= room),
        merged=bool(((got - heads).abs() <= room)[some.expand_as(got)].all()),
    )


def _stretched(weights: Tensor, right: Tensor, visible: Tensor) -> bool:
    """Are the logs of its weights, up to a number for each row, the right ones times one number?"""
    if not bool((weights[visible] > 0).all()):
        return False
    logs = []
    for shares in (weights, right):
        log = shares.log().masked_fill(~visible, 0.0)
        logs.append((log - log.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)).masked_fill(~visible, 0.0).nan_to_num(0.0))
    got, want = logs
    factor = (got * want).sum() / want.square().sum().clamp(min=1e-300)
    return bool((got - factor * want).abs().amax() <= 1e-6 * want.abs().amax())


def _computed_back(heads: Tensor, truth: Truth) -> Tensor | None:
    """The weights `[B, h, T, S]` with which these contexts are mixed of the right values; None if they are no such mixture."""
    keys, d_head = truth.values.shape[-2:]
    if keys >= d_head:  # anything would be one
        return None
    weights = torch.linalg.lstsq(truth.values.mT, heads.nan_to_num(0.0, 0.0, 0.0).mT).solution.mT
    return weights if torch.allclose(weights @ truth.values, heads.nan_to_num(0.0, 0.0, 0.0)) else None


def _after_the_weights(anatomies: Sequence[_Anatomy], module: bool) -> Departure | None:
    known = "its weights are right on every case"
    if not all(a.merged for a in anatomies):
        return Departure("mixing the values, or the values themselves", f"{known}, and the merged heads are other numbers")
    if not module:  # a function has no projection
        return None
    return Departure("out-projection", f"{known}, and so are the merged heads, seen through an identity as W_O")


_TRAITS: tuple[tuple[Callable[[Case], bool], str, str], ...] = (
    (lambda case: case.mask in EXPLICIT and case.encoding == "bias", "masking", "a finite bias in the mask, and never without"),
    (lambda case: case.mask != "none", "masking", "a mask, and never without"),
    (lambda case: case.num_kv_heads is not None, "grouped key/value heads", "grouped heads, and never without"),
    (lambda case: case.num_heads > 1, "splitting the heads", "more than one head, and never with one"),
    (lambda case: case.keys is not None, "keys and values from the context", "a context, and never in self-attention"),
    (lambda case: case.batch > 1, "the axis of the samples", "more than one sample, and never with one"),
    (lambda case: case.bias, "the biases of the projections", "biases, and never without"),
)


def _in_the_weights(anatomies: Sequence[_Anatomy], wrong: Sequence[Case], right: Sequence[Case]) -> Departure | None:
    if not all(a.hidden for a in anatomies):
        return Departure("masking", "hidden keys have weight")
    whole, stretched = all(a.whole for a in anatomies), [a.stretched for a in anatomies if a.stretched is not None]
    if whole and stretched and all(stretched):
        return Departure("score", "its weights are those of the right scores times a number, a scale for instance")
    what = "its weights are wrong" if all(a.returned for a in anatomies) else "its weights, or its values, are wrong"
    for has, step, words in _TRAITS:
        if all(map(has, wrong)) and sum(not has(case) for case in right) >= _ENOUGH:
            return Departure(f"before the values are mixed, {step}", f"{what} on cases with {words}")
    if not whole and all(a.returned for a in anatomies):
        return Departure("softmax", "its weights do not add up to 1 over the keys")
    return Departure("before the heads are merged", f"{what}, whatever the mask and the heads")


def _elsewhere(looks: Collection[str]) -> Departure | None:
    for names, step in (
        ((TRAINING,), "dropout, or what else training changes"),
        ((LATER, LATER_TRAINING), "what is kept from one call to the next"),
        ((GRADIENT, TRAINING_GRADIENT), "the way back: the gradient"),
        ((DECODED, RESET), "the cache"),
    ):
        if set(names) & set(looks):
            wrong = next(name for name in names if name in looks)
            return Departure(step, f"a first call in evaluation gives the right output; wrong is {wrong}")
    return None
