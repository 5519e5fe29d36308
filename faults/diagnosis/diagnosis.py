"""What is wrong with an attention, and which known mistake it is: `diagnose`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from faults.diagnosis.candidates import Candidate
from faults.diagnosis.domain import clean_class_for
from faults.diagnosis.laws import Agreement, agreement, failing, likeness
from faults.diagnosis.numbers import Comparison, Match
from faults.diagnosis.where import Departure, departure
from faults.fault import family_of, name_of, summary_of
from properties.conformance import CASES, check_attention
from properties.report import Report
from properties.time_limit import TIME_LIMIT, Patience

VERDICTS = {
    "correct": "correct, as far as can be told",
    "identified": "broken, and it computes what a known mistake computes",
    "combination": "broken, and it computes what two known mistakes together compute",
    "raises": "broken: it raises, on the same cases as a known mistake",
    "resembles": "broken; its numbers do not tell how, and the laws that it breaks are those that a known mistake breaks",
    "unknown": "broken, and by no known mistake",
}
SHOWN = 3  # answers
_ASKED = 10  # candidates that are asked for the laws that they break
_ALIKE = 0.4  # of the laws that either breaks, or of the places where either is wrong: below, nothing is said of it
_WIDTH = 118


@dataclass(frozen=True)
class Answer:
    """A known mistake, or two together, and how alike it is."""

    candidate: Candidate
    laws: Agreement
    match: Match | None = None  # None: the numbers could not be compared, or none was wrong

    @property
    def names(self) -> tuple[str, ...]:
        """The faults that this answer stands for: one, two together, or several that cannot be told apart."""
        return tuple(dict.fromkeys(name for c in (self.candidate, *self._twins) for name in (c.name,)))

    @property
    def _twins(self) -> tuple[Candidate, ...]:
        return () if self.match is None else self.match.twins

    @property
    def likely(self) -> bool:
        """Has it enough in common to be worth a look?"""
        return self.laws.share >= _ALIKE or (self.match is not None and self.match.share >= _ALIKE)

    def as_dict(self) -> dict[str, Any]:
        match = self.match
        numbers = match and {name: getattr(match, name) for name in ("same", "returned", "other", "one", "apart")}
        laws = {"both": self.laws.both, "only_subject": self.laws.only_subject, "only_fault": self.laws.only_fault}
        return {
            "faults": [name_of(fault) for fault in self.candidate.faults],
            "alike": list(self.names[1:]),
            "numbers": numbers,
            "laws": {key: list(names) for key, names in laws.items()},
        }


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found; `str()` of it is for reading, `as_dict()` for machines."""

    report: Report
    verdict: str  # of VERDICTS
    answers: tuple[Answer, ...] = ()  # the likeliest first
    departs: Departure | None = None
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "subject": self.report.subject.name,
            "verdict": self.verdict,
            "answers": [answer.as_dict() for answer in self.answers],
            "departs": self.departs and {"step": self.departs.step, "because": self.departs.because},
            "remarks": list(self.remarks),
            "failed": sorted(failing(self.report.findings)),
        }

    def __str__(self) -> str:
        return "\n\n".join(self._paragraphs())

    def _paragraphs(self) -> Iterator[str]:
        name = self.report.subject.name
        certain = self.verdict in ("identified", "combination", "raises")
        yield f"{name}: {VERDICTS[self.verdict]}."
        if certain:
            yield "\n".join(_described(self.answers[0]))
        if self.departs and not certain:
            yield _filled(f"Where it departs: {self.departs}.", "")
        if not certain:
            likely = [answer for answer in self.answers if answer.likely][:SHOWN]
            if likely:
                yield "The likest of the known mistakes" + (":" if self.verdict == "resembles" else ", which need not be it:")
            elif self.answers:
                yield "It resembles none of the known mistakes."
            for answer in likely:
                yield "\n".join(_described(answer))
        yield from (_filled(remark, "") for remark in self.remarks)


def diagnose(
    attention: object, *, cases: int = CASES, time_limit: float = TIME_LIMIT, in_processes: bool = False, **declared: Any
) -> Diagnosis:
    """Run the properties on an attention, and say which known mistake it is if any fails. The same every time.

    Args:
        attention: a class, a function of q, k and v, or a `Subject`, as for `properties.check_attention`.
        cases, time_limit, in_processes, declared: as for `properties.check_attention`.

    Raises ValueError or TypeError for what cannot be checked or declared; never for what the subject does.
    """
    return of_report(check_attention(attention, cases=cases, time_limit=time_limit, in_processes=in_processes, **declared))


def of_report(report: Report) -> Diagnosis:
    """Say which known mistake it is that a report is about."""
    subject, failed = report.subject, failing(report.findings)
    if not failed:
        return Diagnosis(report, "correct", remarks=tuple(_limits(report)))
    patience = Patience()
    attention = clean_class_for(subject)
    if attention is None:
        remark = "No class here has its mechanisms together, so its numbers were compared with those of no known mistake."
        return Diagnosis(report, "unknown", remarks=(remark,))
    if any("process died" in finding.evidence or "could only be stopped" in finding.evidence for finding in failed.values()):
        remark = "It brings down the process it runs in, so its numbers were not compared."
        return Diagnosis(report, "unknown", remarks=(remark,))
    met = [finding.counterexample.case for finding in failed.values() if finding.counterexample]
    compared = Comparison(subject, attention, met, patience)
    numbers = subject.supports.loads_weights
    matches = compared.matches() if numbers else []
    identical = [match for match in matches if match.identical]
    if identical:
        answers = _by_laws(report, [(m.candidate, m) for m in matches[:_ASKED]], patience)
        answers.sort(key=lambda a: (not (a.match and a.match.identical), a.match.one if a.match else 0, -a.laws.share))
        if not any(match.returned for match in identical):
            hints = dict.fromkeys(found.hint() for finding in failed.values() if (found := finding.counterexample))
            return Diagnosis(report, "raises", tuple(answers), remarks=tuple(filter(None, hints))[:1])
        verdict = "combination" if len(answers[0].candidate.faults) > 1 else "identified"
        return Diagnosis(report, verdict, tuple(answers))
    if numbers and compared.wrong:
        answers = _by_laws(report, [(m.candidate, m) for m in matches[:_ASKED]], patience)
        answers.sort(key=lambda a: -(a.laws.share + (a.match.share if a.match else 0.0)))
        return Diagnosis(report, "unknown", tuple(answers), departure(subject, compared.wrong, compared.right, patience))
    likely = sorted(compared.candidates, key=lambda candidate: -likeness(report.findings, candidate))[:_ASKED]
    answers = _by_laws(report, [(candidate, None) for candidate in likely], patience)
    if numbers:
        contradicted = {answer.candidate: compared.match(answer.candidate).apart for answer in answers}
        answers.sort(key=lambda a: (contradicted[a.candidate] > 0, -a.laws.share))
        remark = "On every case that can be compared its output, gradients and so on are right: what it breaks is something else."
    else:
        answers.sort(key=lambda a: -a.laws.share)
        remark = "Its weights cannot be set, so its numbers could not be compared; only which laws it breaks."
    answers = [answer for answer in answers if answer.laws.both]
    alike = answers and not (answers[0].laws.only_subject or answers[0].laws.only_fault)
    return Diagnosis(report, "resembles" if alike else "unknown", tuple(answers), remarks=(remark,))


def _by_laws(report: Report, found: Sequence[tuple[Candidate, Match | None]], patience: Patience) -> list[Answer]:
    return [
        Answer(candidate, agreement(report.subject, report.findings, candidate, patience), match) for candidate, match in found
    ]


def _limits(report: Report) -> Iterator[str]:
    mistakes = report.mistakes
    yield (
        f"None of {len(report.of('held'))} properties failed. Of {mistakes.known} known mistakes {len(mistakes.possible)} can be "
        f"made in what it declares, and {len(mistakes.unseen) or 'none'} of these would have gone unseen."
    )


def _described(answer: Answer) -> Iterator[str]:
    yield f"{answer.candidate.name}  ({', '.join(dict.fromkeys(family_of(fault) for fault in answer.candidate.faults))})"
    for fault in answer.candidate.faults:
        yield _filled(summary_of(fault))
    if answer.match is not None:
        yield _filled(_numbers(answer.match))
    if len(answer.names) > 1:
        yield _filled(f"not told apart from it by any case that was drawn: {', '.join(answer.names[1:])}")
    yield _filled(_laws(answer.laws))
    for fault in answer.candidate.faults:
        yield f"  to read on: python -m faults explain {name_of(fault)}"


def _numbers(match: Match) -> str:
    what = f": {_some(match.looks)}" if match.looks else ""
    compared = match.same + match.other + match.apart
    if match.identical and not match.returned:
        said = f"it raises, or returns nothing of use, in the same {match.same} comparisons{what}"
    elif match.identical:
        said = f"numbers: the same, rounding aside, in all {compared} comparisons in which it is wrong{what}"
    else:
        said = f"numbers: the same in {match.same} of {compared} comparisons in which either is wrong{what}"
    return f"{said}; in {match.one} more, only one of the two returns" if match.one else said


def _laws(laws: Agreement) -> str:
    parts = [f"laws: both break {len(laws.both)} on the same cases"]
    if laws.only_subject:
        parts.append(f"it alone {_some(laws.only_subject)}")
    if laws.only_fault:
        parts.append(f"the fault alone {_some(laws.only_fault)}")
    return "; ".join(parts)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _filled(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=2 * indent, break_on_hyphens=False)
