"""What the tests of campaigns share: other packages, files of results, commands in processes of their own."""

from __future__ import annotations

import importlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from properties.campaign.asked import _made, _subjects, source_of
from properties.campaign.workers import Workers

ROOT = Path(__file__).parents[2]
LONG = 120.0  # seconds that anything may take on a busy machine; conditions are waited for, so none takes them


def needed(name: str) -> Any:
    """The package; without it the test is skipped, but not where everything is to be tested."""
    advice = f"{name} is not installed: `tox run -e campaign` has it"
    if os.environ.get("CI") and find_spec(name) is None:
        pytest.fail(advice)
    return pytest.importorskip(name, reason=advice)


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait for it."""
    end = time.monotonic() + LONG
    while not (found := true()):
        if time.monotonic() > end:
            pytest.fail(f"waited {LONG:g} seconds for {what}")
        time.sleep(0.02)
    return found


def rows(file: Path) -> list[tuple[Any, ...]]:
    """All that is in a file, but for what the clock says."""
    if not file.exists():
        return []
    database = sqlite3.connect(file)
    try:
        return database.execute("SELECT subject, law, block, cases, result FROM units ORDER BY 1, 2, 3").fetchall()
    except sqlite3.OperationalError:  # it is not begun
        return []
    finally:
        database.close()


def alive(group: int) -> list[int]:
    """The processes of this group that have not ended; one that nobody has waited for has."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


class Here(Executor):
    """Does everything in `submit`; after so many units it is interrupted."""

    def __init__(self, units: int | None = None) -> None:
        self.left = units

    def submit(self, do: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left = None if self.left is None else self.left - 1
        future: Future[Any] = Future()
        try:
            future.set_result(do(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future


def here(units: int | None = None) -> Workers:
    return Workers(lambda: Here(units), 1)


def _may_be_interrupted() -> None:
    """Take interrupts, even if the tests run in the background, where they are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Command:
    """`python -m properties campaign ...` in a directory, in a group of processes of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.started = directory, list[subprocess.Popen[str]]()

    def start(self, *arguments: object, package: str = "properties", **options: Any) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", package, "campaign", *map(str, arguments)],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
            start_new_session=True,
            preexec_fn=_may_be_interrupted,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        self.started.append(process)
        return process

    def run(self, *arguments: object, package: str = "properties") -> tuple[int, str, str]:
        """The exit code, and what it printed and complained of."""
        process = self.start(*arguments, package=package)
        out, err = process.communicate(timeout=LONG)
        return process.returncode, out, err


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path)
    yield made
    for process in made.started:
        try:
            os.killpg(process.pid, 9)
        except ProcessLookupError:
            continue
        process.wait()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write `theirs.py`, with this source, where it will be found; any other by this name is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT), str(ROOT / "tests"), *sys.path])

    def write(source: str) -> None:
        (tmp_path / "theirs.py").write_text(source)
        sys.modules.pop("theirs", None)
        importlib.invalidate_caches()
        _subjects.cache_clear()
        _made.cache_clear()
        source_of.cache_clear()

    return write
