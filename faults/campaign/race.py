"""The work of a campaign of faults: one fault, some seeds; of each seed, which properties are the first to kill it, and when.

Every property draws cases of its own, as a test would. A round is one case of each; the fault is killed in the first round in
which some property fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from faults.catalog import find
from faults.fault import Fault, subject_of
from faults.killers import known_killers, telling_first
from properties.campaign import trial
from properties.campaign.asked import sources
from properties.campaign.told import differences
from properties.campaign.unit import Alive, Result
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import failure
from properties.time_limit import TIME_LIMIT

SEEDS = 10  # in a block


def about() -> dict[str, str]:
    """What every result depends on."""
    return {**trial.about(), "catalog": sources("attn", "faults")}


@dataclass(frozen=True)
class Race:
    """Race the properties to the first kill of a fault, for each seed of a block."""

    fault: str
    block: int
    within: int  # rounds, after which the fault has survived
    whole: bool  # ask the last round of every property, and not only up to the first that fails
    about: dict[str, str] = field(default_factory=about)

    def __call__(self, alive: Alive) -> Result:
        fault = find(self.fault)
        laws = in_order(fault)
        races = [self._race(fault, laws, seed, alive) for seed in range(self.block * SEEDS, (self.block + 1) * SEEDS)]
        return {"cases": sum(cases for *_, cases in races), "seeds": [[number, killers] for number, killers, _ in races]}

    def differs(self) -> str:
        return differences(about(), self.about)

    def in_a_child(self) -> Result:
        raise RuntimeError(f"workers die of {self.fault}, which no fault of the catalog should do")

    def _race(self, fault: type[Fault], laws: list[Property], seed: int, alive: Alive) -> tuple[int | None, list[str], int]:
        """The round of the first kill, None if there is none; who kills in it; how many cases were put to a law."""
        subject, asked = subject_of(fault), 0
        randoms = {law.name: Random(f"{seed} {law.name}") for law in laws}
        for number in range(1, self.within + 1):
            killers = []
            for law in laws:
                case = law.sample(randoms[law.name], subject)
                if not fault.visible(case):
                    continue  # no property fails there: `tests/test_catalog.py` holds every fault to that
                alive(TIME_LIMIT)
                asked += 1
                if failure(law, subject, case) is not None:
                    killers.append(law.name)
                    if not self.whole:
                        break
            if killers:
                return number, killers, asked
        return None, [], asked


def in_order(fault: type[Fault]) -> list[Property]:
    """The properties that apply, in the order in which they are asked: those first that are quick and known to kill it.

    In which round it is killed does not depend on the order, only how soon that is found out.
    """
    known = telling_first(known_killers(fault))
    laws = [*known, *(law for law in PROPERTIES if law not in known)]
    return sorted((law for law in laws if not law.not_applicable(subject_of(fault))), key=lambda law: law.slow)
