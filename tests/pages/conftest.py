"""A real browser for the tests of the page; `tox run -e pages` has what they need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
ELSEWHERE = ("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",)
INSTALL = (sys.executable, "-m", "playwright", "install", "chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ADVICE = (
    "no Chromium could be started: install one (Debian, Ubuntu: apt-get install chromium; elsewhere: "
    "python -m playwright install --with-deps chromium) and run `tox run -e pages` again"
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium: one that is installed, Playwright's own, or, if the network allows, that one fetched now."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = _start(playwright)
        if found is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(ADVICE)
        yield found
        found.close()


def _start(playwright: Playwright) -> Browser | None:
    own = playwright.chromium.executable_path
    candidates = [path for name in NAMES if (path := shutil.which(name))]
    candidates += [path for path in (*ELSEWHERE, own) if Path(path).exists()]
    for path in candidates:
        if started := _launch(playwright, path):
            return started
    try:
        fetched = subprocess.run(INSTALL, capture_output=True, timeout=300).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _launch(playwright, own) if fetched else None


def _launch(playwright: Playwright, path: str) -> Browser | None:
    from playwright.sync_api import Error

    try:
        return playwright.chromium.launch(executable_path=path, headless=True, args=[*FLAGS])
    except Error:
        return None  # there, but it lacks a library, or is a stub that says where to get it
