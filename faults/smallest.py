"""The smallest case that reveals a fault: none that is simpler in some field, and in no other more complicated, reveals it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from faults.fault import Fault, subject_of
from properties.case import FIELDS, Case, sample

Fields = Mapping[str, Collection[Any]]

# Values from simple to complicated; those in one group are no simpler than each other.
_LADDERS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "batch": ((1,), (2,), (3,)),
    "queries": ((1,), (2,), (3,), (4,), (5,)),
    "keys": ((None,), (1,), (2,), (3,), (4,), (5,)),
    "num_heads": ((1,), (2,), (3,), (4,), (6,)),
    "num_kv_heads": ((None,), (1,), (2,)),
    "d_head": ((1,), (2,), (3,), (4,)),
    "mask": (
        ("none",),
        ("full",),
        ("causal", "is_causal", "padding", "prefix", "documents"),
        ("causal+padding", "is_causal+padding", "sample", "prefix+padding", "documents+padding"),
        ("head",),
        ("empty",),
    ),
    "encoding": (("bool",), ("additive",), ("bias",)),
    "bias": ((False,), (True,)),
    "dropout": ((0.0,), (0.5,), (0.25,)),
    "layout": (("contiguous",), ("transposed", "strided")),
    "dtype": (("float64",), ("float32",), ("bfloat16", "float16")),
    "score_scale": ((1.0,), (30.0,), (1000.0,)),
    "window": ((None,), (1,), (2,), (3,)),
    "soft_cap": ((2.0,), (0.5,)),
    "placing": (("none",), ("rotary", "alibi", "relative_bias"), ("rotary_interleaved",)),
    "rotary_width": ((None,), (2,)),
    "stretch": ((1.0,), (4.0,)),
    "positions": (("counted",), ("offset",), ("given",)),
    "prefill": ((0,), (1,), (2,), (3,)),
    "chunk": ((1,), (2,), (3,)),
    "spare": ((None,), (0,), (1,), (2,)),
}


def smallest(fault: type[Fault]) -> Case:
    """Return a smallest revealing case, by going down from random ones that reveal; the lowest that is found."""
    random, fields = Random(0), subject_of(fault).supports.fields()
    best: Case | None = None
    revealing = 0
    for _ in range(20_000):
        case = replace(sample(random, fields), seed=0)
        if not fault.visible(case):
            continue
        case = _descend(fault, case, fields)
        best = case if best is None or _height(case) < _height(best) else best
        revealing += 1
        if revealing == 30:
            break
    if best is None:
        raise LookupError(f"{fault.__name__}.visible is true for none of 20,000 random cases")
    return best


def simpler(case: Case, fields: Fields) -> Iterator[Case]:
    """All cases that are simpler in some field and more complicated in none, the simplest first; the seed stays.

    `fields` are those that the subject takes part in, `Supports.fields()`.
    """
    below = [[*_lower(name, getattr(case, name), fields), getattr(case, name)] for name in _LADDERS]
    for values in itertools.product(*below):
        try:
            other = replace(case, **dict(zip(_LADDERS, values, strict=True)))
        except ValueError:  # the key/value heads do not divide the heads
            continue
        if other != case:
            yield other


def shrunk(case: Case, fields: Fields, shows: Callable[[Case], bool]) -> Case:
    """Go down from a case, one field at a time, as long as it shows what it is to show."""
    case = seedless if shows(seedless := replace(case, seed=0)) else case
    while True:
        steps = (_replace_or_none(case, name, value) for name in _LADDERS for value in _lower(name, getattr(case, name), fields))
        lower = next((step for step in steps if step is not None and shows(step)), None)
        if lower is None:
            return case
        case = lower


def _descend(fault: type[Fault], case: Case, fields: Fields) -> Case:
    while True:
        case = shrunk(case, fields, fault.visible)
        lower = next((other for other in simpler(case, fields) if fault.visible(other)), None)
        if lower is None:
            return case
        case = lower


def _replace_or_none(case: Case, name: str, value: Any) -> Case | None:
    try:
        return replace(case, **{name: value})
    except ValueError:
        return None


def _lower(name: str, value: Any, fields: Fields) -> list[Any]:
    """The values of a field that are simpler than this one, and that the subject takes, the simplest first."""
    lower = [v for group in _LADDERS[name][: _rank(name, value)] for v in group]
    return [v for v in lower if v in fields.get(name, FIELDS[name])]


def _rank(name: str, value: Any) -> int:
    return next((rank for rank, group in enumerate(_LADDERS[name]) if value in group), 0)


def _height(case: Case) -> int:
    return sum(_rank(name, getattr(case, name)) for name in _LADDERS)
