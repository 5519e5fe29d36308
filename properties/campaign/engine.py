"""Hand out the work, and keep what comes back."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

from properties.campaign.store import Store
from properties.campaign.unit import Alive, CampaignError, Job, Result, Rounds, Unit, Work
from properties.campaign.workers import Workers, broken, died, end, here, perform, processes

AHEAD = 2  # units handed out for each worker, so that none waits for the next one
TRIES = 3  # times that a unit is handed out while workers die; then it is given to one that has nothing else
_TICK = 0.5  # seconds

Answer = tuple[dict[str, Any], float]


@dataclass(frozen=True)
class Budget:
    """When to stop: after so many cases, those that are done already counted, or so many seconds of this run."""

    cases: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, seeds: object, cases: int | None, seconds: float | None) -> Budget:
        """The budget, if it is one; `seeds` are another way to give one."""
        if seeds is None and cases is None and seconds is None:
            raise ValueError("give a budget: cases, seconds or seeds")
        for name, given in (("cases", cases), ("seconds", seconds)):
            if given is not None and not given > 0:
                raise ValueError(f"{name} must be positive, got {given!r}")
        return cls(cases, seconds)


@dataclass
class Progress:
    """How far it is."""

    budget: Budget
    before: int = 0  # cases of what was asked for so far that were in the file
    units: int = 0  # of this run
    cases: int = 0
    retries: int = 0
    total: int | None = None  # units of this run, if that is known
    start: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    @property
    def rate(self) -> float:
        """Cases a second."""
        return self.cases / max(self.seconds, 1e-9)

    @property
    def left(self) -> float | None:
        """About how many seconds are left; None if nobody knows."""
        left = [] if self.budget.seconds is None else [self.budget.seconds - self.seconds]
        if self.budget.cases is not None and self.cases:
            left.append((self.budget.cases - self.before - self.cases) / self.rate)
        if self.total is not None and self.units:
            left.append((self.total - self.units) * self.seconds / self.units)
        return max(0.0, min(left)) if left else None


def carry_out(store: Store, rounds: Rounds, workers: Workers, budget: Budget, tell: Callable[[Progress], None]) -> Progress:
    """Do every unit of the rounds that is not done, until the budget is used up.

    What is done does not depend on the workers, nor on where an earlier run was stopped: a budget of cases ends after a whole
    round, and counts those of the rounds up to it alone. Only one of time ends within a round.
    """
    done = store.done()
    run = _Run(store, workers, Progress(budget, total=rounds.left(done)), tell)
    try:
        for jobs in rounds:
            if run.over():
                break
            if budget.cases is not None:
                run.drain()
                if run.progress.before + run.progress.cases >= budget.cases:
                    break
            run.progress.before += sum(done.get(job.unit, 0) for job in jobs)
            for job in jobs:
                if job.unit not in done and not run.over():
                    run.hand_out(job)
        run.drain()
    except BaseException:
        run.end(at_once=True)
        raise
    run.end(at_once=False)
    return run.progress


@dataclass(frozen=True)
class _InAChild:
    """The same work, in processes of its own."""

    work: Work

    def __call__(self, alive: Alive) -> Result:
        return self.work.in_a_child()

    def differs(self) -> str:
        return self.work.differs()

    def in_a_child(self) -> Result:
        return self.work.in_a_child()


class _Hands:
    """An executor, made when there is work for it, and the jobs that it has."""

    def __init__(self, workers: Workers, room: int) -> None:
        self.workers, self.room = workers, room
        self.executor: Executor | None = None
        self.out: dict[Future[Answer], Job] = {}

    def full(self) -> bool:
        return len(self.out) >= self.room

    def submit(self, job: Job, work: Work) -> None:
        if self.executor is None:
            self.executor = self.workers.make()
        self.out[self.executor.submit(perform, work, here())] = job

    def end(self, *, at_once: bool) -> dict[Future[Answer], Job]:
        """Let the executor go; return what it still had. If there is more work, another one is made."""
        lost, self.out = self.out, {}
        if self.executor is not None:
            end(self.executor, at_once=at_once)
            self.executor = None
        return lost


class _Run:
    def __init__(self, store: Store, workers: Workers, progress: Progress, tell: Callable[[Progress], None]) -> None:
        self.store, self.progress, self.tell = store, progress, tell
        self.all = _Hands(workers, workers.number * AHEAD)
        # When a pool of processes breaks, nobody knows of which unit. What was there too often is tried alone, and not here: a
        # process that dies should not be the one that hands out the work, nor one that has threads be forked.
        self.one = _Hands(processes(1), 1)
        self.again: deque[Job] = deque()
        self.deaths: Counter[Unit] = Counter()

    def over(self) -> bool:
        """Is the time up?"""
        seconds = self.progress.budget.seconds
        return seconds is not None and self.progress.seconds >= seconds

    def hand_out(self, job: Job) -> None:
        """Give the job to a worker, when one is free."""
        self._give_again()
        while self.all.full():
            self._step()
        self._submit(self.all, job, job.work)

    def drain(self) -> None:
        """Wait for what is handed out."""
        while self.all.out or self.one.out or self.again:
            self._step()

    def end(self, *, at_once: bool) -> None:
        for hands in (self.all, self.one):
            hands.end(at_once=at_once)

    def _submit(self, hands: _Hands, job: Job, work: Work) -> None:
        try:
            hands.submit(job, work)
        except (KeyboardInterrupt, CampaignError):
            raise
        except BaseException as error:
            if not died(error):
                raise CampaignError(f"the workers take no more work: {type(error).__name__}: {error}") from error
            self._lost(job)
            self._replace(hands)

    def _step(self) -> None:
        """Give again what was lost, and take what has come back, or wait a moment for it."""
        self._give_again()
        if not self.all.out and not self.one.out:
            return
        finished, _ = wait([*self.all.out, *self.one.out], timeout=_TICK, return_when=FIRST_COMPLETED)
        for hands in (self.all, self.one):
            errors = [self._take(hands.out.pop(future), future) for future in finished & hands.out.keys()]
            if any(error and broken(error) for error in errors):
                self._replace(hands)
        self.tell(self.progress)

    def _take(self, job: Job, future: Future[Answer]) -> BaseException | None:
        """Keep the result, or plan to do the job again; return what its worker died of, if it did."""
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            self._keep(job, *future.result())
        elif died(error):
            self._lost(job)
        elif isinstance(error, KeyboardInterrupt | CampaignError):
            raise error
        else:
            raise CampaignError(f"a worker cannot do {job.unit}: {type(error).__name__}: {error}") from error
        return error

    def _lost(self, job: Job) -> None:
        self.deaths[job.unit] += 1
        self.again.append(job)

    def _give_again(self) -> None:
        waiting, self.again = self.again, deque()
        for job in waiting:
            deaths = self.deaths[job.unit]
            hands = self.all if deaths < TRIES else self.one
            if hands.full():
                self.again.append(job)
                continue
            if deaths > TRIES + 1:
                raise CampaignError(f"whatever process does {job.unit}, it dies")
            self.progress.retries += 1
            self._submit(hands, job, job.work if deaths <= TRIES else _InAChild(job.work))

    def _replace(self, hands: _Hands) -> None:
        """Take another executor. Whatever else the broken one had is lost with it, if it is not done."""
        for future, job in hands.end(at_once=True).items():
            if future.done() and not future.cancelled() and future.exception() is None:
                self._keep(job, *future.result())
            else:
                self._lost(job)

    def _keep(self, job: Job, result: dict[str, Any], seconds: float) -> None:
        self.store.add(job.unit, result, seconds)
        self.progress.units += 1
        self.progress.cases += result["cases"]
