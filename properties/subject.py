"""A subject: anything that computes attention, and what it says it can do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from properties.case import DTYPES, ENCODINGS, MASKS, Case
from properties.inputs import Inputs, Weights, make_inputs

EMPTY_ROWS = ("zero", "nan", "uniform", "undefined")


@dataclass(frozen=True)
class Result:
    """What a subject computed."""

    output: Tensor  # [B, T, d]
    weights: Tensor | None = None  # [B, h, T, S], or None if the subject does not return them

    def need_weights(self) -> Tensor:
        """The weights, for the laws about them: they apply where a subject declares that it returns weights."""
        if self.weights is None:
            raise Broken("it declares that it returns weights, and returned None")
        return self.weights


@dataclass(frozen=True, kw_only=True)
class Supports:
    """What a subject declares. A law that needs more does not apply; where support is declared, raising is failing."""

    masks: Collection[str] = MASKS  # of `properties.case.MASKS`; a flag is aligned at the bottom right
    encodings: Collection[str] = ENCODINGS  # of masks
    dtypes: Sequence[str] = DTYPES  # brought in order, the widest first
    cross_attention: bool = True
    grouped_heads: bool = True
    bias: bool = True
    weights: bool = True  # returns them, per head
    training_weights: bool = True  # and in training returns them as they were before dropout
    dropout: bool = True
    gradients: bool = True
    empty_rows: str = "zero"  # of EMPTY_ROWS: what a query that sees no key gets; "uniform" is the mean of all values
    module: bool = True  # is a module, whose parameters can be listed, saved and loaded
    ignores_nonfinite_hidden: bool = False  # NaN and infinity in tokens that no query may see change nothing

    def __post_init__(self) -> None:
        known = {"masks": MASKS, "encodings": ENCODINGS, "dtypes": DTYPES}
        for name, values in known.items():
            given = getattr(self, name)
            chosen = (given,) if isinstance(given, str) else tuple(given)
            if isinstance(given, str) or not chosen or not set(chosen) <= set(values):
                raise ValueError(f"Supports: {name} must be some of {', '.join(values)}, got {given!r}")
            object.__setattr__(self, name, tuple(value for value in values if value in chosen))
        if self.empty_rows not in EMPTY_ROWS:
            raise ValueError(f"Supports: empty_rows must be one of {', '.join(EMPTY_ROWS)}, got {self.empty_rows!r}")

    @property
    def finite_empty_rows(self) -> bool:
        return self.empty_rows in ("zero", "uniform")

    @property
    def declared_empty_rows(self) -> bool:
        return self.empty_rows != "undefined"


class Broken(AssertionError):
    """The subject did not do what it declared: it raised, or returned something that is no attention output at all."""


@dataclass(frozen=True)
class LoadedModule:
    """The module behind a layer, for the laws about parameters and state."""

    module: nn.Module
    parameters: Callable[[Weights], Mapping[str, Tensor]]  # the weights under the names and in the shapes of its parameters
    run_stored: Callable[[Inputs], Result]  # in evaluation, with the weights it holds


@dataclass(frozen=True)
class Layer:
    """One layer of a subject, built for certain sizes; call it with inputs of these sizes."""

    run: Callable[[Inputs, bool], Result]  # the inputs, and whether to train
    module: LoadedModule | None = None

    def __call__(self, inputs: Inputs, *, training: bool = False, grad: bool = False, stored: bool = False) -> Result:
        """Run it, and raise `Broken` for a subject that raises or returns nonsense.

        Gradients only where asked for; `stored`: with the weights that the module holds, not those of the inputs.
        """
        try:
            with torch.set_grad_enabled(grad):
                result = self.module.run_stored(inputs) if stored and self.module else self.run(inputs, training)
        except (Exception, SystemExit) as error:
            raise Broken(f"it raised {type(error).__name__}: {error}") from error
        B, h, T, S = inputs.scores_shape
        _check("output", result.output, (B, T, inputs.x.shape[2]), inputs.x)
        if result.weights is not None:
            _check("weights", result.weights, (B, h, T, S), inputs.x)
        return result


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Anything that computes attention. `of_module` makes one of a class of modules."""

    name: str
    build: Callable[[Inputs], Layer]  # for inputs of these sizes and this dtype
    supports: Supports = field(default_factory=Supports)

    @property
    def dtype(self) -> torch.dtype:
        """The widest dtype, in which laws are judged."""
        return getattr(torch, self.supports.dtypes[0])  # type: ignore[no-any-return]

    def judged(self, inputs: Inputs) -> Tensor:
        """Which rows of the output are compared, bool `[B, T]`: all, or, if empty rows are not zero, those with no empty head."""
        attending = inputs.attending()
        return torch.ones_like(attending) if self.supports.empty_rows == "zero" else attending

    def layer(self, inputs: Inputs) -> Layer:
        """Build a layer for these inputs, or raise `Broken`."""
        try:
            with seeded(0):  # what a constructor draws is the same every time, and nobody else's random numbers change
                return self.build(inputs)
        except Exception as error:
            raise Broken(f"building it raised {type(error).__name__}: {error}") from error

    def start(self, case: Case) -> tuple[Layer, Inputs]:
        """What every law begins with: the inputs of the case, and a layer for them."""
        inputs = make_inputs(case, self.dtype)
        return self.layer(inputs), inputs


def of_module(
    name: str,
    *,
    build: Callable[[Inputs], nn.Module],
    parameters: Callable[[Weights], Mapping[str, Tensor]],
    arguments: Callable[[Inputs], tuple[tuple[Any, ...], dict[str, Any]]],
    result: Callable[[Any], Result] = lambda returned: _result(returned),
    supports: Supports | None = None,
) -> Subject:
    """Return the subject for a class of modules.

    Args:
        build: makes the module for inputs of certain sizes (`inputs.num_heads`, `inputs.x.dtype`, ...).
        parameters: the weights under the names and in the shapes of the module's parameters, made by differentiable operations.
        arguments: what to call the module with, positional and by name.
        result: what to make of what it returns; by default that is the output, or (output, weights).

    The weights are put in for the time of a call (`torch.func.functional_call`), after `module.train()` or `eval()`: a module
    that folds its weights on a change of mode folds those it was made with.
    """

    def layer(inputs: Inputs) -> Layer:
        module = build(inputs)
        names = {name for name, _ in module.named_parameters()}

        def run(inputs: Inputs, training: bool) -> Result:
            module.train(training)
            given = dict(parameters(inputs.weights))
            if given.keys() - names:
                raise LookupError(f"the module has no parameter {', '.join(sorted(given.keys() - names))}")
            args, kwargs = arguments(inputs)
            return result(torch.func.functional_call(module, given, args, kwargs))

        def run_stored(inputs: Inputs) -> Result:
            args, kwargs = arguments(inputs)
            return result(module.eval()(*args, **kwargs))

        return Layer(run, LoadedModule(module, parameters, run_stored))

    return Subject(name=name, build=layer, supports=supports or Supports())


def _result(returned: Any) -> Result:
    return Result(returned) if isinstance(returned, Tensor) else Result(*returned)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Give torch's global generator this seed, and put it back afterwards."""
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


def _check(name: str, given: object, shape: tuple[int, ...], x: Tensor) -> None:
    if not isinstance(given, Tensor):
        raise Broken(f"its {name} is {type(given).__name__}, not a tensor")
    if given.shape != shape:
        raise Broken(f"its {name} has shape {list(given.shape)}, not {list(shape)}")
    if given.dtype != x.dtype:
        raise Broken(f"its {name} is {given.dtype}, x is {x.dtype}")
    if given.device != x.device:
        raise Broken(f"its {name} is on {given.device}, x is on {x.device}")
