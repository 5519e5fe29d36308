"""The scenes in which a fault may show: one call in evaluation first, and what people do with a layer besides that.

A scene plays the same with a fault and with the clean class. What came of it is in the results of the trace.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attn import MultiHeadAttention
from faults.lessons.chance import SameDraws
from faults.lessons.examples import Example
from faults.lessons.trace import Recorder, Trace, call, decode, hand_over, watched
from faults.subject import subject
from properties.inputs import Inputs, gradients
from properties.rounding import bounds, gradient_bounds, largest_number
from properties.subject import Layer
from properties.surroundings import undisturbed

Attention = type[MultiHeadAttention]
FAR, LARGE, HUGE = 300, 400.0, 1e30  # a position past 256, the last number that bfloat16 counts to; scores past exp's range

CACHE = "from a cache"


@dataclass(frozen=True)
class Scene:
    """What is done, in words, and the doing; None: it makes no sense for this example."""

    words: str
    play: Callable[[Recorder, Layer, Example], None]
    about: Callable[[Example], bool] = lambda example: True
    change: Callable[[Inputs], Inputs] = lambda inputs: inputs  # what is handed in, made of the example's inputs
    gradients: bool = False
    watched: bool = True  # are its steps written down? A copy has none
    where: str = ""  # the same as words that follow "it raises"

    def trace(self, attention: Attention, example: Example) -> Trace:
        """Play it with this class."""
        with undisturbed():
            torch.set_num_threads(1)
            inputs = self.change(copied(example.inputs))
            given = replace(example, inputs=inputs)
            if self.watched:
                recorder, layer = watched(attention, inputs)
            else:
                recorder, layer = Recorder(), subject(attention).layer(inputs)
            with recorder.recording(), torch.set_grad_enabled(self.gradients):
                self.play(recorder, layer, given)
            return recorder.trace

    def bound(self, name: str, example: Example) -> Tensor | float:
        """How far rounding may lead this result."""
        if name.endswith("after the call"):
            return 0.0
        inputs = example.inputs if self.change in (_huge_where_hidden, _nan_asks) else self.change(example.inputs)
        kept = 1 - example.case.dropout
        bound = bounds(inputs, inputs.x.dtype)
        if name.startswith("gradient of "):
            found = gradient_bounds(inputs, torch.ones_like(inputs.x), bound)
            return found[name.removeprefix("gradient of ")] / kept
        of = bound.weights if name == "weights" else bound.output
        return float(of.max()) / kept if of.numel() else 0.0


def copied(inputs: Inputs) -> Inputs:
    """The same in memory of its own, laid out as it was: some faults write where they should not."""
    named = {name: getattr(inputs, name) for name in ("x", "context", "mask")}
    fresh = {name: None if tensor is None else _clone(tensor) for name, tensor in named.items()}
    if inputs.context is inputs.x:
        fresh["context"] = fresh["x"]
    return replace(inputs, **fresh)  # type: ignore[arg-type]


def _clone(tensor: Tensor) -> Tensor:
    if tensor.is_contiguous():
        return tensor.clone()
    return copy.deepcopy(tensor)  # with its strides, and the memory around it


# One call.


def _one(recorder: Recorder, layer: Layer, example: Example) -> None:
    call(recorder, layer, example.inputs)


def _training(recorder: Recorder, layer: Layer, example: Example) -> None:
    with SameDraws():
        call(recorder, layer, example.inputs, True)


def _passed_in(recorder: Recorder, layer: Layer, example: Example) -> None:
    call(recorder, layer, example.inputs)
    recorder.trace.results.clear()
    for name, tensor in example.inputs.tensors().items():
        if name in ("x", "context", "mask"):
            recorder.result(f"{name} after the call", tensor)


def _gradient(training: bool) -> Callable[[Recorder, Layer, Example], None]:
    def play(recorder: Recorder, layer: Layer, example: Example) -> None:
        leaves, named = example.inputs.leaves()
        with SameDraws():
            result = call(recorder, layer, leaves, training)
        _keep_gradients(recorder, result.output, named)

    return play


def _keep_gradients(recorder: Recorder, output: Tensor, named: dict[str, Tensor]) -> None:
    recorder.trace.results.clear()
    for name, gradient in gradients(output, torch.ones_like(output), named).items():
        recorder.result(f"gradient of {name}", gradient)


# After other calls.


def _twice(recorder: Recorder, layer: Layer, example: Example) -> None:
    for _ in range(2):
        call(recorder, layer, example.inputs)


def _after_others(recorder: Recorder, layer: Layer, example: Example) -> None:
    call(recorder, layer, others(example.inputs))
    call(recorder, layer, example.inputs)


def _training_after_evaluation(recorder: Recorder, layer: Layer, example: Example) -> None:
    call(recorder, layer, example.inputs)
    with SameDraws():
        call(recorder, layer, example.inputs, True)


def _without_the_flag(recorder: Recorder, layer: Layer, example: Example) -> None:
    call(recorder, layer, example.inputs)
    call(recorder, layer, replace(example.inputs, mask=None, is_causal=False))


def _other_positions(recorder: Recorder, layer: Layer, example: Example) -> None:
    counted = torch.arange(example.case.T).expand(example.case.batch, -1)
    for places in (counted, 3 * counted):
        call(recorder, layer, replace(example.inputs, positions=places))


def _first_result_later(recorder: Recorder, layer: Layer, example: Example) -> None:
    first = call(recorder, layer, example.inputs).output
    call(recorder, layer, others(example.inputs))
    recorder.trace.results.clear()
    recorder.result("output", first)


def others(inputs: Inputs) -> Inputs:
    """Other tokens, the negative ones, and a mask that hides nothing."""
    mask = inputs.mask
    if mask is not None:
        mask = torch.ones_like(mask) if mask.dtype == torch.bool else torch.zeros_like(mask)
    return replace(inputs, x=-inputs.x, context=None if inputs.context is None else -inputs.context, mask=mask)


# Through a cache.


def _decoded(recorder: Recorder, layer: Layer, example: Example) -> None:
    decode(recorder, layer, example.inputs, example.case.pieces())


def _reordered(recorder: Recorder, layer: Layer, example: Example) -> None:
    order = torch.arange(example.case.batch).roll(1)
    decode(recorder, layer, example.inputs, example.case.pieces(), order)


def _after_a_reset(recorder: Recorder, layer: Layer, example: Example) -> None:
    decoding = decode(recorder, layer, others(example.inputs), example.case.pieces())
    if decoding.reset is not None:
        recorder.next_call()
        decoding.reset()
    hand_over(recorder, decoding, example.inputs, example.case.pieces())


def _in_turns(recorder: Recorder, layer: Layer, example: Example) -> None:
    if layer.decoding is None:
        return
    both = (example.inputs, others(example.inputs))
    decodings = [layer.decoding(inputs) for inputs in both]
    outputs: list[Tensor] = []
    for begin, end in example.case.pieces():
        for decoding, inputs in zip(decodings, both, strict=True):
            recorder.next_call()
            result = decoding.step(inputs.piece(begin, end))
            if inputs is example.inputs:
                outputs.append(result.output)
    recorder.result("output", torch.cat(outputs, dim=1))


# Other numbers.


def to_dtype(name: str) -> Callable[[Inputs], Inputs]:
    return lambda inputs: inputs.to(getattr(torch, name))


def _large(inputs: Inputs) -> Inputs:
    return inputs.with_weights(w_q=inputs.weights.w_q * LARGE)


def _huge_where_hidden(inputs: Inputs) -> Inputs:
    """The last key, if something is hidden from somebody, gets contents beyond all measure."""
    keys = inputs.keys.clone()
    keys[:, -1] = HUGE
    return inputs.with_keys(keys)


def _nan_asks(inputs: Inputs) -> Inputs:
    x = inputs.x.clone()
    x[:, 0] = math.nan
    return replace(inputs, x=x)


def _far(inputs: Inputs) -> Inputs:
    samples, tokens = inputs.x.shape[:2]
    return replace(inputs, positions=FAR + torch.arange(tokens).expand(samples, -1))


def _nobody(inputs: Inputs) -> Inputs:
    return replace(inputs, x=inputs.x[:, :0], mask=None)


# With the tools of torch.


def _another_device(recorder: Recorder, layer: Layer, example: Example) -> None:
    with torch.device("meta"):
        call(recorder, layer, example.inputs)


def _hooked(recorder: Recorder, layer: Layer, example: Example) -> None:
    for part in (p for p in layer.need_module().module.modules() if isinstance(p, nn.Linear)):
        part.register_forward_hook(lambda module, given, returned: 2 * returned)
    call(recorder, layer, example.inputs)


def _copied(recorder: Recorder, layer: Layer, example: Example) -> None:
    loaded = layer.need_module()
    loaded.load(example.inputs.weights)
    module = copy.deepcopy(loaded.module)
    loaded.load(example.inputs.weights.map(lambda weight: 2 * weight))  # the original goes on learning
    call(recorder, layer.calling(module), example.inputs)


def _checkpointed(recorder: Recorder, layer: Layer, example: Example) -> None:
    leaves, named = example.inputs.leaves()
    output = checkpoint(lambda x: layer.run(replace(leaves, x=x), True).output, leaves.x, use_reentrant=False)
    _keep_gradients(recorder, output, named)


def _autocast(recorder: Recorder, layer: Layer, example: Example) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call(recorder, layer, example.inputs)


def _exported(recorder: Recorder, layer: Layer, example: Example) -> None:
    """Traced with a mask that hides nothing, called with one that hides everything from the first query."""
    loaded, inputs = layer.need_module(), example.inputs
    loaded.load(inputs.weights)
    seen = torch.ones(inputs.scores_shape[2:], dtype=torch.bool)
    graph = torch.export.export(loaded.module.eval(), (inputs.x, seen), strict=False).module()
    seen[0] = False
    recorder.next_call()
    recorder.result("output", graph(inputs.x, seen)[0])


def _as_built(recorder: Recorder, layer: Layer, example: Example) -> None:
    recorder.result("in_proj.weight as built", layer.need_module().module.get_parameter("in_proj.weight"))


# What an example must have.


def _caches(example: Example) -> bool:
    return example.case.mask.startswith("is_causal") or example.case.mask.startswith("documents")


def _hides_the_last(example: Example) -> bool:
    seen = example.inputs.visible()
    return not bool(seen[..., -1].all()) and example.inputs.mechanisms.placing == "none" and bool(seen[..., -1].any())


def _plain(example: Example) -> bool:
    return example.case.keys is None and example.case.placing == "none" and example.case.mask in ("none", "full", "causal")


def _fits(dtype: str, large: bool = False) -> Callable[[Example], bool]:
    def about(example: Example) -> bool:
        inputs = _large(example.inputs) if large else example.inputs
        return largest_number(inputs) < torch.finfo(getattr(torch, dtype)).max / 4

    return about


def _has(**wanted: Any) -> Callable[[Example], bool]:
    return lambda example: all(getattr(example.case, name) in values for name, values in wanted.items())


SCENES: tuple[Scene, ...] = (
    Scene("Called once, in evaluation.", _one),
    Scene("Called once, in training.", _training, where="in training"),
    Scene("Called once; then the caller looks at what was passed in.", _passed_in),
    Scene("Gradients of the sum of all outputs, in evaluation.", _gradient(False), gradients=True, where="in the backward pass"),
    Scene("Gradients of the sum of all outputs, in training.", _gradient(True), gradients=True, where="in the backward pass"),
    Scene("Called twice with the same, in evaluation; this is the second call.", _twice, where="in a second call"),
    Scene(
        "Called with the negative of all tokens first, under a mask that hides nothing; this is the second call.", _after_others
    ),
    Scene("Called in evaluation, then in training; this is the second call.", _training_after_evaluation),
    Scene("The tokens come {pieces}, through a cache.", _decoded, _caches, where=CACHE),
    Scene(
        "The tokens come {pieces}, through a cache; the samples change places after the first.", _reordered, _caches, where=CACHE
    ),
    Scene(
        "The tokens come {pieces}, through a cache that held the negative tokens and was reset.",
        _after_a_reset,
        _caches,
        where=CACHE,
    ),
    Scene("The tokens come {pieces}, in turns with another request on the same layer.", _in_turns, _caches, where=CACHE),
    *(
        Scene(f"Everything in {dtype}.", _one, _fits(dtype), to_dtype(dtype), where=f"in {dtype}")
        for dtype in ("float16", "bfloat16", "float32")
    ),
    Scene("With W_Q 400 times as large.", _one, _fits("float64", True), _large),
    Scene(f"The last token, which some may not see, holds {HUGE:g}.", _one, _hides_the_last, _huge_where_hidden),
    Scene("Query 0 is NaN.", _one, lambda example: example.case.keys is not None, _nan_asks),
    Scene("The first token stands at position 300.", _one, _has(placing=("rotary", "rotary_interleaved")), _far),
    Scene(
        "Called with these, then without mask and flag; this is the second call.", _without_the_flag, _has(mask=("is_causal",))
    ),
    Scene(
        "Called with positions 0, 1, 2, ..., then with 0, 3, 6, ...; this is the second call.",
        _other_positions,
        _has(placing=("rotary", "rotary_interleaved")),
    ),
    Scene("Called once; the result is looked at after a second call, with other tokens.", _first_result_later),
    Scene("Called with no query at all.", _one, lambda example: example.case.keys is not None, _nobody),
    Scene("Called while another device is torch's default.", _another_device, where="while another device is torch's default"),
    Scene("With a hook on each projection that doubles what it returns.", _hooked, _plain),
    Scene(
        "A copy of the layer is called, after the original's weights have been doubled.",
        _copied,
        watched=False,
        where="in a copy",
    ),
    Scene(
        "Gradients in training, under checkpointing.",
        _checkpointed,
        _plain,
        gradients=True,
        watched=False,
        where="under checkpointing",
    ),
    Scene("In float32, under autocast to bfloat16.", _autocast, _plain, to_dtype("float32"), where="under autocast"),
    Scene(
        "Exported with a mask that hides nothing, then called with one that hides all from query 0.",
        _exported,
        _plain,
        watched=False,
        where="once it is exported",
    ),
    Scene("The layer as it was built, no weights loaded.", _as_built, _plain, watched=False),
)
