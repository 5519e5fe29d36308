"""A campaign of faults: every fault, raced by all properties, round after round of seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from faults.campaign import race
from faults.campaign.race import SEEDS, Race
from faults.catalog import catalog, equivalents, find
from faults.fault import name_of
from properties.campaign import Progress, Workers, processes
from properties.campaign.engine import Budget, carry_out
from properties.campaign.store import Store
from properties.campaign.unit import Job, Rounds, Unit, blocks

KIND = "faults"
WITHIN = 350  # rounds: as many inputs as the published figures for other property tests go up to


def run(
    file: str | Path,
    faults: Iterable[str] = (),
    *,
    seeds: tuple[int, int] | None = None,
    cases: int | None = None,
    seconds: float | None = None,
    within: int = WITHIN,
    whole_rounds: bool = False,
    workers: Workers | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Race the properties to the first kill of each fault, for every seed, and keep the results in the file.

    What the file has already is not done again: called again, it goes on.

    Args:
        file: an SQLite database; it is made if it is not there.
        faults: their names; by default all of the catalog.
        seeds: the first, and the one behind the last; they are done in blocks of `SEEDS`. By default 0 and up.
        cases: stop after the round of seeds with which the file has so many cases of these.
        seconds: stop when they are over.
        within: cases of each property after which a fault has survived.
        whole_rounds: find all properties that kill at that number of cases, not only one. Takes ten times as long.
        workers: who does it; by default one process of this machine.
        tell: is called now and then with how far it is.

    Raises ValueError or LookupError for arguments that do not fit, CampaignError if it cannot go on.
    """
    budget = Budget.of(seeds, cases, seconds)
    if within < 1:
        raise ValueError(f"within must be at least 1, got {within!r}")
    chosen = list(dict.fromkeys(name_of(find(name)) for name in faults)) or list(catalog())
    if right := [name for name in chosen if name in equivalents()]:
        raise ValueError(f"{', '.join(right)} is an equivalent, which nothing kills")
    which = None if seeds is None else blocks(*seeds, SEEDS)

    def one(block: int) -> list[Job]:
        return [Job(Unit(name, "", block), Race(name, block, within, whole_rounds)) for name in chosen]

    with Store(Path(file), about(within, whole_rounds)) as store, store.alone():
        return carry_out(store, Rounds(one, which), workers or processes(1), budget, tell)


def about(within: int, whole_rounds: bool) -> dict[str, str]:
    """What a file of such a campaign is about."""
    return {"kind": KIND, **race.about(), "within": str(within), "whole rounds": str(whole_rounds)}
