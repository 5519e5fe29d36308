"""A subject: anything that computes attention, and what it says it can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from properties.case import Case
from properties.conventions import to_subject, weights_from_subject, weights_to_subject
from properties.inputs import Inputs, Weights, make_inputs
from properties.rounding import Bounds, bounds, rounding
from properties.sensitivity import measured_bounds
from properties.supports import Supports
from properties.surroundings import Settings, seeded
from properties.time_limit import OutOfTime

_EVERYTHING = Supports()  # to make one costs more than most calls
Answer = TypeVar("Answer")

_NOT_ITS_DOING = (KeyboardInterrupt, OutOfTime)


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


class Broken(AssertionError):
    """The subject did not do what it declared: it raised, or returned something that is no attention output at all."""


@dataclass(frozen=True)
class LoadedModule:
    """The module behind a layer, for the laws about parameters and state."""

    module: nn.Module
    parameters: Callable[[Weights], Mapping[str, Tensor]]  # the weights under the names and in the shapes of its parameters
    # Calls the module, or what stands for it, whose mode has been set as given.
    call: Callable[[Callable[..., Any], Inputs, bool], Result]

    def load(self, weights: Weights) -> None:
        """Put these weights into the parameters."""
        given = self.parameters(weights)
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                if name in given:
                    parameter.copy_(given[name])


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """One sequence, handed to a layer with a cache piece by piece: what a subject gives that declares `cache`."""

    step: Callable[[Inputs], Result]  # the next tokens; `inputs.past` are cached, and the mask is over them and the new ones
    reorder: Callable[[Tensor], None] | None = None  # sample i goes on from what sample index[i] was
    reset: Callable[[], None] | None = None  # forget everything, and begin again


@dataclass(frozen=True)
class Layer:
    """One layer of a subject, built for certain sizes; call it with inputs of these sizes."""

    run: Callable[[Inputs, bool], Result]  # the inputs, by the conventions that the subject declares, and whether to train
    module: LoadedModule | None = None
    decoding: Callable[[Inputs], Decoding] | None = None  # begins one, for all the inputs that are to come
    supports: Supports = _EVERYTHING  # filled in by the subject

    def __call__(
        self, inputs: Inputs, *, training: bool = False, grad: bool = False, stored: bool = False, watched: bool = False
    ) -> Result:
        """Run it, and raise `Broken` for a subject that raises or returns nonsense.

        Gradients only where asked for; `stored`: with the weights that the module holds, not those of the inputs. What it
        changes of torch's settings is put back, and is a failure where the call is `watched`.
        """
        said = to_subject(inputs, self.supports)
        with torch.set_grad_enabled(grad):
            result, changed = _asked(lambda: self._stored(said) if stored else self.run(said, training))
        if watched and changed:
            raise Broken(f"it changed {', and '.join(changed)}, and left it so")
        return self._checked(result, inputs)

    def decode(self, inputs: Inputs) -> Decoding:
        """Begin to hand it these inputs piece by piece. What it does is checked as a call is, and its cache as it declares."""
        if self.decoding is None:
            raise Broken("it declares a cache, and has none")
        begin = self.decoding
        decoding, _ = _asked(lambda: begin(to_subject(inputs, self.supports)))

        def step(piece: Inputs) -> Result:
            before = {name: tensor.clone() for name, tensor in piece.tensors().items()}
            with torch.no_grad():
                result, changed = _asked(lambda: decoding.step(to_subject(piece, self.supports)))
            changed += [name for name, tensor in piece.tensors().items() if not _same(tensor, before[name])]
            if changed:
                raise Broken(f"handed the next tokens, it changed {', and '.join(changed)}, and left it so")
            return self._checked(result, piece)

        reorder, reset = decoding.reorder, decoding.reset
        return Decoding(
            step=step,
            reorder=(lambda index: _asked(lambda: reorder(index))[0]) if reorder else None,
            reset=(lambda: _asked(reset)[0]) if reset else None,
        )

    def _checked(self, result: object, inputs: Inputs) -> Result:
        """Raise `Broken` for what is no result of these inputs."""
        if not isinstance(result, Result):
            raise Broken(f"it returned {_kind(result)}, not a Result")
        B, h, T, S = inputs.scores_shape
        _check("output", result.output, (B, T, inputs.x.shape[2]), inputs.x)
        if result.weights is None or not self.supports.weights or inputs.past:
            return Result(result.output)
        _check("weights", result.weights, (B, h, T, S), inputs.x)
        return Result(result.output, weights_from_subject(result.weights, inputs, self.supports))

    def _stored(self, said: Inputs) -> Result:
        loaded = self.need_module()
        return loaded.call(loaded.module.eval(), said, False)

    def calling(self, module: nn.Module, function: Callable[..., Any] | None = None) -> Layer:
        """The layer, but with this module, by the weights that it holds; or with a function that stands for it."""
        call = self.need_module().call

        def run(said: Inputs, training: bool) -> Result:
            module.train(training)
            return call(module if function is None else function, said, training)

        return replace(self, run=run)

    def need_module(self) -> LoadedModule:
        """The module, for the laws about it: they apply where a subject declares that it is one."""
        if self.module is None:
            raise Broken("it declares a module, and has none")
        return self.module


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Anything that computes attention. `properties.wrap` makes one of a class, a function, or a module of any layout."""

    name: str
    build: Callable[[Inputs], Layer]  # for inputs of these sizes and this dtype
    supports: Supports = field(default_factory=Supports)
    expression: str = "subject"  # Python for it, where it can be said
    imports: tuple[str, ...] = ("# `subject` is what was checked, `report.subject`",)  # the lines that this needs in front of it
    found: tuple[str, ...] = ()  # what was not declared, but found by asking: for reports

    @property
    def dtype(self) -> torch.dtype:
        """The widest dtype, in which laws are judged."""
        return getattr(torch, self.supports.dtypes[0])  # type: ignore[no-any-return]

    @property
    def precision(self) -> torch.dtype:
        """The dtype by whose roundoff they are judged: `dtype`, if nothing else is declared."""
        return self.supports.precision(self.dtype)

    def judged(self, inputs: Inputs) -> Tensor:
        """Which rows of the output are compared, bool `[B, T]`: all, or, if empty rows are not zero, those with no empty head."""
        attending = inputs.attending()
        return torch.ones_like(attending) if self.supports.empty_rows == "zero" else attending

    def layer(self, inputs: Inputs) -> Layer:
        """Build a layer for these inputs, or raise `Broken`."""
        before = Settings.now()
        try:
            with seeded(0):  # what a constructor draws is the same every time, and nobody else's random numbers change
                built = self.build(to_subject(inputs, self.supports))
        except (Broken, *_NOT_ITS_DOING):
            raise
        except BaseException as error:
            raise Broken(f"building it raised {type(error).__name__}: {error}") from error
        finally:
            before.restore()
        module = built.module
        if module is not None:
            parameters = module.parameters
            module = replace(module, parameters=lambda w: parameters(weights_to_subject(inputs, w, self.supports)))
        return replace(built, module=module, supports=self.supports)

    def start(self, case: Case) -> tuple[Layer, Inputs]:
        """What every law begins with: the inputs of the case, and a layer for them."""
        inputs = make_inputs(case, self.dtype)
        return self.layer(inputs), inputs

    def loaded(self, case: Case) -> tuple[Layer, nn.Module, Inputs]:
        """A layer that computes by the weights it holds, those of the case if it can be given any; its module; and the inputs."""
        layer, inputs = self.start(case)
        module = layer.need_module()
        if self.supports.loads_weights:
            module.load(inputs.weights)
        return layer.calling(module.module), module.module, inputs

    def rounding(self, case: Case) -> Bounds:
        """How far rounding may lead a result on this case."""
        if self.supports.formula:
            return rounding(case, self.dtype, self.precision)
        return self.bounds(make_inputs(case, self.dtype))

    def bounds(self, inputs: Inputs, dtype: torch.dtype | None = None) -> Bounds:
        """How far rounding may lead a result on these inputs, computed in their dtype or in another."""
        precision = self.supports.precision(dtype or inputs.x.dtype)
        if self.supports.formula:
            return bounds(inputs, precision)

        def run(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
            with seeded(0):
                result = self.layer(inputs)(inputs)
            return result.output, result.weights

        return measured_bounds(run, inputs, precision)


def _asked(question: Callable[[], Answer]) -> tuple[Answer, list[str]]:
    """What the subject answers, and which of torch's settings it changed on the way; whatever it raises is its failure."""
    before = Settings.now()
    changed: list[str] = []
    try:
        return question(), changed
    except (Broken, *_NOT_ITS_DOING):
        raise
    except BaseException as error:
        raise Broken(f"it raised {type(error).__name__}: {error}") from error
    finally:
        changed += before.restore()


def _same(tensor: Tensor, before: Tensor) -> bool:
    return bool(((tensor == before) | (tensor != tensor)).all())


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _check(name: str, given: object, shape: tuple[int, ...], x: Tensor) -> None:
    has, is_ = ("have", "are") if name == "weights" else ("has", "is")
    if not isinstance(given, Tensor):
        raise Broken(f"its {name} {is_} {_kind(given)}, not a tensor")
    if given.shape != shape:
        raise Broken(f"its {name} {has} shape {list(given.shape)}, not {list(shape)}")
    if given.dtype != x.dtype:
        raise Broken(f"its {name} {is_} {given.dtype}, x is {x.dtype}")
    if given.device != x.device:
        raise Broken(f"its {name} {is_} on {given.device}, x is on {x.device}")
