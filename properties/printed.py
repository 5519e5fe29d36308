"""What a subject prints, kept apart from what everybody else does."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _OfThisThread(io.TextIOBase):
    """Keeps what its own thread writes, and passes on what others do."""

    def __init__(self, before: Any) -> None:
        self.before, self.kept, self.thread = before, io.StringIO(), threading.get_ident()

    def write(self, text: str) -> int:
        to = self.kept if threading.get_ident() == self.thread else self.before
        return int(to.write(text))

    def flush(self) -> None:
        if threading.get_ident() != self.thread:
            self.before.flush()


@contextmanager
def keep_printed() -> Iterator[io.StringIO]:
    """Keep what this thread prints meanwhile."""
    before, ours = sys.stdout, _OfThisThread(sys.stdout)
    sys.stdout = ours
    try:
        yield ours.kept
    finally:
        sys.stdout = before
