"""Laws of torch's own tools: what is done to a layer from outside does not change its numbers."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from properties.case import Case
from properties.compare import assert_close
from properties.conventions import to_subject
from properties.inputs import Inputs, gradients, make_inputs
from properties.oracle import attend
from properties.property import Property
from properties.rounding import gradient_bounds
from properties.subject import Result, Subject


def checkpointing_changes_nothing(subject: Subject, case: Case) -> None:
    """With the forward pass done again in the backward pass, in training, output and gradients are the same.

    What is computed again must be what was computed: the random numbers are put back, what the layer keeps for itself is not.
    """
    inputs = make_inputs(case, subject.dtype)
    judged = subject.judged(inputs)
    if not judged.all() and not subject.supports.finite_empty_rows:
        return
    cotangent = torch.randn(inputs.x.shape, generator=case.generator("law"), dtype=torch.float64) * judged[..., None]
    state = torch.get_rng_state()

    def run(checkpointed: bool) -> tuple[Tensor, dict[str, Tensor]]:
        layer = subject.layer(inputs)  # a fresh one each time, so that random numbers of its own are the same, too
        torch.set_rng_state(state)
        again = replace(layer, run=lambda said, training: checkpoint(layer.run, said, training, use_reentrant=False))
        leaves, named = inputs.leaves()
        output = (again if checkpointed else layer)(leaves, training=True, grad=True).output
        return output, gradients(output, cotangent, named)

    want, want_gradients = run(False)
    if case.dropout and not torch.equal(want, run(False)[0]):
        return  # its random numbers cannot be had again
    got, got_gradients = run(True)
    scale = 1 / (1 - case.dropout)
    rounding = subject.rounding(case)
    assert_close(got, want, scale * rounding.output, "output of a checkpointed call", judged[..., None])
    bound = gradient_bounds(inputs, cotangent, rounding)
    for name, gradient in got_gradients.items():
        assert_close(gradient, want_gradients[name], scale * bound[name], f"gradient of {name}, checkpointed,")


def given_parameters_are_used(subject: Subject, case: Case) -> None:
    """Called with parameters (`torch.func.functional_call`), a layer computes as one that holds them, and keeps its own."""
    layer, inputs = subject.start(case)
    module, bound, judged = layer.need_module().module, subject.rounding(case).output, subject.judged(inputs)[..., None]
    before = layer.calling(module)(inputs).output
    given = dict(layer.need_module().parameters(inputs.weights))

    def with_given(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, given, args, kwargs)

    want = subject.loaded(case)[0](inputs).output
    assert_close(layer.calling(module, with_given)(inputs).output, want, bound, "output with given parameters", judged)
    after = layer.calling(module)(inputs).output
    assert_close(after, before, bound, "output with its own parameters, after a call with others,", judged)


def a_copy_stands_alone(subject: Subject, case: Case) -> None:
    """A copy (`copy.deepcopy`) of a layer computes what the layer does, and neither depends on what becomes of the other.

    A function that was made in the constructor and remembers its layer goes on remembering that one in the copy.
    """
    layer, module, inputs = subject.loaded(case)
    bound, judged = subject.rounding(case).output, subject.judged(inputs)[..., None]
    want = layer(inputs).output  # also what is copied has been called before
    other = layer.calling(copy.deepcopy(module))
    assert_close(other(inputs).output, want, bound, "output of a copy", judged)
    other(replace(inputs, x=-inputs.x))
    assert_close(layer(inputs).output, want, bound, "output after another call of its copy", judged)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert_close(other(inputs).output, want, bound, "output of a copy, the parameters of the original set to 0,", judged)


def a_saved_layer_comes_back(subject: Subject, case: Case) -> None:
    """A layer saved as a whole (`torch.save`, that is by pickle) and loaded again computes the same."""
    layer, module, inputs = subject.loaded(case)
    if not all(_can_be_found(type(part)) for part in module.modules()):
        return  # pickle wants to import its class, which is no fault of the layer
    want = layer(inputs).output
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    got = layer.calling(torch.load(file, weights_only=False))(inputs).output
    assert_close(
        got, want, subject.rounding(case).output, "output of the layer that came back", subject.judged(inputs)[..., None]
    )


def every_submodule_is_called(subject: Subject, case: Case) -> None:
    """In self-attention every submodule that owns parameters is called, so that hooks on it run, and what replaces it counts.

    Adapters, quantisation and pruning hang themselves there. One whose weight alone is read looks the same until one of them
    comes. In cross-attention a projection that is one of three has to be applied in parts, and that is no call.
    """
    layer, module, inputs = subject.loaded(case)
    owners = {name: part for name, part in module.named_modules() if next(part.parameters(recurse=False), None) is not None}
    for training in (False, True):
        if missing := sorted(owners.keys() - _called(lambda: layer(inputs, training=training), owners)):  # noqa: B023
            mode = "training" if training else "evaluation"
            raise AssertionError(
                f"in {mode} {', '.join(missing)} was not called: no hook on it runs, only its parameters are read"
            )


def autocast_rounds_and_no_more(subject: Subject, case: Case) -> None:
    """Under `torch.autocast` to bfloat16, output and gradients come, in one of its two dtypes, and rounding explains the output.

    Products are then made in bfloat16, while parameters and masks stay in float32. Where the two meet in an operation that
    autocast does not know, it raises.
    """
    inputs = make_inputs(case, torch.bfloat16).to(torch.float32)  # autocast rounds all of these: they are chosen to stay the same
    layer, want, bound = subject.layer(inputs), attend(inputs).output, subject.bounds(inputs, torch.bfloat16).output
    dtypes: list[torch.dtype] = []

    def run(said: Inputs, training: bool) -> Result:
        with torch.autocast("cpu", torch.bfloat16):
            result = layer.run(said, training)
        dtypes.append(result.output.dtype)
        return Result(result.output.to(said.x.dtype), None if result.weights is None else result.weights.to(said.x.dtype))

    leaves, named = inputs.leaves() if subject.supports.gradients else (inputs, {})
    got = replace(layer, run=run)(leaves, grad=bool(named)).output
    if dtypes[0] not in (torch.bfloat16, torch.float32):
        raise AssertionError(f"under autocast its output is {dtypes[0]}, should be torch.bfloat16 or torch.float32")
    assert_close(got, want, bound, "output under autocast", subject.judged(inputs)[..., None])
    gradients(got, torch.ones_like(want), named)


def vmap_is_a_loop(subject: Subject, case: Case) -> None:
    """`torch.func.vmap` over a stack of batches gives what the batches give one by one.

    In it a tensor stands for many, and no `if` can ask for its numbers.
    """
    layer, module, inputs = subject.loaded(case)
    batches = [inputs, inputs.rows(torch.arange(case.batch).flip(0))]
    stacks = [to_subject(batch, subject.supports) for batch in batches]
    stacked: dict[str, Tensor] = {}
    for name in ("x", "context", "mask", "positions", "documents", "prefix"):
        tensors = [getattr(said, name) for said in stacks]
        if tensors[0] is not None:
            stacked[name] = torch.stack(tensors)
    last: list[Tensor] = []

    def mapped(said: Inputs, training: bool) -> Result:
        def one(tensors: dict[str, Any]) -> tuple[Tensor, ...]:
            result = layer.run(replace(said, **tensors), training)
            return (result.output,) if result.weights is None else (result.output, result.weights)

        both = torch.func.vmap(one, randomness="different")(stacked)
        last.append(both[0][1])
        return Result(*(part[0] for part in both))

    bound, judged = subject.rounding(case).output, subject.judged(inputs)[..., None]
    want = [layer(batch).output for batch in batches]
    assert_close(replace(layer, run=mapped)(inputs).output, want[0], bound, "output of the first batch in vmap", judged)
    assert_close(last[0], want[1], bound.flip(0), "output of the second batch in vmap", judged.flip(0))


def _called(run: Callable[[], object], parts: Mapping[str, nn.Module]) -> set[str]:
    called: set[str] = set()
    hooks = [part.register_forward_hook(lambda *_, name=name: called.add(name)) for name, part in parts.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return called


def _can_be_found(kind: type) -> bool:
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


PROPERTIES = (
    Property(law=checkpointing_changes_nothing, needs=("module", "checkpoints", "formula", "gradients")),
    Property(law=given_parameters_are_used, needs=("module", "calls_functionally", "loads_weights")),
    Property(law=a_copy_stands_alone, needs=("module", "copies")),
    Property(law=a_saved_layer_comes_back, needs=("module", "pickles")),
    Property(law=every_submodule_is_called, needs=("module", "takes_hooks"), where={"keys": (None,)}),
    Property(law=autocast_rounds_and_no_more, needs=("module", "autocasts", "formula")),
    Property(law=vmap_is_a_loop, needs=("module", "vmaps")),
)
