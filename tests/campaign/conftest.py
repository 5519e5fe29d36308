"""What the tests of campaigns share, for pytest; the rest is in `running.py`."""

from __future__ import annotations

from running import command, module

__all__ = ["command", "module"]
