"""What is wrong with a fault whose output, on a first call in evaluation, is right.

The same is done with the fault and with the clean attention, the same random numbers for dropout included, and compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import gradients, make_inputs
from properties.laws.precision import fitting
from properties.rounding import bounds, gradient_bounds
from properties.subject import Result, Subject
from properties.surroundings import seeded

Seen = Iterator[tuple[Tensor | None, Tensor | float]]  # what came out, and how far rounding may lead it


def also_wrong(broken: Subject, clean: Subject, cases: Sequence[Case]) -> tuple[str, ...]:
    """Name what differs from the clean attention, on any of the cases, by more than rounding explains.

    Of each group only the first that does: those after it follow from it.
    """
    found: dict[str, None] = {}
    for group in _GROUPS:
        wrong = (
            what for what, look in group.items() if what in found or any(_differs(look, broken, clean, case) for case in cases)
        )
        found |= dict.fromkeys(itertools.islice(wrong, 1))
    return tuple(found)


def differences(broken: Subject, clean: Subject, case: Case) -> tuple[str, ...]:
    """Name all that differs on this case by more than rounding explains; that the first of two raises differs, too."""
    return tuple(what for what, look in LOOKS.items() if _differs(look, broken, clean, case))


def alike(one: Subject, other: Subject, case: Case) -> bool:
    """Do two subjects, either of which may raise, the same on this case?"""
    return not any(_told_apart(look, one, other, case) for look in LOOKS.values())


def near(got: Tensor | None, clean: Tensor | None, bound: Tensor | float) -> bool:
    """Is it what it should be, but for rounding?"""
    if got is None or clean is None or got.shape != clean.shape:
        return got is clean
    got, clean = got.to(torch.float64), clean.to(torch.float64)
    return bool((((got - clean).abs() <= bound) | (got == clean)).all())


def _differs(look: Callable[[Subject, Case], Seen], broken: Subject, right: Subject, case: Case) -> bool:
    try:
        seen = list(look(broken, case))
    except Exception:
        return True
    return any(not near(got, clean, bound) for (got, _), (clean, bound) in zip(seen, look(right, case), strict=True))


def _told_apart(look: Callable[[Subject, Case], Seen], one: Subject, other: Subject, case: Case) -> bool:
    try:
        list(look(other, case))
    except Exception:
        try:
            list(look(one, case))
        except Exception:
            return False
        return True
    return _differs(look, one, other, case)


def _call(subject_: Subject, case: Case, training: bool) -> Result:
    inputs = make_inputs(case)
    with torch.no_grad(), seeded(case.seed):
        return subject_.layer(inputs).run(inputs, training)


def _output(subject_: Subject, case: Case, training: bool) -> Seen:
    yield _call(subject_, case, training).output, _output_bound(subject_, case, training)


def _weights(subject_: Subject, case: Case, training: bool) -> Seen:
    yield _call(subject_, case, training).weights, subject_.rounding(case).weights


def _gradient(subject_: Subject, case: Case, training: bool) -> Seen:
    inputs = make_inputs(case)
    leaves, named = inputs.leaves()
    cotangent = torch.randn(inputs.x.shape, generator=case.generator("law"), dtype=torch.float64)
    bounds = gradient_bounds(inputs, cotangent, subject_.rounding(case))
    with torch.enable_grad(), seeded(case.seed):
        output = subject_.layer(inputs).run(leaves, training).output
        for name, gradient in gradients(output, cotangent, named).items():
            yield gradient, bounds[name] / (1 - case.dropout)


def _passed_in(subject_: Subject, case: Case) -> Seen:
    inputs = make_inputs(case)
    with torch.no_grad():
        subject_.layer(inputs).run(inputs, False)
    for tensor in inputs.tensors().values():
        yield tensor, 0.0


def _later(subject_: Subject, case: Case, training: bool) -> Seen:
    """After other tokens and a mask that hides nothing."""
    inputs = make_inputs(case)
    context = None if inputs.context is None else -inputs.context
    mask = inputs.mask
    if mask is not None:
        mask = torch.ones_like(mask) if mask.dtype == torch.bool else torch.zeros_like(mask)
    others = replace(inputs, x=-inputs.x, context=context, mask=mask)
    layer = subject_.layer(inputs)
    with torch.no_grad(), seeded(case.seed):
        for mode in (False, True, False):
            layer.run(others, mode)
        yield layer.run(inputs, training).output, _output_bound(subject_, case, training)


def _decoded(subject_: Subject, case: Case) -> Seen:
    """From its cache; after another order of the samples, too."""
    if not subject_.supports.cache:
        return
    inputs = make_inputs(case)
    decoding, bound = subject_.layer(inputs).decode(inputs), float(subject_.rounding(case).output.max())
    order = torch.arange(case.batch).roll(1)
    for begin, end in case.pieces():
        yield decoding.step(inputs.piece(begin, end)).output, bound
        if decoding.reorder:
            decoding.reorder(order)


def _coarse(subject_: Subject, case: Case) -> Seen:
    inputs = fitting(case, case.dtype)
    if inputs is not None:
        with torch.no_grad():
            yield subject_.layer(inputs).run(inputs, False).output, bounds(inputs, inputs.x.dtype).output


def _output_bound(subject_: Subject, case: Case, training: bool) -> Tensor:
    """What dropout keeps it scales up, and what it was off by with it."""
    bound = subject_.rounding(case).output
    return bound / (1 - case.dropout) if training else bound


_IN_TRAINING = partial(_output, training=True)
_GROUPS: tuple[dict[str, Callable[[Subject, Case], Seen]], ...] = (
    {
        "the returned weights": partial(_weights, training=False),
        "the weights returned in training": partial(_weights, training=True),
    },
    {"the output in training": _IN_TRAINING, "the output of a later call": partial(_later, training=True)},
    {
        "the gradient": partial(_gradient, training=False),
        "the output in training": _IN_TRAINING,
        "the gradient in training": partial(_gradient, training=True),
    },
    {"what was passed in": _passed_in},
    {"the output of a later call": partial(_later, training=False)},
    {"what its cache gives": _decoded},
    {"the output in a coarser dtype or for large scores": _coarse},
)
LOOKS = {"the output": partial(_output, training=False)} | {what: look for group in _GROUPS for what, look in group.items()}
