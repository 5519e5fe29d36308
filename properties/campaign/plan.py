"""A campaign of properties: every law that applies, of every subject, round after round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from properties.campaign import trial
from properties.campaign.asked import Asked
from properties.campaign.engine import Budget, Progress, carry_out
from properties.campaign.store import Store
from properties.campaign.trial import SEEDS, Trial
from properties.campaign.unit import Job, Rounds, Unit, blocks
from properties.campaign.workers import Workers, processes
from properties.conformance import find
from properties.time_limit import TIME_LIMIT, Patience

KIND = "properties"


def run(
    file: str | Path,
    subjects: Mapping[str, Asked],
    *,
    seeds: tuple[int, int] | None = None,
    cases: int | None = None,
    seconds: float | None = None,
    only: str = "",
    leave_out: Mapping[str, Iterable[str]] | None = None,
    workers: Workers | None = None,
    time_limit: float = TIME_LIMIT,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Ask the laws of the subjects and keep the results in the file, until the seeds are through or the budget is used up.

    What the file has already is not done again: called again, it goes on. One case is asked for each subject, law and seed.

    Args:
        file: an SQLite database; it is made if it is not there.
        subjects: what to ask, from `asked`.
        seeds: the first, and the one behind the last; they are done in blocks of `SEEDS`. By default 0 and up.
        cases: stop after the round with which the file has so many of these.
        seconds: stop when they are over.
        only: ask only laws whose `family-name` contains this.
        leave_out: names of laws that are not asked, by the name of the subject; they are known to fail.
        workers: who does it; by default one process of this machine.
        time_limit: seconds that one case may take.
        tell: is called now and then with how far it is.

    Raises ValueError for arguments that do not fit, CampaignError if it cannot go on.
    """
    budget = Budget.of(seeds, cases, seconds)
    if not subjects:
        raise ValueError("no subjects are given")
    Patience(time_limit)  # which says what is wrong with it
    pairs = _pairs(subjects, only, leave_out or {})
    which = None if seeds is None else blocks(*seeds, SEEDS)

    def one(block: int) -> list[Job]:
        return [Job(Unit(asked.name, law, block), Trial(asked, law, block, time_limit)) for asked, law in pairs]

    with Store(Path(file), about()) as store, store.alone():
        store.take_subjects({name: asked.what for name, asked in subjects.items()})
        return carry_out(store, Rounds(one, which), workers or processes(1), budget, tell)


def about() -> dict[str, str]:
    """What a file of such a campaign is about, besides its subjects."""
    return {"kind": KIND, **trial.about()}


def _pairs(subjects: Mapping[str, Asked], only: str, leave_out: Mapping[str, Iterable[str]]) -> list[tuple[Asked, str]]:
    pairs = []
    for name, asked in subjects.items():
        known, without = set(leave_out.get(name, ())), replace(asked, laws=())
        laws = [law for law in map(find, asked.laws) if only in law.full_name and law.name not in known]
        # The slow ones first: the end of a round should not be one worker at a long unit, and the others at none.
        pairs += [(without, law.name) for law in sorted(laws, key=lambda law: not law.slow)]
    if not pairs:
        raise ValueError(f"no law applies{f' whose name has {only!r} in it' if only else ''}")
    return pairs
