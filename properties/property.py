"""A property: a law, what a subject must support for it to apply, and the cases it is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st

from properties.case import Case, cases, sample
from properties.subject import Subject

Law = Callable[[Subject, Case], None]


@dataclass(frozen=True, kw_only=True)
class Property:
    """`law(subject, case)` raises AssertionError, with evidence, if the subject breaks the law on the case."""

    law: Law
    needs: tuple[str, ...] = ()  # names of `Supports` that must be true
    where: Mapping[str, Collection[Any]] = field(default_factory=dict)  # values of the fields of `Case` it is about; others: all

    @property
    def name(self) -> str:
        return self.law.__name__

    @property
    def family(self) -> str:
        return self.law.__module__.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The law in words."""
        return (self.law.__doc__ or "").strip().partition("\n")[0]

    def not_applicable(self, subject: Subject) -> str | None:
        """Say why the law does not apply to the subject; None if it does."""
        lacking = [need for need in self.needs if not getattr(subject.supports, need)]
        if lacking:
            return f"the subject does not support {', '.join(lacking)}"
        empty = [name for name, values in self._fields(subject).items() if not values]
        return f"no {', '.join(empty)} that the subject supports" if empty else None

    def about(self, case: Case, subject: Subject) -> bool:
        """Is the case one that the law is about, and the subject declares?"""
        return all(getattr(case, name) in values for name, values in self._fields(subject).items())

    def cases(self, subject: Subject) -> st.SearchStrategy[Case]:
        """The cases that the law is about and the subject supports."""
        return cases(self._fields(subject))

    def sample(self, random: Random, subject: Subject) -> Case:
        """Draw one of these cases, without Hypothesis."""
        return sample(random, self._fields(subject))

    def _fields(self, subject: Subject) -> Mapping[str, Collection[Any]]:
        s = subject.supports
        declared: dict[str, Collection[Any]] = {"mask": s.masks, "encoding": s.encodings, "dtype": s.dtypes}
        if not s.cross_attention:
            declared["keys"] = (None,)
        if not s.grouped_heads:
            declared["num_kv_heads"] = (None,)
        if not s.bias:
            declared["bias"] = (False,)
        if not s.dropout:
            declared["dropout"] = (0.0,)
        fields = dict(self.where)
        for name, values in declared.items():
            fields[name] = [v for v in values if name not in fields or v in fields[name]]
        return fields
