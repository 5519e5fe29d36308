"""A property: a law, what a subject must support for it to apply, and the cases it is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st

from properties.case import FIELDS, Case, cases, fitting_heads, sample
from properties.subject import Subject

Law = Callable[[Subject, Case], None]


@dataclass(frozen=True, kw_only=True)
class Property:
    """`law(subject, case)` raises AssertionError, with evidence, if the subject breaks the law on the case."""

    law: Law
    needs: tuple[str, ...] = ()  # names of `Supports` that must be true
    where: Mapping[str, Collection[Any]] = field(default_factory=dict)  # values of the fields of `Case` it is about; others: all
    slow: bool = False  # takes as long as a hundred others

    @property
    def name(self) -> str:
        return self.law.__name__

    @property
    def family(self) -> str:
        return self.law.__module__.rpartition(".")[2]

    @property
    def full_name(self) -> str:
        """Family and name: what a property is chosen by."""
        return f"{self.family}-{self.name}"

    @property
    def summary(self) -> str:
        """The law in words."""
        return (self.law.__doc__ or "").strip().partition("\n")[0]

    def not_applicable(self, subject: Subject) -> str | None:
        """Say why the law does not apply to the subject; None if it does."""
        for need in self.needs:
            if not getattr(subject.supports, need):
                return subject.supports.lacks(need)
        fields = self._fields(subject)
        empty = [name for name, values in fields.items() if not values]
        if not empty and not any(fitting for _, fitting in fitting_heads(fields)):
            empty = ["num_kv_heads"]
        if empty == ["keys"]:
            return subject.supports.lacks("cross_attention")
        if empty == ["num_kv_heads"]:
            return subject.supports.lacks("grouped_heads")
        return f"it is about no {' and no '.join(empty)} that the subject supports" if empty else None

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
        """The values that the fields of a case may have, of every field that is restricted by the law or by the subject."""
        declared = subject.supports.fields()
        fields = {}
        for name in [*declared, *self.where]:
            usual = declared.get(name, FIELDS[name])
            fields[name] = [value for value in usual if value in self.where.get(name, usual)]
        return fields
