"""What a function takes, by the names people use; and how to write down in Python what was handed in."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

MASK = ("attn_mask", "mask", "attention_mask")
CONTEXT = ("context", "memory")
CAUSAL = ("is_causal", "causal")
DROPOUT = ("dropout", "dropout_p", "dropout_rate", "p_dropout", "attn_dropout", "attn_drop", "attn_pdrop", "attention_dropout")
NUM_KV_HEADS = ("num_kv_heads", "n_kv_heads", "kv_heads", "num_key_value_heads", "n_kv_head")
D_MODEL = ("d_model", "embed_dim", "dim", "hidden_size", "n_embd", "emb_dim", "model_dim")
NUM_HEADS = ("num_heads", "n_heads", "heads", "n_head", "nhead", "h", "num_attention_heads")
QKV = (("q", "k", "v"), ("query", "key", "value"), ("queries", "keys", "values"))


def takes(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of its parameters, without those that `functools.partial` has bound; () if it does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return tuple(p.name for p in parameters if p.kind not in variable and p.name not in bound)


def needs_nothing(function: Callable[..., Any]) -> bool:
    """Can it be called without arguments?"""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def first(names: tuple[str, ...], among: tuple[str, ...]) -> str | None:
    """The first of the names that is among the others."""
    return next((name for name in names if name in among), None)


def name_of(thing: object) -> str:
    """What to call it in reports: module and name, if it has them."""
    return ".".join(_path(thing)) or type(thing).__name__


def expression(thing: object, function: str, declared: dict[str, Any]) -> tuple[str, tuple[str, ...]] | None:
    """Python for `function(thing, **declared)`, and the imports it needs; None if it cannot be written down."""
    path = _path(thing)
    if not path or "<" in path[-1] or any(callable(value) for value in declared.values()):
        return None
    options = "".join(f", {key}={value!r}" for key, value in declared.items())
    return f"properties.{function}({'.'.join(path)}{options})", (f"import {path[0]}",) if len(path) == 2 else ()


def _path(thing: object) -> tuple[str, ...]:
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return tuple(part for part in (None if module == "__main__" else module, name) if part)
