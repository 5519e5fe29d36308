"""Hand out the work, and keep what comes back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

from properties.campaign.store import Store
from properties.campaign.unit import CampaignError, Job, Rounds, Unit
from properties.campaign.workers import Workers, died, here, perform, versions

AHEAD = 2  # units handed out for each worker, so that none waits for the next one
TRIES = 3  # times that a unit is handed out while workers die; then it is done here, in a process of its own
_TICK = 0.5  # seconds

Answer = tuple[dict[str, Any], float, str]


@dataclass(frozen=True)
class Budget:
    """When to stop: after so many cases, those in the file counted, or so many seconds of this run; None: at the last round."""

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
    before: int  # cases that were in the file
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

    What is done does not depend on the workers: a budget of cases ends after a whole round, and only one of time within it.
    """
    run = _Run(store, workers, Progress(budget, store.cases()), tell)
    done = store.done()
    if isinstance(rounds, Sequence):
        run.progress.total = sum(job.unit not in done for jobs in rounds for job in jobs)
    try:
        for jobs in rounds:
            if run.over():
                break
            if budget.cases is not None:
                run.drain()
                if store.cases() >= budget.cases:
                    break
            for job in jobs:
                if job.unit not in done and not run.over():
                    run.hand_out(job)
        run.drain()
    finally:
        run.end()
    return run.progress


class _Run:
    def __init__(self, store: Store, workers: Workers, progress: Progress, tell: Callable[[Progress], None]) -> None:
        self.store, self.workers, self.progress, self.tell = store, workers, progress, tell
        self.executor: Executor | None = None
        self.out: dict[Future[Answer], Job] = {}
        self.again: deque[Job] = deque()
        self.tries: dict[Unit, int] = {}

    def over(self) -> bool:
        """Is the time up?"""
        seconds = self.progress.budget.seconds
        return seconds is not None and self.progress.seconds >= seconds

    def hand_out(self, job: Job) -> None:
        """Give the job to a worker, when one is free."""
        while len(self.out) >= self.workers.number * AHEAD or self.again:
            self._step()
        self._submit(job)

    def drain(self) -> None:
        """Wait for what is handed out."""
        while self.out or self.again:
            self._step()

    def end(self) -> None:
        for future in self.out:
            future.cancel()
        if self.executor is not None:
            self.executor.shutdown(wait=False)  # without `cancel_futures`, which not every executor has

    def _submit(self, job: Job) -> None:
        if self.executor is None:
            self.executor = self.workers.make()
        try:
            self.out[self.executor.submit(perform, job.work, here())] = job
        except BaseException as error:
            if not died(error):
                raise CampaignError(f"the workers take no more work: {type(error).__name__}: {error}") from error
            self._replace_executor()
            self.again.append(job)

    def _step(self) -> None:
        """Give again what was lost, and take what has come back, or wait a moment for it."""
        while self.again and len(self.out) < self.workers.number * AHEAD:
            self._retry(self.again.popleft())
        if not self.out:
            return
        finished, _ = wait(self.out, timeout=_TICK, return_when=FIRST_COMPLETED)
        broken = False
        for future in finished:
            job = self.out.pop(future)
            try:
                result, seconds, by = future.result()
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) or not died(error):
                    raise CampaignError(f"a worker cannot do {job.unit}: {type(error).__name__}: {error}") from error
                broken = broken or isinstance(error, BrokenExecutor)
                self.again.append(job)
            else:
                self._keep(job, result, seconds, by)
        if broken:
            self._replace_executor()
        self.tell(self.progress)

    def _retry(self, job: Job) -> None:
        self.progress.retries += 1
        self.tries[job.unit] = self.tries.get(job.unit, 1) + 1
        if self.tries[job.unit] <= TRIES:
            self._submit(job)
            return
        start = time.perf_counter()
        self._keep(job, job.work.in_a_child(), time.perf_counter() - start, versions())

    def _keep(self, job: Job, result: dict[str, Any], seconds: float, by: str) -> None:
        if by != versions():
            raise CampaignError(f"a worker has {by}, and here it is {versions()}: their results do not belong together")
        self.store.add(job.unit, result, seconds)
        self.progress.units += 1
        self.progress.cases += result["cases"]

    def _replace_executor(self) -> None:
        """Whatever else this one had is lost with it, if it is broken; the next one is made when there is work."""
        lost, self.out = list(self.out.items()), {}
        for future, job in lost:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._keep(job, *future.result())
            else:
                self.again.append(job)
        if self.executor is not None:
            self.executor.shutdown(wait=False)
        self.executor = None
