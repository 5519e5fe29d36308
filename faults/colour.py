"""Colour for a terminal, or none: what matters is said by intensity, which is legible on dark and on light."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

CHOICES = ("auto", "always", "never")
_BOLD, _DIM, _BOLD_RED = "1", "2", "1;31"  # red is the one colour that both kinds of background leave legible as a warning


@dataclass(frozen=True)
class Paint:
    """How to write what; without colour, as it is."""

    on: bool = False

    def first(self, text: str) -> str:
        """What killed first."""
        return self._in(_BOLD, text)

    def killed(self, text: str) -> str:
        """What killed."""
        return text

    def held(self, text: str) -> str:
        """What did not, and what is by the way."""
        return self._in(_DIM, text)

    def wrong(self, text: str) -> str:
        """What should not be."""
        return self._in(_BOLD_RED, text)

    def _in(self, style: str, text: str) -> str:
        return f"\033[{style}m{text}\033[0m" if self.on and text.strip() else text


def paint(choice: str, stream: TextIO, environment: Mapping[str, str] = os.environ) -> Paint:
    """What was asked for; "auto": on a terminal that knows colours, unless NO_COLOR is set (https://no-color.org)."""
    if choice == "auto":
        able = stream.isatty() and environment.get("TERM") != "dumb"
        return Paint(able and not environment.get("NO_COLOR"))
    return Paint(choice == "always")
