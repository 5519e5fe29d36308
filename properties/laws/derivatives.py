"""Laws of the backward pass that know no right numbers: a gradient is the slope of what the forward pass computes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import Inputs, Weights, gradients
from properties.property import Property
from properties.subject import Layer, Subject

# Central differences of fourth order (Fornberg 1988): (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h, right but for a term in h**4.
_WEIGHTS = {1: 8 / 12, 2: -1 / 12}
PLACES = (0.0, 1.0, 2.0, 3.0, 4.0)  # along the line; a normalised head turns a corner where it is nearly 0


def gradients_are_slopes_of_the_output(subject: Subject, case: Case) -> None:
    """The gradients of tokens, mask and parameters are the slope of the output in a random direction, also with weights dropped.

    The slope is a difference of outputs, so no formula is needed, and no weights: a module's own parameters are moved as well. A
    cut or altered backward pass leaves every output as it was, and shows here.
    """
    layer, inputs = subject.start(case)
    judged = subject.judged(inputs)
    if not judged.all() and not subject.supports.finite_empty_rows:
        return
    random = case.generator("law")
    cotangent = torch.randn(inputs.x.shape, generator=random, dtype=torch.float64) * judged[..., None]
    line = _Line(subject, layer, inputs, cotangent, random)
    for training in (False, True) if case.dropout else (False,):
        if line.choose(training):
            line.compare(line.directions.keys())


class _Line:
    """The output, times a cotangent, along a line through the inputs, and through the parameters of a module of its own."""

    def __init__(self, subject: Subject, layer: Layer, inputs: Inputs, cotangent: Tensor, random: torch.Generator) -> None:
        self.layer, self.inputs, self.cotangent = layer, inputs, cotangent
        self.own = _own_parameters(subject, layer)
        leaves = {**inputs.leaves()[1], **self.own}
        if "bias" not in subject.supports.encodings:  # it may take 0 and -inf only
            leaves.pop("mask", None)
        self.directions = {name: _direction(leaf, random) for name, leaf in leaves.items()}
        info = torch.finfo(subject.precision)
        self.step = float(info.eps**0.25)  # far above the roundoff, and far below where the fourth order counts
        self.unit = info.eps
        self.error = float((subject.bounds(inputs).output * cotangent.abs()).sum())
        self.training = False
        self.state = torch.get_rng_state()

    def choose(self, training: bool) -> bool:
        """Take the layer in this mode; say whether it is the same function twice, and whether its dropout can be repeated."""
        self.training, self.state = training, torch.get_rng_state()
        if not training:
            return True
        first = self._output(0.0, self.directions.keys())[1]
        its_own = torch.equal(torch.get_rng_state(), self.state)
        return not its_own and torch.equal(first, self._output(0.0, self.directions.keys())[1])

    def compare(self, names: Collection[str]) -> None:
        """Raise unless the gradient along the directions of these leaves is the slope."""
        wrong = self._wrong(names)
        if wrong is None:
            return
        for name in names:  # all are moved at once; if that shows something, whose is it?
            wrong = self._wrong((name,)) or wrong
        raise AssertionError(wrong)

    def _wrong(self, names: Collection[str]) -> str | None:
        for place in PLACES:
            smooth, wrong = self._wrong_at(place, names)
            if smooth:
                return wrong
        return f"the output has no slope: at {len(PLACES)} places it jumps within a step of {self.step:.1g}"

    def _wrong_at(self, place: float, names: Collection[str]) -> tuple[bool, str | None]:
        """Is the output smooth at this place, as it is at nearly all; and what is wrong there, if it is?"""
        leaves, output = self._output(place, names)
        found = gradients(output, self.cotangent, {name: leaves[name] for name in names})
        parts = torch.stack([(found[n].to(torch.float64) * self.directions[n]).sum() for n in names])
        values = {k: self._value(place + k * self.step, names) for k in (-4, -2, -1, 1, 2, 4)}
        slope, coarser = (
            sum(c * (values[k * h] - values[-k * h]) for k, c in _WEIGHTS.items()) / (h * self.step) for h in (1, 2)
        )
        # The gradient is off by what its sums are off by, which is less than the output is off by, divided by the step.
        size = sum(float((found[n].to(torch.float64) * self.directions[n]).abs().sum()) for n in names)
        roundings = (4 * self.error + self.unit * size) / self.step
        # Of half the step the error is a sixteenth, if the output is smooth; if it turns a corner, the two have little in common.
        bend, got = abs(slope - coarser), float(parts.sum())
        if bend > roundings + self.step * max(abs(slope), size):
            return False, None
        allowed = roundings + bend
        if abs(got - slope) <= allowed:
            return True, None
        what = f"by {next(iter(names))}" if len(names) == 1 else "by everything"
        mode = "training" if self.training else "evaluation"
        return True, (
            f"the gradient {what} in a random direction is {got:.9g} in {mode}, should be the slope {slope:.9g} "
            f"(off by {abs(got - slope):.3g}; rounding and step explain {allowed:.1g})"
        )

    def _value(self, t: float, names: Collection[str]) -> float:
        output = self._output(t, names)[1].detach().to(torch.float64)
        return float((output * self.cotangent).sum())

    def _output(self, t: float, names: Collection[str]) -> tuple[dict[str, Tensor], Tensor]:
        """The leaves, moved by t, and the output for them."""

        def move(name: str, tensor: Tensor) -> Tensor:
            return tensor + t * self.directions[name].to(tensor.dtype) if name in names and t else tensor

        inputs, w = self.inputs, self.inputs.weights
        moved, leaves = replace(
            inputs,
            x=move("x", inputs.x),
            context=None if inputs.context is None else move("context", inputs.context),
            mask=move("mask", inputs.mask) if "mask" in self.directions and inputs.mask is not None else inputs.mask,
            weights=Weights(**{name: move(name, weight) for name, weight in w.items()}),
        ).leaves()
        if self.training:
            torch.set_rng_state(self.state)
        kept = {name: parameter.detach().clone() for name, parameter in self.own.items() if name in names and t}
        _put({name: move(name, value) for name, value in kept.items()}, self.own)
        try:
            return {**leaves, **self.own}, self.layer(moved, training=self.training, grad=True).output
        finally:
            _put(kept, self.own)


def _put(values: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)


def _own_parameters(subject: Subject, layer: Layer) -> dict[str, Tensor]:
    """The parameters that a module brings along, if no weights are put in their place."""
    if subject.supports.loads_weights or layer.module is None:
        return {}
    named = layer.module.module.named_parameters()
    return {f"its parameter {name}": p for name, p in named if p.requires_grad and p.is_floating_point()}


def _direction(leaf: Tensor, random: torch.Generator) -> Tensor:
    """Standard normal numbers, and none where there is nowhere to go: at -inf."""
    return torch.randn(leaf.shape, generator=random, dtype=torch.float64).masked_fill(~leaf.detach().isfinite(), 0.0)


PROPERTIES = (Property(law=gradients_are_slopes_of_the_output, needs=("gradients", "fine_dtype")),)
