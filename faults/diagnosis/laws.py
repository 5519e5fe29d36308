"""Which laws a subject breaks, compared with those that a fault breaks, on the same cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from faults.diagnosis.candidates import Candidate
from faults.killers import names_of_killers
from properties.case import Case
from properties.property import Property
from properties.report import EXPECTED, FAILED, HELD, Finding
from properties.runner import judge
from properties.subject import Subject
from properties.time_limit import Patience

_DRAWN = 40  # cases drawn to find one on which the fault can show


@dataclass(frozen=True)
class Agreement:
    """Names of properties."""

    both: tuple[str, ...]  # fail on the subject and, on the same case, on the fault
    only_subject: tuple[str, ...]  # fail on the subject, and hold for the fault on that case
    only_fault: tuple[str, ...]  # fail on the fault, and hold for the subject on that case

    @property
    def share(self) -> float:
        number = len(self.both) + len(self.only_subject) + len(self.only_fault)
        return len(self.both) / number if number else 0.0

    @property
    def bear_it_out(self) -> bool:
        """Do most laws agree, and hardly any hold where the fault breaks them? Else the same numbers are a coincidence.

        A few may: those about hooks, or about what is kept, see how a thing is written, and not only what it computes.
        """
        return self.share >= 0.5 and len(self.only_fault) <= 2 + len(self.both) / 8


def failing(findings: Sequence[Finding]) -> dict[str, Finding]:
    """What failed, by name."""
    return {finding.property.name: finding for finding in findings if finding.status in (FAILED, EXPECTED)}


def likeness(findings: Sequence[Finding], candidate: Candidate) -> float:
    """How much the names of what failed have in common with those that are known to fail: nothing is run."""
    asked = {finding.property.name for finding in findings if finding.status in (HELD, FAILED, EXPECTED)}
    ours = failing(findings).keys()
    theirs = set().union(*map(names_of_killers, candidate.faults)) & asked
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 0.0


def agreement(subject: Subject, findings: Sequence[Finding], candidate: Candidate, patience: Patience) -> Agreement:
    """Ask both: on the cases on which the subject failed, and, where it held, on one on which the fault can show.

    Where both fail, and only one of them by raising, they have nothing in common: that is not counted at all.
    """
    fault = candidate.viewer.subject
    if not subject.supports.loads_weights:
        fault = replace(fault, supports=replace(fault.supports, loads_weights=False))
    known = set().union(*map(names_of_killers, candidate.faults))
    both: list[str] = []
    only_subject: list[str] = []
    only_fault: list[str] = []
    for finding in findings:
        law, found = finding.property, finding.counterexample
        if law.not_applicable(fault) or (law.slow and law.name not in known):
            continue
        if finding.status in (FAILED, EXPECTED) and found is not None:
            if law.about(found.case, fault):
                broken = judge(law, fault, found.case, Patience())
                if broken is None:
                    only_subject.append(law.name)
                elif _raised(broken.evidence) == _raised(found.evidence):
                    both.append(law.name)
        elif finding.status == HELD and law.name in known:
            case = _telling(law, subject, fault, candidate)
            if case is not None and judge(law, fault, case, Patience()) is not None:
                (both if judge(law, subject, case, patience) else only_fault).append(law.name)
    return Agreement(tuple(both), tuple(only_subject), tuple(only_fault))


def _raised(evidence: str) -> bool:
    return " raised " in evidence


def _telling(law: Property, subject: Subject, fault: Subject, candidate: Candidate) -> Case | None:
    """A case that the law asks of both, and on which the fault can show."""
    if law.not_applicable(subject):
        return None
    random = Random(law.name)
    drawn = (law.sample(random, subject) for _ in range(_DRAWN))
    return next((case for case in drawn if law.about(case, fault) and candidate.visible(case)), None)
