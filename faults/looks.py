"""What can be seen of a subject on a case, so that two can be compared: what it returns, later, in training, backward, and so on.

The same is done with both, the same random numbers for dropout included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from properties.case import Case
from properties.conventions import to_subject, weights_from_subject
from properties.inputs import Inputs, gradients, make_inputs
from properties.laws.precision import fitting
from properties.rounding import gradient_bounds
from properties.subject import Layer, Result, Subject
from properties.surroundings import seeded

Seen = Iterator[tuple[Tensor | None, Tensor | float]]  # what came out, and how far rounding may lead it
Look = Callable[[Subject, Case], Seen]


def _run(layer: Layer, inputs: Inputs, training: bool = False, grad: bool = False) -> Result:
    """What it returns, whatever that is: a call of the layer would refuse it all for the sake of a part."""
    with torch.set_grad_enabled(grad):
        return layer.run(to_subject(inputs, layer.supports), training)


def _call(subject: Subject, case: Case, training: bool) -> Result:
    layer, inputs = subject.start(case)
    with seeded(case.seed):
        return _run(layer, inputs, training)


def _output(subject: Subject, case: Case, training: bool) -> Seen:
    yield _call(subject, case, training).output, _output_bound(subject, case, training)


def _weights(subject: Subject, case: Case, training: bool) -> Seen:
    weights = _call(subject, case, training).weights
    if weights is not None and weights.dim() == 4:
        weights = weights_from_subject(weights, make_inputs(case), subject.supports)
    yield weights, subject.rounding(case).weights


def _gradient(subject: Subject, case: Case, training: bool) -> Seen:
    layer, inputs = subject.start(case)
    leaves, named = inputs.leaves()
    cotangent = torch.randn(inputs.x.shape, generator=case.generator("law"), dtype=torch.float64)
    bounds = gradient_bounds(inputs, cotangent, subject.rounding(case))
    with torch.enable_grad(), seeded(case.seed):
        output = _run(layer, leaves, training, grad=True).output
        for name, gradient in gradients(output, cotangent, named).items():
            yield gradient, bounds[name] / (1 - case.dropout)


def _passed_in(subject: Subject, case: Case) -> Seen:
    layer, inputs = subject.start(case)
    _run(layer, inputs)
    for tensor in inputs.tensors().values():
        yield tensor, 0.0


def _later(subject: Subject, case: Case, training: bool) -> Seen:
    """After other tokens and a mask that hides nothing."""
    layer, inputs = subject.start(case)
    context = None if inputs.context is None else -inputs.context
    mask = inputs.mask
    if mask is not None:
        mask = torch.ones_like(mask) if mask.dtype == torch.bool else torch.zeros_like(mask)
    others = replace(inputs, x=-inputs.x, context=context, mask=mask)
    with seeded(case.seed):
        for mode in (False, True, False):
            _run(layer, others, mode)
        yield _run(layer, inputs, training).output, _output_bound(subject, case, training)


def _decoded(subject: Subject, case: Case) -> Seen:
    """From its cache; after another order of the samples, too."""
    if not subject.supports.cache:
        return
    layer, inputs = subject.start(case)
    decoding, bound = layer.decode(inputs), float(subject.rounding(case).output.max())
    order = torch.arange(case.batch).roll(1)
    for begin, end in case.pieces():
        yield decoding.step(inputs.piece(begin, end)).output, bound
        if decoding.reorder:
            decoding.reorder(order)


def _decoded_again(subject: Subject, case: Case) -> Seen:
    """From its cache after a reset, and in a memory that has held other tokens."""
    if not subject.supports.cache:
        return
    layer, inputs = subject.start(case)
    decoding, bound = layer.decode(inputs), float(subject.rounding(case).output.max())
    if decoding.reset is None:
        return
    others = replace(inputs, x=-inputs.x)
    for begin, end in case.pieces():
        decoding.step(others.piece(begin, end))
    decoding.reset()
    for begin, end in case.pieces():
        yield decoding.step(inputs.piece(begin, end)).output, bound


def _coarse(subject: Subject, case: Case) -> Seen:
    inputs = fitting(case, case.dtype)
    if inputs is not None:
        yield _run(subject.layer(inputs), inputs).output, subject.bounds(inputs).output


def _output_bound(subject: Subject, case: Case, training: bool) -> Tensor:
    """What dropout keeps it scales up, and what it was off by with it."""
    bound = subject.rounding(case).output
    return bound / (1 - case.dropout) if training else bound


OUTPUT = "the output"
WEIGHTS = "the returned weights"
TRAINING_WEIGHTS = "the weights returned in training"
TRAINING = "the output in training"
GRADIENT = "the gradient"
TRAINING_GRADIENT = "the gradient in training"
PASSED_IN = "what was passed in"
LATER = "the output of a later call"
LATER_TRAINING = "the output of a later call in training"
DECODED = "what its cache gives"
RESET = "what its cache gives after a reset"
COARSE = "the output in a coarser dtype or for large scores"
LOOKS: Mapping[str, Look] = {
    OUTPUT: partial(_output, training=False),
    WEIGHTS: partial(_weights, training=False),
    TRAINING_WEIGHTS: partial(_weights, training=True),
    TRAINING: partial(_output, training=True),
    GRADIENT: partial(_gradient, training=False),
    TRAINING_GRADIENT: partial(_gradient, training=True),
    PASSED_IN: _passed_in,
    LATER: partial(_later, training=False),
    LATER_TRAINING: partial(_later, training=True),
    DECODED: _decoded,
    RESET: _decoded_again,
    COARSE: _coarse,
}
