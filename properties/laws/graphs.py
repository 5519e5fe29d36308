"""Laws of graphs: a layer that is traced once, and run from what was written down then, is still the layer.

To trace a layer takes as long as a hundred calls, so it is done once for each subject: whatever the case, these laws look at a
layer of one small size, with that kind of mask of those the subject takes which says most, and remember what came of it.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from properties.case import FIELDS, Case
from properties.compare import assert_close
from properties.conventions import to_subject
from properties.inputs import Inputs, make_inputs
from properties.property import Property
from properties.subject import Broken, Layer, Subject

Graph = Callable[..., Any]
Trace = Callable[[Layer, nn.Module, Inputs], Graph]


def a_compiled_layer_is_the_layer(subject: Subject, case: Case) -> None:
    """Compiled (`torch.compile`), a layer gives what it gives uncompiled.

    By the backend `aot_eager`, which takes the layer apart into a graph as every backend gets it, and needs no C++ compiler.
    """
    _judge(subject, case, _compiled)


def an_exported_layer_is_the_layer(subject: Subject, case: Case) -> None:
    """Exported (`torch.export`) with one set of inputs, a layer gives what it gives by itself, for others of their shapes, too.

    The graph is to hold for all numbers: an `if` that was decided by those it was traced with is a mistake for others.
    """
    _judge(subject, case, _exported)


def _compiled(layer: Layer, module: nn.Module, example: Inputs) -> Graph:
    torch.compiler.reset()  # or else, after eight classes that share a forward, it silently runs them uncompiled
    return torch.compile(module, backend="aot_eager")


def _exported(layer: Layer, module: nn.Module, example: Inputs) -> Graph:
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def take(*args: Any, **kwargs: Any) -> Any:
        given.append((args, kwargs))
        raise _Taken

    with contextlib.suppress(_Taken):
        layer.need_module().call(take, to_subject(example, layer.supports), False)
    try:
        return torch.export.export(module, *given[0], strict=False).module()
    except Exception as error:
        raise Broken(f"it raised {type(error).__name__}: {error}") from error


class _Taken(BaseException):
    """Ends a call after its arguments are known."""


def _judge(subject: Subject, case: Case, trace: Trace) -> None:
    evidence = _remembered(subject, trace, _small(subject, case))
    if evidence is not None:
        raise AssertionError(evidence)


_EVIDENCE: OrderedDict[tuple[int, int, Trace, Case], tuple[Subject, str | None]] = OrderedDict()


def _remembered(subject: Subject, trace: Trace, small: Case) -> str | None:
    """What was found of the subject on the small case, now or before. The subject is kept: its id must stay its own."""
    key = (id(subject.build), id(subject.supports), trace, small)
    if key not in _EVIDENCE:
        _EVIDENCE[key] = subject, _evidence(subject, small, trace)
        if len(_EVIDENCE) > 64:
            _EVIDENCE.popitem(last=False)
    return _EVIDENCE[key][1]


def _evidence(subject: Subject, small: Case, trace: Trace) -> str | None:
    def inputs(seed: int) -> Inputs:  # made anew for each call: one may change what it is given
        weights = make_inputs(small, subject.dtype).weights
        return replace(make_inputs(replace(small, seed=seed), subject.dtype), weights=weights)

    seeds = {"the numbers it was traced with": 0, "others": 1}
    plain = subject.loaded(small)[0]
    try:
        # What it keeps between calls it keeps when it is compiled, too; but an exported graph keeps nothing.
        want = [(plain if trace is _compiled else subject.loaded(small)[0])(inputs(seed)).output for seed in seeds.values()]
    except Broken:
        return None  # it does not work on this case at all: what of that is wrong is for other laws to say
    layer, module, _ = subject.loaded(small)
    try:
        with _quiet(), torch.no_grad():
            traced = layer.calling(module, trace(layer, module.eval(), inputs(0)))
            got = [traced(inputs(seed)).output for seed in seeds.values()]
        for which, one, right in zip(seeds, got, want, strict=True):
            bound, judged = subject.bounds(inputs(seeds[which])).output, subject.judged(inputs(seeds[which]))[..., None]
            assert_close(one, right, bound, f"output for {which}", judged)
    except AssertionError as error:
        return f"of {small!r}, {'compiled' if trace is _compiled else 'exported'}: {error}"
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What torch has to say of a graph that it has to break, or cannot make, it says in pages."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


# Those of which one says most come first.
_KINDS = (
    "empty",
    "head",
    "documents",
    "prefix",
    "sample",
    "causal+padding",
    "is_causal+padding",
    "padding",
    "causal",
    "full",
    "is_causal",
    "none",
)


def _small(subject: Subject, case: Case) -> Case:
    supports = subject.supports
    mechanisms = {name: next(iter(values)) for name, values in supports.fields().items() if len(FIELDS[name]) == 1}
    return Case(
        **{name: value for name, value in mechanisms.items() if name not in ("alignment", "biases")},
        batch=2,
        queries=3,
        num_heads=next(iter(supports.num_heads), 2),
        d_head=next(iter(supports.d_heads), 2),
        mask=next(mask for mask in _KINDS if mask in supports.masks),
        encoding="bool" if "bool" in supports.encodings else case.encoding,
        bias=supports.bias,
        biases=case.biases,
        alignment=case.alignment,
    )


PROPERTIES = (
    Property(law=a_compiled_layer_is_the_layer, needs=("module", "compiles"), slow=True),
    Property(law=an_exported_layer_is_the_layer, needs=("module", "exports"), slow=True),
)
