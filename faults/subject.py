"""The clean classes of `attn`, or a fault made from one, as subjects of the properties."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attn import (
    AlibiAttention,
    CachedAttention,
    DecoderAttention,
    MultiHeadAttention,
    PackedAttention,
    PrefixAttention,
    QKNormAttention,
    RelativeBiasAttention,
    RotaryAttention,
    SinkAttention,
    SoftCapAttention,
    WindowAttention,
)
from properties.inputs import Inputs, Weights
from properties.mechanisms import BUCKETS, FAR, Mechanisms
from properties.subject import Subject
from properties.supports import TOOLS, Supports
from properties.wrap import Caching, of_module

_ROTARY: dict[str, Any] = {
    "placings": ("rotary", "rotary_interleaved"),
    "rotary_widths": (None, 2, 4),
    "stretches": (1.0, 4.0),
    "d_heads": (4, 6),  # so that there is a part to turn that has several pairs
    "explicit_positions": True,
    "cross_attention": False,
}
_CAUSAL: dict[str, Any] = {"always_causal": True, "cross_attention": False}

# What each class declares. A class that builds on several comes before them.
_OF_EACH: dict[type[MultiHeadAttention], Supports] = {
    DecoderAttention: Supports(**{**_ROTARY, **_CAUSAL}, windows=(None, 1, 2, 3), cache=True, reorders=True, static_cache=True),
    CachedAttention: Supports(**_CAUSAL, cache=True, reorders=True, static_cache=True),
    RotaryAttention: Supports(**_ROTARY),
    WindowAttention: Supports(**_CAUSAL, windows=(None, 1, 2, 3)),
    AlibiAttention: Supports(placings=("alibi",), cross_attention=False),
    RelativeBiasAttention: Supports(**_CAUSAL, placings=("relative_bias",)),
    PackedAttention: Supports(**_CAUSAL, masks=("documents", "documents+padding")),
    PrefixAttention: Supports(masks=("prefix", "prefix+padding"), cross_attention=False),
    SoftCapAttention: Supports(soft_caps=(0.5, 2.0)),
    SinkAttention: Supports(sinks=True),
    QKNormAttention: Supports(qk_norm=True),
    MultiHeadAttention: Supports(),
}
DECLARED = {
    clean: replace(supports, nan_comes_out=True, empty_sequences=True, tools=TOOLS) for clean, supports in _OF_EACH.items()
}

# How they are built, besides what all of them take, and what their parameters are called.
_BUILT_WITH: dict[type[MultiHeadAttention], Callable[[Mechanisms], dict[str, Any]]] = {
    RotaryAttention: lambda given: {
        "rotary_width": given.rotary_width,
        "interleaved": given.placing == "rotary_interleaved",
        "stretch": given.stretch,
    },
    WindowAttention: lambda given: {"window": given.window},
    RelativeBiasAttention: lambda given: {"buckets": BUCKETS, "far": FAR},
    SoftCapAttention: lambda given: {"soft_cap": given.soft_cap},
}
_PARAMETERS = {"n_q": "query_norm.weight", "n_k": "key_norm.weight", "sinks": "sinks", "table": "table"}


def subject(attention: type[MultiHeadAttention] = MultiHeadAttention, name: str | None = None) -> Subject:
    """Return the subject for a class of `attn` or a subclass of one; it supports all that there is of it."""
    clean = clean_class(attention)
    extra = [options for mechanism, options in _BUILT_WITH.items() if issubclass(attention, mechanism)]

    def build(inputs: Inputs) -> MultiHeadAttention:
        mechanisms: dict[str, Any] = {}
        for options in extra:
            mechanisms |= options(inputs.mechanisms)
        return attention(
            inputs.x.shape[2],
            inputs.num_heads,
            bias=any(name.startswith("b_") for name, _ in inputs.weights.items()),
            num_kv_heads=inputs.num_kv_heads,
            dropout=inputs.dropout,
            dtype=inputs.x.dtype,
            **mechanisms,
        )

    made = of_module(
        name or f"attn.{attention.__name__}",
        build=build,
        parameters=_parameters,
        arguments=_arguments(attention),
        caching=_caching if issubclass(attention, CachedAttention) else None,
        supports=DECLARED[clean],
    )
    module = attention.__module__
    expression = f"faults.subject.subject({module}.{attention.__qualname__})"
    return replace(made, expression=expression, imports=(f"import {module}", "import faults.subject"))


def clean_class(attention: type[MultiHeadAttention]) -> type[MultiHeadAttention]:
    """The class of `attn` that it is, or is made from."""
    return next(known for known in DECLARED if issubclass(attention, known))


def _parameters(w: Weights) -> dict[str, Tensor]:
    named = {"in_proj.weight": torch.cat([w.w_q, w.w_k, w.w_v]), "out_proj.weight": w.w_o}
    if any(name.startswith("b_") for name, _ in w.items()):  # those that are not given are zero
        pairs = ((w.b_q, w.w_q), (w.b_k, w.w_k), (w.b_v, w.w_v), (w.b_o, w.w_o))
        b_q, b_k, b_v, b_o = (weight.new_zeros(weight.shape[0]) if bias is None else bias for bias, weight in pairs)
        named |= {"in_proj.bias": torch.cat([b_q, b_k, b_v]), "out_proj.bias": b_o}
    return named | {_PARAMETERS[field]: tensor for field, tensor in w.items() if field in _PARAMETERS}


def _arguments(attention: type[MultiHeadAttention]) -> Callable[[Inputs], tuple[tuple[Any, ...], dict[str, Any]]]:
    named = [name for name in inspect.signature(attention.forward).parameters if name in Inputs.__dataclass_fields__]

    def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (inputs.x, inputs.mask), {name: getattr(inputs, name) for name in named if name != "x"}

    return arguments


def _caching(module: nn.Module, inputs: Inputs) -> Caching:
    if not isinstance(module, CachedAttention):
        raise TypeError(f"{type(module).__name__} has no cache")
    arguments = _arguments(type(module))
    windowed = isinstance(module, WindowAttention) and module.window is not None  # its cache ends by itself
    cache = module.new_cache(inputs.x.shape[0], None if windowed else inputs.mechanisms.capacity)

    def with_cache(piece: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, named = arguments(piece)
        return args, {**named, "cache": cache}

    return Caching(
        arguments=with_cache,
        reorder=lambda samples: module.reorder(cache, samples),
        reset=lambda: module.reset(cache),
    )


# The clean classes, as functions that make them: a name for the command line.
SUBJECTS = [functools.partial(subject, attention) for attention in DECLARED]
