"""Make a subject of what somebody wrote: a class, a function, a module with its own layout, or a black box."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties.asking import Answers, ask, example
from properties.case import EXPLICIT, MASKS
from properties.inputs import Inputs, merge_heads, split_heads
from properties.recognise import Parameters, biases_of, recognise, with_zero_biases
from properties.signatures import (
    CAUSAL,
    CONTEXT,
    D_MODEL,
    DROPOUT,
    MASK,
    NUM_HEADS,
    NUM_KV_HEADS,
    QKV,
    expression,
    first,
    name_of,
    needs_nothing,
    takes,
)
from properties.subject import Broken, Decoding, Layer, LoadedModule, Result, Subject
from properties.supports import MASK_SHAPES, Supports
from properties.surroundings import seeded, undisturbed
from properties.time_limit import TIME_LIMIT, time_limit

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def as_subject(thing: Any, **declared: Any) -> Subject:
    """Return the subject for whatever was handed in: a subject, a class or factory, or a function of q, k and v.

    `declared` are fields of `Supports`, and options of `of_class` or `of_function`.
    """
    if isinstance(thing, Subject):
        if declared:
            raise ValueError(f"{thing.name} is a subject already: declare {', '.join(declared)} where it is made, in Supports")
        return thing
    if isinstance(thing, nn.Module):
        return of_class(thing)  # which says what to do
    if not callable(thing):
        raise TypeError(f"cannot check {thing!r}: hand in a class of modules, a function of q, k and v, or a Subject")
    if isinstance(thing, type):
        return of_class(thing, **declared)
    if inspect.isbuiltin(thing) or takes(thing)[:3] in QKV:
        return of_function(thing, **declared)
    made = thing() if needs_nothing(thing) else None
    if isinstance(made, Subject):
        return as_subject(made, **declared)
    if made is not None and not isinstance(made, nn.Module):
        raise TypeError(f"{name_of(thing)}() returned {_kind(made)}, not a Subject")
    return of_class(thing, **declared)


def of_class(
    build: Callable[..., nn.Module],
    *,
    name: str | None = None,
    parameters: Parameters | None = None,
    mask_argument: str | None = None,
    **declared: Any,
) -> Subject:
    """Return the subject for a class like the lesson's: `build(d_model, num_heads)` makes a module `(x, mask) -> output`.

    What it takes by one of these names it is held to, unless `declared` says otherwise:

    - the constructor: `bias`, `dropout`, `num_kv_heads`, or their like (`properties/signatures.py` has them all);
    - `forward`: `attn_mask`, `mask` or `attention_mask`; `is_causal` or `causal`; `context` or `memory`; `query, key, value`.

    It returns `[B, T, d]`, alone or with weights `[B, h, T, S]`. What it gives for a query that sees no key is found by asking.

    Args:
        build: the class, or any function of d_model and num_heads.
        name: what to call it in reports.
        parameters: the weights under the names and in the shapes of the module's parameters; see `of_module`. By default they are
            recognised by names and shapes: q, k, v and out, or q, k and v in one, in this order. Where there are no biases, those
            that it gets are zero; if the constructor takes `bias`, they are None. It may take `num_heads` as well, by this name.
        mask_argument: the name by which `forward` takes its mask, if it is another.
        declared: fields of `Supports`.

    Raises ValueError if the parameters cannot be recognised, or `parameters` does not fit them.
    """
    if isinstance(build, nn.Module):
        raise TypeError(
            f"an instance of {type(build).__name__} has one size, and its own weights: hand in its class; or "
            f"black_box(module, num_heads=(...,), d_heads=(...,)), which leaves the weights alone"
        )
    return _of_class("of_class", build, build, name, parameters, mask_argument, declared)


def black_box(
    thing: Callable[..., nn.Module] | nn.Module, *, name: str | None = None, mask_argument: str | None = None, **declared: Any
) -> Subject:
    """Return the subject for a module whose weights cannot be set: a class or factory as for `of_class`, or a module as it is.

    Only the laws that need no weights apply. A module as it is needs `num_heads=(...,)` and `d_heads=(...,)`, its one size;
    copies of it are run.
    """
    declared = {**declared, "loads_weights": False}
    if not isinstance(thing, nn.Module):
        return _of_class("black_box", thing, thing, name, None, mask_argument, declared)
    module = thing
    check_declared("black_box", declared)
    if not all(len(tuple(declared.get(sizes, ()))) == 1 for sizes in ("num_heads", "d_heads")):
        raise ValueError(f"black_box: a {type(module).__name__} has one size: say it, like num_heads=(8,), d_heads=(64,)")
    try:
        copy.deepcopy(module)
    except Exception as error:
        raise ValueError(
            f"black_box: copying the {type(module).__name__} raised {type(error).__name__}: {error}. Hand in a function "
            f"(d_model, num_heads) that makes one"
        ) from error

    def build(d_model: int, num_heads: int) -> nn.Module:
        return copy.deepcopy(module)

    return _of_class("black_box", module, build, name or name_of(type(module)), None, mask_argument, declared)


def of_function(
    function: Callable[..., Any], *, name: str | None = None, mask_argument: str | None = None, **declared: Any
) -> Subject:
    """Return the subject for a function like `F.scaled_dot_product_attention`, between the projections of a layer.

    It is called as `function(q, k, v)`, q `[B, h, T, d_head]`, k and v `[B, h, S, d_head]`; by name with a mask (`attn_mask`,
    `mask` or `attention_mask`, or as `mask_argument` says), and with `is_causal`, `dropout_p` and `enable_gqa`, if it takes
    them; k and v then have fewer heads. It returns `[B, h, T, d_head]`, alone or with weights `[B, h, T, S]`. What it gives for
    a query that sees no key is found by asking.
    """
    if inspect.isclass(function) or isinstance(function, nn.Module):
        raise TypeError(f"of_function: {name_of(function)} is no function of q, k and v; for a class there is of_class")
    check_declared("of_function", declared)
    names = takes(function) or ("q", "k", "v", "attn_mask", "dropout_p", "is_causal", "enable_gqa")
    call = _Call("of_function", names, mask_argument, declared)
    dropout = first(DROPOUT, names)

    def run(inputs: Inputs, training: bool) -> Result:
        w, d_head = inputs.weights, inputs.d_head
        q = split_heads(F.linear(inputs.x, w.w_q, w.b_q), d_head)
        k, v = (split_heads(F.linear(inputs.keys, *p), d_head) for p in ((w.w_k, w.b_k), (w.w_v, w.b_v)))
        named = call.masks(inputs)
        if training and inputs.dropout:
            named[dropout or "dropout_p"] = inputs.dropout
        if inputs.num_kv_heads != inputs.num_heads and "enable_gqa" in names:
            named["enable_gqa"] = True
        returned = _result(function(q, k, v, **named))
        if returned.output.shape != q.shape:
            raise Broken(f"it returned {_kind(returned.output)}, not [B, h, T, d_head] = {list(q.shape)}")
        return Result(F.linear(merge_heads(returned.output), w.w_o, w.b_o), returned.weights)

    def build(inputs: Inputs) -> Layer:
        return Layer(run)

    inferred = {
        "masks": call.kinds(),
        "grouped_heads": "enable_gqa" in names,
        "dropout": dropout is not None,
        "module": False,
    }
    asked = ask(build, declared, masked=call.mask is not None)
    return _subject("of_function", function, name, build, inferred, asked, declared, mask_argument=mask_argument)


def of_module(
    name: str,
    *,
    build: Callable[[Inputs], nn.Module],
    parameters: Parameters,
    arguments: Callable[[Inputs], Arguments],
    result: Callable[[Any], Result] | None = None,
    caching: Callable[[nn.Module, Inputs], Caching] | None = None,
    supports: Supports | None = None,
) -> Subject:
    """Return the subject for a module with its own way of being built, loaded and called: a small adapter.

    All inputs come by the conventions that `supports` declares.

    Args:
        build: makes the module for inputs of certain sizes (`inputs.num_heads`, `inputs.x.dtype`, ...).
        parameters: the weights under the names and in the shapes of the module's parameters, made by differentiable operations.
        arguments: what to call the module with, positional and by name.
        result: what to make of what it returns; by default that is the output, or (output, weights).
        caching: for a module that declares `cache`: make a cache for these inputs, and say how it is called with it.

    The weights are put in for the time of a call (`torch.func.functional_call`), after `module.train()` or `eval()`: a module
    that folds its weights on a change of mode folds those it was made with.
    """

    def layer(inputs: Inputs) -> Layer:
        return _layer(build(inputs), parameters, arguments, result or _result, caching)

    return Subject(name=name, build=layer, supports=supports or Supports())


@dataclass(frozen=True, kw_only=True)
class Caching:
    """A cache, and how a module is called with it; for `of_module`."""

    arguments: Callable[[Inputs], Arguments]  # for the next tokens: `inputs.past` are cached, `inputs.mask` is over all so far
    returned: Callable[[Any], None] = lambda returned: None  # sees what a call returned, if the cache is handed back in it
    reorder: Callable[[Tensor], None] | None = None  # let sample i go on from what sample index[i] was
    reset: Callable[[], None] | None = None  # forget everything


def _layer(
    module: object,
    parameters: Parameters,
    arguments: Callable[[Inputs], Arguments],
    result: Callable[[Any], Result],
    caching: Callable[[nn.Module, Inputs], Caching] | None = None,
) -> Layer:
    if not isinstance(module, nn.Module):
        raise Broken(f"it was built as {_kind(module)}, not as a module")
    names = {name for name, _ in module.named_parameters()}

    def run(inputs: Inputs, training: bool) -> Result:
        module.train(training)
        given = dict(parameters(inputs.weights))
        if given.keys() - names:
            raise LookupError(f"the module has no parameter {', '.join(sorted(given.keys() - names))}")
        args, kwargs = arguments(inputs)
        return result(torch.func.functional_call(module, given, args, kwargs))

    def call(function: Callable[..., Any], inputs: Inputs, training: bool) -> Result:
        args, kwargs = arguments(inputs)
        return result(function(*args, **kwargs))

    def decoding(whole: Inputs) -> Decoding:
        if caching is None:
            raise Broken("it declares a cache, and `of_module` was given no caching=")
        module.eval()
        cache: object = caching(module, whole)
        if not isinstance(cache, Caching):
            raise Broken(f"caching= must return a Caching, it returned {_kind(cache)}")
        given = dict(parameters(whole.weights))

        def step(inputs: Inputs) -> Result:
            try:
                args, kwargs = cache.arguments(inputs)
            except TypeError as error:
                raise Broken(f"the arguments= of its Caching must return a pair (args, kwargs): {error}") from error
            returned = torch.func.functional_call(module, given, args, kwargs)
            cache.returned(returned)
            return result(returned)

        return Decoding(step=step, reorder=cache.reorder, reset=cache.reset)

    return Layer(run, LoadedModule(module, parameters, call), decoding if caching else None)


class _Call:
    """How something is handed its masks, by the names of what it takes."""

    def __init__(self, function: str, names: tuple[str, ...], mask_argument: str | None, declared: Mapping[str, Any]) -> None:
        self.mask = mask_argument or first(MASK, names)
        self.flag = first(CAUSAL, names)
        self.always_causal = declared.get("always_causal", False)
        if self.mask is None and set(declared.get("masks", ())) - {"none", "is_causal"}:
            raise ValueError(
                f"{function}: masks are declared, and it takes none by the name {', '.join(MASK)}; it takes {', '.join(names)}. "
                f"Say which is the mask with mask_argument="
            )

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        """The arguments that say the mask of these inputs."""
        named: dict[str, Any] = {} if self.mask is None and inputs.mask is None else {self.mask or "attn_mask": inputs.mask}
        if inputs.is_causal and not self.always_causal:
            named[self.flag or "is_causal"] = True
        return named

    def kinds(self) -> tuple[str, ...]:
        """The kinds of mask that it can be told."""
        if self.always_causal:
            return ("is_causal", *(["is_causal+padding"] if self.mask else []))
        if self.mask:
            return MASKS if self.flag else ("none", *EXPLICIT)
        return ("none", "is_causal") if self.flag else ("none",)


def _of_class(
    function: str,
    thing: object,
    build: Callable[..., nn.Module],
    name: str | None,
    parameters: Parameters | None,
    mask_argument: str | None,
    declared: dict[str, Any],
) -> Subject:
    check_declared(function, declared)
    names = takes(build)
    d_model, num_heads, num_kv_heads, dropout = (first(known, names) for known in (D_MODEL, NUM_HEADS, NUM_KV_HEADS, DROPOUT))

    def make(inputs: Inputs) -> nn.Module:
        sizes = (inputs.x.shape[2], inputs.num_heads)
        named: dict[str, Any] = dict(zip((d_model, num_heads), sizes, strict=True)) if d_model and num_heads else {}
        if "bias" in names:
            named["bias"] = any(field.startswith("b_") for field, _ in inputs.weights.items())
        if inputs.num_kv_heads != inputs.num_heads:
            named[num_kv_heads or "num_kv_heads"] = inputs.num_kv_heads
        if inputs.dropout:
            named[dropout or "dropout"] = inputs.dropout
        module = build(*([] if d_model in named else sizes), **named)
        return module.to(inputs.x.dtype) if isinstance(module, nn.Module) else module

    inputs = example(declared, bias=True)
    module = _try(function, make, inputs)
    forward = takes(module.forward)
    call, context, three = _Call(function, forward, mask_argument, declared), first(CONTEXT, forward), forward[:3] in QKV

    def arguments(inputs: Inputs) -> Arguments:
        args = (inputs.x, inputs.keys, inputs.keys) if three else (inputs.x,)
        named = call.masks(inputs)
        if inputs.context is not None and not three:
            named[context or "context"] = inputs.context
        return args, named

    inferred: dict[str, Any] = {
        "masks": call.kinds(),
        "cross_attention": context is not None or three,
        "grouped_heads": num_kv_heads is not None,
        "dropout": dropout is not None,
    }
    weights = ""
    if not declared.get("loads_weights", True):
        inferred["grouped_heads"] = False  # its key/value heads are its own affair
        inferred["optional_bias"] = "bias" in names  # and so are its biases, if nobody can ask for none

        def layer(inputs: Inputs) -> Layer:
            return _layer(make(inputs), lambda weights: {}, arguments, _result)

    elif parameters is not None:
        theirs: Any = parameters
        by_heads = callable(theirs) and "num_heads" in takes(theirs)

        def said(inputs: Inputs) -> Parameters:
            given = partial(theirs, num_heads=inputs.num_heads) if by_heads else theirs
            return given if "bias" in names else with_zero_biases(given)

        inferred["biases"] = biases_of(said(inputs), module, inputs)

        def layer(inputs: Inputs) -> Layer:
            return _layer(make(inputs), said(inputs), arguments, _result)

    else:
        layout = recognise(module, inputs)
        weights, inferred["biases"] = str(layout), layout.biases

        def layer(inputs: Inputs) -> Layer:
            module = make(inputs)
            return _layer(module, recognise(module, inputs), arguments, _result)

    asked = ask(layer, declared, masked=call.mask is not None)
    options = {"parameters": parameters, "mask_argument": mask_argument}
    return _subject(function, thing, name, layer, inferred, asked, declared, weights, **options)


def check_declared(function: str, declared: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError, with what to do, for what cannot be declared."""
    known = {field.name for field in dataclasses.fields(Supports)}
    unknown = [key for key in declared if key not in known]
    if unknown:
        raise TypeError(f"{function}: {', '.join(unknown)} is nothing one can declare; there is {', '.join(sorted(known))}")
    Supports(**declared)
    if declared.get("cache"):
        raise ValueError(
            f"{function}: it cannot know how a cache is made and handed in: use of_module(..., caching=) for cache=True"
        )


def _try(function: str, make: Callable[[Inputs], nn.Module], inputs: Inputs) -> nn.Module:
    """Build one, to see what it is like; what cannot be built at all was handed in wrongly."""
    size = f"d_model={inputs.x.shape[2]}, num_heads={inputs.num_heads}"
    try:
        with undisturbed(), seeded(0), time_limit(TIME_LIMIT):
            module = make(inputs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(
            f"{function}: building it with {size} raised {type(error).__name__}: {error}. It is built as "
            f"build(d_model, num_heads); where that does not fit, hand in a function: `lambda d_model, num_heads: ...`"
        ) from error
    if not isinstance(module, nn.Module):
        raise TypeError(f"{function}: built with {size} it is {_kind(module)}, not a module")
    return module


def _subject(
    function: str,
    thing: object,
    name: str | None,
    build: Callable[[Inputs], Layer],
    inferred: dict[str, Any],
    asked: Answers,
    declared: dict[str, Any],
    weights: str = "",
    **options: Any,
) -> Subject:
    if declared.get("mask_shape") in MASK_SHAPES:
        inferred["masks"] = [mask for mask in inferred["masks"] if mask in MASK_SHAPES[declared["mask_shape"]]]
    supports = Supports(**{**inferred, **asked.declarations, **declared})
    found = list(asked.notes)
    if "biases" in inferred and "biases" not in declared:
        found.insert(0, f"it has biases, on {', '.join(supports.biases)}" if supports.biases else "it has no biases")
    if weights:
        found.insert(0, f"its weights: {weights}")
    subject = Subject(name=name or name_of(thing), build=build, supports=supports, found=tuple(found))
    said = {key: value for key, value in {**options, **declared}.items() if value is not None and key != "loads_weights"}
    written = expression(thing, function, said)
    return replace(subject, expression=written[0], imports=written[1]) if written else subject


def _result(returned: Any) -> Result:
    """An output, or (output, weights, ...)."""
    if isinstance(returned, Tensor):
        return Result(returned)
    if isinstance(returned, tuple | list) and returned and all(isinstance(part, Tensor | None) for part in returned[:2]):
        return Result(*returned[:2])
    raise Broken(f"it returned {_kind(returned)}, not an output, or (output, weights)")


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(map(_kind, value)) or 'nothing'}"
    return "None" if value is None else f"a {type(value).__name__}"
