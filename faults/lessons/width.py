"""How wide text may be: as wide as the terminal, and no wider than can be read."""

from __future__ import annotations

import shutil
import sys

WIDTH = 100  # at most, and where it goes to no terminal
LEAST = 40


def width() -> int:
    """Columns of what is printed now."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(LEAST, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
