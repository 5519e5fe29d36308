"""What is wrong with an attention, and which known mistake it is: `diagnose`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from faults.diagnosis.candidates import Candidate
from faults.diagnosis.domain import clean_class_for
from faults.diagnosis.laws import Agreement, agreement, failing, likeness
from faults.diagnosis.numbers import Comparison, Match
from faults.diagnosis.told import paragraphs
from faults.diagnosis.where import Departure, departure
from faults.fault import name_of
from properties.conformance import CASES, check_attention
from properties.report import Report
from properties.time_limit import TIME_LIMIT, Patience

VERDICTS = {
    "correct": "correct, as far as can be told",
    "identified": "broken, and it computes what a known mistake computes",
    "combination": "broken, and it computes what two known mistakes together compute",
    "raises": "broken, and it raises where it is wrong",
    "resembles": "broken; its numbers do not tell how, and the laws that it breaks are those that a known mistake breaks",
    "unknown": "broken, and by no known mistake",
}
_ASKED = 10  # candidates that are asked for the laws that they break
_BY_LAWS = 4  # more, for the sake of the laws, if no numbers fit
_ALIKE = 0.4  # of these laws, or of the comparisons in which either is wrong: below, nothing is said of it


@dataclass(frozen=True)
class Answer:
    """A known mistake, or two together, and how alike it is."""

    candidate: Candidate
    laws: Agreement
    match: Match | None = None  # None: the numbers could not be compared, or none was wrong

    @property
    def names(self) -> tuple[str, ...]:
        """The faults that this answer stands for: one, two together, or several that cannot be told apart."""
        twins = () if self.match is None else self.match.twins
        return tuple(candidate.name for candidate in (self.candidate, *twins))

    @property
    def certain(self) -> bool:
        """Does it compute the same wherever it is wrong, and not only raise where it raises, and do the laws bear it out?"""
        match = self.match
        return match is not None and match.identical and match.one < match.returned and self.laws.bear_it_out

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

    @property
    def words(self) -> str:
        """The verdict in words."""
        return VERDICTS[self.verdict]

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
        return "\n\n".join(paragraphs(self))


def diagnose(
    attention: object, *, cases: int = CASES, time_limit: float = TIME_LIMIT, in_processes: bool = False, **declared: Any
) -> Diagnosis:
    """Run the properties on an attention, and say which known mistake it is if any fails. The same every time.

    Args:
        attention: a class, a function of q, k and v, or a `Subject`, as for `properties.check_attention`.
        cases, time_limit, in_processes, declared: as for `properties.check_attention`.

    Raises ValueError or TypeError for what cannot be checked or declared; never for what the subject does.
    """
    report = check_attention(attention, cases=cases, time_limit=time_limit, in_processes=in_processes, **declared)
    return of_report(report, time_limit)


def of_report(report: Report, time_limit: float = TIME_LIMIT) -> Diagnosis:
    """Say which known mistake it is that a report is about."""
    subject, failed = report.subject, failing(report.findings)
    if not failed:
        return Diagnosis(report, "correct")
    patience = Patience(time_limit)
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
    likely = sorted(compared.candidates, key=lambda candidate: -likeness(report.findings, candidate))[:_ASKED]
    if numbers and compared.wrong:
        asked = matches[:_ASKED]
        if not any(match.identical for match in matches):  # where numbers are left to chance, the laws may still tell
            known = {match.candidate for match in asked}
            asked += [compared.match(candidate) for candidate in likely[:_BY_LAWS] if candidate not in known]
        answers = _by_laws(report, [(match.candidate, match) for match in asked], patience)
        answers.sort(key=_rank)
        first = next(iter(answers), None)
        if first and first.certain:
            return Diagnosis(report, "combination" if len(first.candidate.faults) > 1 else "identified", tuple(answers))
        answers = [answer for answer in answers if len(answer.candidate.faults) == 1]  # two that are no answer are no hint
        if first and first.match and first.match.identical and not first.match.returned:
            return Diagnosis(report, "raises", tuple(answers))
        return Diagnosis(report, "unknown", tuple(answers), departure(subject, compared.wrong, compared.right, patience))
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


def _rank(answer: Answer) -> tuple[object, ...]:
    """What is certain first; of the others, what has most in common, numbers and laws together."""
    if answer.match is None:
        return (2, 0, -answer.laws.share)
    if answer.match.identical:
        return (not answer.certain, answer.match.one, -answer.laws.share)
    return (2, 0, -answer.laws.share - answer.match.share)
