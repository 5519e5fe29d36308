"""Where the work is done: anything that has the interface of `concurrent.futures.Executor`."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from properties.campaign.unit import CampaignError, Result, Work
from properties.printed import keep_printed

_GRACE = 10.0  # seconds over the time limit of a case, after which its process ends itself
_ANSWER = 10.0  # seconds that a scheduler has for it
_one_at_a_time = threading.Lock()  # torch's random numbers and its settings are those of the process


@dataclass(frozen=True)
class Workers:
    """A way to come by an executor; if its workers die and take it with them, it is made again."""

    make: Callable[[], Executor]
    number: int  # how many units are worked on at the same time, for all that is known


def processes(number: int) -> Workers:
    """Processes of this machine."""
    # Forked from a server that has torch and the properties loaded and runs nothing: a fork of this process could inherit a
    # lock that one of its threads holds.
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"

    def make() -> Executor:
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            from multiprocessing import forkserver, resource_tracker

            resource_tracker.ensure_running()  # which the server starts, too, and which lets interrupts through again
            context.set_forkserver_preload([__name__])
            with _no_interrupts():  # which it inherits, and so do those that are forked from it: Ctrl-C is for this process
                forkserver.ensure_running()
        pool = ProcessPoolExecutor(number, context, initializer=_begin)
        with _no_interrupts():  # one that is left half started complains
            for _ in range(number):  # they are started when there is work
                pool.submit(here)
        return pool

    return Workers(make, number)


@contextmanager
def dask(address: str) -> Iterator[Workers]:
    """The workers of a dask cluster, whose scheduler has this address; they need this package and what is asked."""
    try:
        from distributed import Client
    except ImportError:
        raise CampaignError("--dask needs the package distributed: pip install distributed") from None
    try:
        client = Client(address, timeout=_ANSWER, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise CampaignError(f"no dask scheduler answers at {address}: {error}") from None

    def make() -> Executor:
        until = time.monotonic() + _ANSWER
        while client.status == "connecting" and time.monotonic() < until:
            time.sleep(0.1)
        if client.status != "running":
            raise CampaignError(f"the dask scheduler at {address} is gone; what is done is kept, and the same command goes on")
        # pure=False: a unit that is given again is new work, not a question for what became of it the last time.
        executor: Executor = client.get_executor(pure=False)
        return executor

    try:
        number = sum(client.nthreads().values())
        if not number:
            raise CampaignError(f"the dask scheduler at {address} has no workers")
        yield Workers(make, number)
    finally:
        with contextlib.suppress(Exception):  # it is of no use any more, and perhaps its scheduler is not there
            client.close(timeout=_ANSWER if client.status == "running" else 0.1)


def died(error: BaseException) -> bool:
    """Is it not the work that failed, but whoever did it?"""
    # dask's KilledWorker: so many workers died of it that dask gives up. By its name, since dask need not be there.
    return broken(error) or type(error).__name__ == "KilledWorker"


def broken(error: BaseException) -> bool:
    """Is the executor lost with it?"""
    return isinstance(error, BrokenExecutor | CancelledError)


def end(executor: Executor, *, at_once: bool) -> None:
    """Let the executor go: what it has not begun, it need not do; if it is to end at once, what it has begun neither."""
    ours = list((getattr(executor, "_processes", None) or {}).values()) if at_once else []
    try:
        executor.shutdown(wait=False, cancel_futures=True)
    except TypeError:  # dask's has no such argument; it cancels them
        executor.shutdown(wait=False)
    for process in ours:  # as its terminate_workers does, from Python 3.14 on
        process.terminate()


def perform(work: Work, home: tuple[str, int]) -> tuple[Result, float]:
    """What a worker does: the work, alone in its process, with one thread. Return its result, and the seconds."""
    with _one_at_a_time:
        torch.set_num_threads(1)
        start = time.perf_counter()
        with contextlib.ExitStack() as stack:
            stack.enter_context(keep_printed())
            stack.callback(faulthandler.cancel_dump_traceback_later)
            result = work(not_longer_than if home != here() else lambda seconds: None)
        if differs := work.differs():
            raise CampaignError(f"a worker on {platform.node()} has {differs}: results of both do not belong together")
        return result, time.perf_counter() - start


def here() -> tuple[str, int]:
    """This process, among all machines."""
    return platform.node(), os.getpid()


def versions() -> str:
    """What the numbers of a result may depend on, besides what is asked."""
    return f"Python {platform.python_version()}, torch {torch.__version__}"


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait, for this thread and for all that it starts meanwhile."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def not_longer_than(seconds: float) -> None:
    """End this process if that is not called again in time: even compiled code that never returns is then a death like others."""
    faulthandler.dump_traceback_later(seconds + _GRACE, exit=True, file=sys.__stderr__ or sys.stderr)


def _begin() -> None:
    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what a subject prints would go between the lines that say how far it is
        os.dup2(nowhere, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the work
    # Without this, a worker outlives that process, if it is killed.
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)
