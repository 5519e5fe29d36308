"""Running a property on a subject: on one case, or on as many as Hypothesis draws."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, settings

from properties.case import Case
from properties.property import Property
from properties.subject import Subject, seeded


@dataclass(frozen=True)
class Counterexample:
    """A case on which a subject breaks a law, and the evidence."""

    property: Property
    subject: Subject
    case: Case
    evidence: str

    def __str__(self) -> str:
        return f"{self.subject.name} breaks a law of attention: {self.property.summary}\n  on {self.case!r}\n  {self.evidence}"


def failure(property_: Property, subject: Subject, case: Case) -> str | None:
    """Run the law on one case; return the evidence if the subject breaks it, None if the law holds.

    Whatever the subject does, raising in the middle of a backward pass included, is a verdict about the subject.
    """
    if not property_.about(case, subject):
        raise ValueError(f"{property_.name} is not about {case!r}, or {subject.name} does not support it")
    try:
        with seeded(case.seed):  # dropout draws from torch's global generator: the same for the same case, and put back after it
            property_.law(subject, case)
    except AssertionError as error:
        return str(error)
    except Exception as error:
        return f"it raised {type(error).__name__}: {error}"
    return None


def check(property_: Property, subject: Subject) -> None:
    """Run the law on the cases that Hypothesis draws by the loaded profile; raise AssertionError with the smallest failure."""

    def law(case: Case) -> None:
        evidence = failure(property_, subject, case)
        if evidence is not None:
            raise AssertionError(str(Counterexample(property_, subject, case, evidence)))

    law.__name__ = property_.name  # what Hypothesis derandomizes by: each law is to have cases of its own
    settings(deadline=None)(given(case=property_.cases(subject))(law))()  # a slow subject is no wrong one


def falsify(property_: Property, subject: Subject, *, max_examples: int = 500) -> Counterexample | None:
    """Search for a case on which the subject breaks the law, and shrink it; None if there is none among `max_examples`.

    The same every time: it does not depend on the profile, on a seed, or on what was found before.
    """
    found: list[Counterexample] = []

    @settings(
        max_examples=max_examples,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=property_.cases(subject))
    def search(case: Case) -> None:
        evidence = failure(property_, subject, case)
        if evidence is not None:
            found.append(Counterexample(property_, subject, case, evidence))
            raise AssertionError

    try:
        search()
    except AssertionError:
        return found[-1]  # Hypothesis runs the smallest one last
    return None
