"""What was found out about a subject: structured, as text, and as plain data."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from properties.case import EXPLICIT, HIDING, Case
from properties.property import Property
from properties.runner import Counterexample
from properties.subject import Subject
from properties.unseen import Mistakes

HELD, FAILED, NOT_APPLICABLE, EXPECTED = STATUSES = ("held", "failed", "not applicable", "expected")
_WIDTH = 130


@dataclass(frozen=True)
class Finding:
    """What became of one property."""

    property: Property
    status: str  # of STATUSES; "expected" failed and was expected to
    reason: str = ""  # why it does not apply, or why the failure is expected
    evidence: str = ""  # of a failure: the two numbers that differ and where, or what else was wrong
    counterexample: Counterexample | None = None  # the smallest case of a failure
    cases: int = 0
    masked_cases: int = 0  # those among them in which some key is hidden
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        case = self.counterexample and repr(self.counterexample.case)
        return {
            "property": self.property.name,
            "family": self.property.family,
            "law": self.property.summary,
            "status": self.status,
            "reason": self.reason,
            "evidence": self.evidence,
            "counterexample": case,
            "reproduction": self.counterexample and self.counterexample.reproduction(),
            "cases": self.cases,
            "masked_cases": self.masked_cases,
            "seconds": round(self.seconds, 3),
        }


class Diagnosis(Protocol):
    """Which known mistake it is: made by the catalog, `faults.diagnosis`."""

    def as_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Report:
    """What became of all properties; `str()` of it is for reading, `as_dict()` for machines."""

    subject: Subject
    findings: tuple[Finding, ...]
    seconds: float
    printed: str = ""  # what the subject printed meanwhile
    diagnosis: Diagnosis | None = None  # if one was asked for

    @property
    def ok(self) -> bool:
        """Did nothing fail that was not expected to, and did anything apply?"""
        return not self.of(FAILED) and any(f.status != NOT_APPLICABLE for f in self.findings)

    def of(self, status: str) -> tuple[Finding, ...]:
        """The findings of this status."""
        return tuple(finding for finding in self.findings if finding.status == status)

    @property
    def mistakes(self) -> Mistakes:
        """The known mistakes that could be made here, and those that no property which applies would notice."""
        return Mistakes.of(self.subject, [f.property for f in self.findings if f.status in (HELD, FAILED, EXPECTED)])

    def raise_if_failed(self) -> None:
        """Raise AssertionError with the whole report unless it is `ok`."""
        if not self.ok:
            raise AssertionError(str(self))

    def as_dict(self) -> dict[str, Any]:
        mistakes = self.mistakes
        return {
            "subject": self.subject.name,
            "declared": self.subject.supports.declared(),
            "ok": self.ok,
            "counts": {status: len(self.of(status)) for status in STATUSES},
            "cases": sum(f.cases for f in self.findings),
            "masked_cases": sum(f.masked_cases for f in self.findings),
            "seconds": round(self.seconds, 3),
            "printed": self.printed,
            "known_mistakes": {"possible": len(mistakes.possible), "unseen": list(mistakes.unseen)},
            "diagnosis": self.diagnosis and self.diagnosis.as_dict(),
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def __str__(self) -> str:
        parts = [self._headline(), *([str(self.diagnosis)] if self.diagnosis else [])]
        parts += _in_common([f.counterexample.case for f in self.of(FAILED) if f.counterexample])
        parts += _failures(sorted(self.of(FAILED), key=_how_little_it_tells))
        if expected := self.of(EXPECTED):
            parts.append("\n".join(["Expected to fail, and did:", *(_entry(f.property.name, f.reason) for f in expected)]))
        if left_out := self.of(NOT_APPLICABLE):
            parts.append("\n".join(["Not applicable:", *_by_reason(left_out)]))
        parts += self._remarks()
        return "\n\n".join(parts)

    def _headline(self) -> str:
        ran = len(self.findings) - len(self.of(NOT_APPLICABLE))
        cases, masked = sum(f.cases for f in self.findings), sum(f.masked_cases for f in self.findings)
        expected = f", {len(self.of(EXPECTED))} failed as expected" if self.of(EXPECTED) else ""
        return (
            f"{self.subject.name}: {ran} properties ran, {len(self.of(HELD))} held, {len(self.of(FAILED))} failed{expected}; "
            f"{len(self.of(NOT_APPLICABLE))} did not apply\n"
            f"({cases:,} cases, {masked:,} of them with a mask that hides keys; {self.seconds:.1f} s)"
        )

    def _remarks(self) -> Iterator[str]:
        if self.subject.found:
            yield "\n".join(["Found by asking, and held to:", *(f"  {line}" for line in self.subject.found)])
        if any(f.cases for f in self.findings) and not any(f.masked_cases for f in self.findings):
            masks = ", ".join(self.subject.supports.masks)
            yield (
                f"No masked case took part: the masks declared are {masks}. Most mistakes are made with masks; if it takes any, "
                f"declare them."
            )
        mistakes = self.mistakes
        if mistakes.unseen:
            yield _entry(
                f"Of {mistakes.known} known mistakes {len(mistakes.possible)} can be made here, and of these "
                f"{len(mistakes.unseen)} would go unseen, for want of the properties that do not apply",
                ", ".join(mistakes.unseen),
                "",
            )
        if self.printed:
            first, *more = self.printed.splitlines()
            yield f"It printed {len(self.printed.splitlines())} lines, starting with: {first}" if more else f"It printed: {first}"


def _how_little_it_tells(finding: Finding) -> int:
    """Contracts first, they say what is wrong by themselves; the formula last, it only says that something is."""
    return {"contract": 0, "reference": 2}.get(finding.property.family, 1)


# What a case has that the simplest has not. What all failures have, their cause may need.
_TRAITS: tuple[tuple[Callable[[Case], bool], str], ...] = (
    (lambda case: case.num_heads > 1, "more than one head"),
    (lambda case: case.num_kv_heads is not None, "grouped key/value heads"),
    (lambda case: case.keys is not None, "keys that are not the queries"),
    (lambda case: case.batch > 1, "more than one sample"),
    (lambda case: case.mask in HIDING, "a mask that hides keys"),
    (lambda case: case.mask.startswith("is_causal"), "the causal flag"),
    (lambda case: case.mask.startswith("is_causal") and case.T != case.S, "T != S with the causal flag (causal_alignment?)"),
    (lambda case: case.mask in EXPLICIT and case.encoding != "bool", "a mask that is added to the scores"),
    (lambda case: case.mask in EXPLICIT and case.encoding == "bool", "a boolean mask (polarity?)"),
    (lambda case: case.bias, "biases"),
    (lambda case: case.dropout > 0, "dropout"),
)


def _in_common(cases: Sequence[Case]) -> Iterator[str]:
    shared = [trait for has, trait in _TRAITS if all(map(has, cases))]
    if len(cases) > 1 and shared:
        yield f"All {len(cases)} failures are on cases with {'; '.join(shared)}."


def _failures(findings: Iterable[Finding]) -> Iterator[str]:
    """Each failure with its law, case and numbers, and how to see it again; those that raised the same, by name only."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        same = finding.evidence if " raised " in finding.evidence else finding.property.full_name
        groups.setdefault(same, []).append(finding)
    for first, *others in groups.values():
        lines = [f"{first.property.summary}  [{first.property.full_name}]"]
        found = first.counterexample
        if found is None:
            lines.append(f"  {first.evidence}")
        else:
            lines += found.details()
        if others:
            lines.append(_entry("the same is raised in", ", ".join(other.property.full_name for other in others)))
        yield "\n".join(lines)


def _by_reason(findings: Iterable[Finding]) -> Iterator[str]:
    by_reason = sorted(findings, key=lambda finding: finding.reason)
    for reason, group in itertools.groupby(by_reason, key=lambda finding: finding.reason):
        yield _entry(reason, ", ".join(finding.property.name for finding in group))


def _entry(title: str, text: str, indent: str = "  ") -> str:
    return textwrap.fill(
        f"{title}: {text}", _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )
