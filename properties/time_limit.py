"""An end to calls that have none."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TIME_LIMIT = 20.0  # seconds for one case: the slowest law takes a hundredth of it on a layer as fast as torch's
LEAST = 1.0


class OutOfTime(BaseException):
    """The time is up. Not an Exception, so that a subject which catches those does not go on."""


class Patience:
    """How long one case may take. A subject that has hung is given half as long the next time, but never less than `LEAST`."""

    def __init__(self, seconds: float = TIME_LIMIT) -> None:
        if not isinstance(seconds, int | float) or not seconds > 0:
            raise ValueError(f"time_limit must be a positive number of seconds, got {seconds!r}")
        self.seconds = seconds

    def lose(self) -> None:
        self.seconds = max(self.seconds / 2, min(self.seconds, LEAST))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in what runs inside for longer.

    In the main thread by an alarm, which also ends a sleep or a wait for a lock. Elsewhere, and where there are no alarms, as
    soon as the next line of Python is reached. Neither reaches into compiled code that does not return.
    """
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        with _alarm(seconds):
            yield
    else:
        with _thrown_from_outside(seconds):
            yield


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def up(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    pending, interval = signal.getitimer(signal.ITIMER_REAL)
    if 0 < pending <= seconds:  # somebody else's alarm is nearer
        yield
        return
    start = time.monotonic()
    handler = signal.signal(signal.SIGALRM, up)
    signal.setitimer(signal.ITIMER_REAL, seconds, LEAST)  # again and again, for a subject that catches everything
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if pending:
            signal.setitimer(signal.ITIMER_REAL, max(pending - (time.monotonic() - start), 1e-3), interval)


@contextmanager
def _thrown_from_outside(seconds: float) -> Iterator[None]:
    thread = ctypes.c_ulong(threading.get_ident())
    over = threading.Event()

    def watch() -> None:
        wait = seconds
        while not over.wait(wait):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(OutOfTime))
            wait = LEAST

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
