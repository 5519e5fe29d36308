"""The pieces that a campaign is cut into."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Alive = Callable[[float], None]  # said before every case: it is alive, and will be again in so many seconds
Result = dict[str, Any]  # of a unit, of what JSON has; "cases" is the number of cases that it took


class Unit(NamedTuple):
    """What is done at once, and never twice: some seeds, of one subject and one law."""

    subject: str
    law: str  # "": all of them
    block: int  # the seeds block * n, ..., (block + 1) * n - 1, where n is the same in the whole campaign


class Work(Protocol):
    """What a worker gets. It is pickled, so subjects and laws are in it by name. Its result depends on nothing else."""

    def __call__(self, alive: Alive) -> Result:
        """Do it in this process."""
        ...

    def differs(self) -> str:
        """What its result depends on and is different in this process from where it was handed out; "" if nothing is."""
        ...

    def in_a_child(self) -> Result:
        """Do it in processes of its own, because a worker has died of it: their death is a result."""
        ...


@dataclass(frozen=True)
class Job:
    """A unit, and what there is to do for it."""

    unit: Unit
    work: Work


@dataclass(frozen=True)
class Rounds:
    """All there is to do, made when it is its turn: each round asks every subject and law the same seeds."""

    jobs: Callable[[int], list[Job]]  # of a block
    blocks: range | None  # None: all there are, without end

    def __iter__(self) -> Iterator[list[Job]]:
        return map(self.jobs, itertools.count() if self.blocks is None else self.blocks)

    def left(self, done: Container[Unit]) -> int | None:
        """How many units are not done; None if there is no end of them."""
        return None if self.blocks is None else sum(job.unit not in done for jobs in self for job in jobs)


class CampaignError(Exception):
    """The campaign cannot go on: a file that does not fit, a worker that lacks something. Not a verdict about a subject."""


def blocks(first: int, last: int, size: int) -> range:
    """The blocks of the seeds from `first` up to, not including, `last`; ValueError if they cut one in two."""
    if not 0 <= first < last:
        raise ValueError(f"seeds must be FIRST:LAST with 0 <= FIRST < LAST, got {first}:{last}")
    if first % size or last % size:
        whole = f"{first // size * size}:{-(-last // size) * size}"
        raise ValueError(f"seeds are done {size} at a time, so that nothing is done twice: say {whole} instead of {first}:{last}")
    return range(first // size, last // size)
