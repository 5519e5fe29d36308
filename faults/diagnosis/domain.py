"""The cases that a subject and a class of `attn` both take part in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attn import MultiHeadAttention
from faults.facts import has_empty_rows, has_flag
from faults.subject import DECLARED
from properties.case import FIELDS, Case, fitting_heads
from properties.subject import Subject
from properties.supports import Supports

Fields = Mapping[str, Collection[Any]]

_MECHANISMS = ("cache", "windowed", "capped", "sinks", "qk_norm", "explicit_positions")


def shared_fields(one: Supports, other: Supports) -> Fields | None:
    """The values of the fields of a case that both take; None if there is a field of which they share none."""
    first, second = one.fields(), other.fields()
    shared: dict[str, Collection[Any]] = {}
    for name in {**first, **second}:
        # Not named is what a subject takes in any size, or what it has no word for, and of that there is only one value.
        others = FIELDS[name] if len(FIELDS[name]) == 1 else ()
        values = [
            v for v in first.get(name, others or second.get(name, ())) if v in second.get(name, others or first.get(name, ()))
        ]
        if name == "alignment":
            values = list(first.get(name, second.get(name, ())))
        elif name == "biases" and not values:
            values = list(first.get(name, ()))
        shared[name] = tuple(values)
    empty = any(not values for values in shared.values()) or not any(fitting for _, fitting in fitting_heads(shared))
    return None if empty else shared


def clean_class_for(subject: Subject) -> type[MultiHeadAttention] | None:
    """The class of `attn` with most of the mechanisms of the subject, and no other; None if none shares a case with it."""

    def fitness(attention: type[MultiHeadAttention]) -> tuple[int, int]:
        supports = DECLARED[attention]
        shared = sum(bool(getattr(supports, name) and getattr(subject.supports, name)) for name in _MECHANISMS)
        return shared, -len(attention.__mro__)

    sharing = [attention for attention, supports in DECLARED.items() if shared_fields(subject.supports, supports)]
    return max(sharing, key=fitness, default=None)


def inside(case: Case, fields: Fields) -> bool:
    """Is the case one of these?"""
    return all(getattr(case, name) in values for name, values in fields.items())


def comparable(case: Case, supports: Supports) -> bool:
    """Does the subject agree with `attn` on what is right here?

    On the triangle of the flag where T != S, and on empty rows, it may have declared otherwise.
    """
    aligned = case.alignment == "bottom_right" or case.T == case.S or not has_flag(case)
    return aligned and (supports.empty_rows == "zero" or not has_empty_rows(case))
