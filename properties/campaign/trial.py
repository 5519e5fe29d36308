"""The work of a campaign of properties: one law, one subject, some seeds."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from properties.campaign.asked import Asked, source_of, sources
from properties.campaign.coverage import drawn
from properties.campaign.told import differences, printable
from properties.campaign.unit import Alive, Result
from properties.campaign.workers import not_longer_than, versions
from properties.case import Case
from properties.conformance import find
from properties.isolated import isolated
from properties.property import Property
from properties.report import FAILED, HELD, Finding
from properties.runner import judge
from properties.subject import Subject
from properties.time_limit import Patience

SEEDS = 20  # in a block
SHOWN = 3  # failures of a block that are kept with their case and evidence; all are counted
LEFT_TO_CHANCE = "; it does not fail every time: it is left to chance"
_LOST = "out of patience"


def about() -> dict[str, str]:
    """What every result depends on, besides the subject."""
    return {"versions": versions(), "laws": sources("properties", "properties.laws")}


def _evidence(law: Property, subject: Subject, case: Case, patience: Patience) -> str | None:
    """What is wrong on this case, if anything is."""
    try:
        found = judge(law, subject, case, patience)
        if found is None:
            return None
        again = found.hung or judge(law, subject, case, patience)
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, KeyboardInterrupt) and _may_be_interrupted():
            raise
        return f"it raised {type(error).__name__}: {error}"
    return found.evidence if again else found.evidence + LEFT_TO_CHANCE


def _may_be_interrupted() -> bool:
    """Can Ctrl-C reach this thread? Where it cannot, a KeyboardInterrupt is the subject's own."""
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


@dataclass(frozen=True)
class Trial:
    """Ask a law of a subject, on one case for each seed of a block; a slow law on the first seed alone."""

    asked: Asked
    law: str
    block: int
    time_limit: float
    about: dict[str, str] = field(default_factory=about)

    def __call__(self, alive: Alive) -> Result:
        law, subject, patience = find(self.law), self.asked.subject(), Patience(self.time_limit)

        def ask(case: Case) -> str | None:
            alive(2 * patience.seconds)
            return _evidence(law, subject, case, patience)

        return self._result(law, subject, ask)

    def differs(self) -> str:
        there, here = {**self.about, "source": self.asked.source}, {**about(), "source": source_of(self.asked.path)}
        return differences(here, there)

    def in_a_child(self) -> Result:
        law, subject, patience = find(self.law), self.asked.subject(), Patience(self.time_limit)

        def run(law: Property, tell: Callable[[Case], None]) -> Finding:
            not_longer_than(2 * patience.seconds)  # should there be nobody left who could stop it
            (case,) = cases
            tell(case)
            before = patience.seconds
            evidence = _evidence(law, subject, case, patience)
            status = HELD if evidence is None else FAILED
            return Finding(law, status, evidence=evidence or "", reason=_LOST if patience.seconds < before else "")

        cases: list[Case] = []

        def ask(case: Case) -> str | None:
            cases[:] = [case]
            (finding,) = isolated(run, [law], subject, patience)
            if finding.reason == _LOST:
                patience.lose()  # the child did, but its patience was its own
            return finding.evidence or None

        return self._result(law, subject, ask)

    def _result(self, law: Property, subject: Subject, ask: Callable[[Case], str | None]) -> Result:
        seeds = range(self.block * SEEDS, (self.block + 1) * SEEDS)
        cases = [law.sample(Random(f"{seed} {law.name}"), subject) for seed in (seeds[:1] if law.slow else seeds)]
        failed = [(repr(case), printable(evidence)) for case in cases if (evidence := ask(case))]
        return {
            "cases": len(cases),
            "failures": len(failed),
            "shown": failed[:SHOWN],
            "drawn": drawn(cases, self.asked.dtype),
        }
