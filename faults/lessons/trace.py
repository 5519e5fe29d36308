"""What happens inside: every named step of an attention, what it was handed and what it returned.

A fault and the clean class it is made from are run on the same inputs and compared step by step. The steps are the methods of the
classes of `attn`; they are wrapped on the instance, so that what is run is the class as it stands. What a step returned is copied
at once, because the next one may work in place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attn import MultiHeadAttention
from faults.subject import subject
from properties.inputs import Inputs, gradients
from properties.subject import Decoding, Layer, Result
from properties.surroundings import seeded, undisturbed

_WHOLE = ("forward", "attend")  # made of steps, and none themselves
_QKV = ("queries", "keys", "values")

# What the tensors are that a step returns, or, if it returns one, what it is about the first time it is called, the second, ...
_PARTS: dict[str, tuple[str, ...]] = {
    "project_in": _QKV,
    "place": _QKV,
    "normalise": _QKV[:2],
    "append": _QKV[1:],
    "mask": ("scores", "empty rows"),
    "pair": ("first", "second"),
    "new_cache": _QKV[1:],
    "forget": _QKV[1:],
    "reset": _QKV[1:],
    "reorder": _QKV[1:],
}
_TIMES: dict[str, tuple[str, ...]] = {
    "split_heads": _QKV,
    "expand_kv_heads": _QKV[1:],
    "rotate": _QKV[:2],
    "angles": _QKV[:2],
    "frequencies": _QKV[:2],
    "pair": _QKV[:2],
    "unpair": _QKV[:2],
}

Pieces = Sequence[tuple[int, int]]  # where each begins and ends


@dataclass(frozen=True)
class Step:
    """One tensor that one step returned."""

    name: str  # the method
    what: str  # which of several: "queries"; empty if there is one only
    call: int  # in which call of the layer, counted from 0; -1: outside of one
    given: dict[str, Tensor]  # the tensors handed to it, as they were then, by the names of its arguments
    returned: Tensor
    inside: tuple[str, ...] = ()  # the steps that were running when this one was called

    @property
    def key(self) -> tuple[int, str, str]:
        """What it is found by in another trace."""
        return self.call, self.name, self.what

    def __str__(self) -> str:
        return f"{self.name} ({self.what})" if self.what else self.name


@dataclass
class Trace:
    """What one attention did: its steps in the order in which they ended, and what came of it."""

    steps: list[Step] = field(default_factory=list)
    results: dict[str, Tensor] = field(default_factory=dict)  # "output", "weights", and whatever else was looked at
    raised: Exception | None = None
    raised_in: str = ""  # the innermost step that was running

    def named(self) -> dict[str, Tensor]:
        """What each step returned, and the results, by name; of several calls of the layer, the last."""
        return {**{str(step): step.returned for step in self.steps}, **self.results}


class Recorder:
    """Writes down the steps of a module for a while, and what it raises."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.call = -1
        self._times: dict[str, int] = {}
        self._running: list[str] = []

    def watch(self, module: nn.Module) -> None:
        """Wrap the steps of this instance."""
        for name in steps_of(type(module)):
            setattr(module, name, self._wrapped(name, getattr(module, name)))

    def next_call(self) -> None:
        """What follows belongs to another call of the layer."""
        self.call += 1
        self._times.clear()

    def result(self, name: str, tensor: Tensor | None) -> None:
        """Keep a copy of a result; of one name, the last."""
        if tensor is not None:
            self.trace.results[name] = tensor.detach().clone()

    @contextmanager
    def recording(self) -> Iterator[Trace]:
        """Whatever is raised in here ends the trace and is a part of it."""
        try:
            yield self.trace
        except Exception as error:
            self.trace.raised = error

    def _wrapped(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        names = _arguments(method)

        @functools.wraps(method)
        def step(*args: Any, **kwargs: Any) -> Any:
            before = {**dict(zip(names, args, strict=False)), **kwargs}
            given = {key: value.detach().clone() for key, value in before.items() if isinstance(value, Tensor)}
            time = self._times[name] = self._times.get(name, -1) + 1
            self._running.append(name)
            try:
                returned = method(*args, **kwargs)
            except Exception:
                self.trace.raised_in = self.trace.raised_in or name
                raise
            finally:
                self._running.pop()
            changed = returned if returned is not None else [value for value in before.values() if is_dataclass(value)]
            self._write(name, time, given, changed)
            return returned

        return step

    def _write(self, name: str, time: int, given: dict[str, Tensor], returned: object) -> None:
        about = _TIMES.get(name, ())
        which = about[time] if time < len(about) else ""
        tensors = _tensors(returned)
        for number, tensor in enumerate(tensors):
            part = _PARTS[name][number] if len(tensors) > 1 and number < len(_PARTS.get(name, ())) else ""
            what = ", ".join(word for word in (which, part) if word)
            self.trace.steps.append(Step(name, what, self.call, given, tensor.detach().clone(), tuple(self._running)))


def steps_of(attention: type[nn.Module]) -> list[str]:
    """The names of the steps of a class of `attn`, or of a fault: the methods of `attn`, but for those made of steps."""
    found: dict[str, None] = {}
    for owner in reversed(attention.__mro__):
        if owner.__module__.partition(".")[0] == "attn":
            methods = (name for name, value in vars(owner).items() if inspect.isfunction(value) and not name.startswith("_"))
            found |= dict.fromkeys(methods)
    return [name for name in found if name not in _WHOLE]


def watched(attention: type[MultiHeadAttention], inputs: Inputs) -> tuple[Recorder, Layer]:
    """A layer for these inputs, built the same way every time, whose steps are written down."""
    recorder = Recorder()
    layer = subject(attention).layer(inputs)
    recorder.watch(layer.need_module().module)
    return recorder, layer


def trace(attention: type[MultiHeadAttention], inputs: Inputs, *, training: bool = False) -> Trace:
    """One call, without gradients; dropout draws the same for a fault as for the clean class."""
    with undisturbed():
        recorder, layer = watched(attention, inputs)
        with recorder.recording(), torch.no_grad():
            call(recorder, layer, inputs, training)
        return recorder.trace


def trace_backward(attention: type[MultiHeadAttention], inputs: Inputs, cotangent: Tensor, *, training: bool = False) -> Trace:
    """One call with gradients: its steps, and the gradient of `(output * cotangent).sum()` by everything handed in."""
    with undisturbed():
        recorder, layer = watched(attention, inputs)
        leaves, named = inputs.leaves()
        with recorder.recording(), torch.enable_grad():
            result = call(recorder, layer, leaves, training)
            for name, gradient in gradients(result.output, cotangent, named).items():
                recorder.result(f"gradient of {name}", gradient)
        return recorder.trace


def trace_decoding(attention: type[MultiHeadAttention], inputs: Inputs, pieces: Pieces, *, order: Tensor | None = None) -> Trace:
    """The tokens handed over in these pieces, through a cache; after the first of them the samples may be put in another order.

    The output is that of all pieces, side by side. Each piece is a call of its own.
    """
    with undisturbed():
        recorder, layer = watched(attention, inputs)
        with recorder.recording(), torch.no_grad():
            decode(recorder, layer, inputs, pieces, order)
        return recorder.trace


def call(recorder: Recorder, layer: Layer, inputs: Inputs, training: bool = False) -> Result:
    """Call the layer, and keep its output and its weights."""
    recorder.next_call()
    with seeded(0):
        result = layer.run(inputs, training)
    recorder.result("output", result.output)
    recorder.result("weights", result.weights)
    return result


def decode(recorder: Recorder, layer: Layer, inputs: Inputs, pieces: Pieces, order: Tensor | None = None) -> Decoding:
    """Hand a layer these inputs piece by piece, with a cache of their own, and keep the output."""
    if layer.decoding is None:
        raise ValueError("it has no cache")
    decoding = layer.decoding(inputs)
    hand_over(recorder, decoding, inputs, pieces, order)
    return decoding


def hand_over(recorder: Recorder, decoding: Decoding, inputs: Inputs, pieces: Pieces, order: Tensor | None = None) -> None:
    """The same, with a cache that there is."""
    outputs = []
    for number, (begin, end) in enumerate(pieces):
        if order is not None and decoding.reorder is not None and number == 1:
            decoding.reorder(order)
        recorder.next_call()
        outputs.append(decoding.step(inputs.piece(begin, end)).output)
    recorder.result("output", torch.cat(outputs, dim=1))


def _arguments(method: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(method).parameters)
    except ValueError:  # a function of torch's, bound in place of a method
        return []


def _tensors(value: object) -> list[Tensor]:
    """The tensors in what a step returned, or in the cache that it changed."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors(part)]
    if is_dataclass(value) and not isinstance(value, type):
        length = getattr(value, "length", None)
        found = [getattr(value, f.name) for f in fields(value)]
        return [tensor[:, :, :length] for tensor in found if isinstance(tensor, Tensor)]
    return []
