"""A run that is stopped, however, goes on with nothing lost and nothing done twice; a report can be had of any state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import Command, alive, here, rows, until

from properties.campaign import CampaignError, asked, run
from properties.campaign.store import Store
from properties.campaign.summary import Summary
from properties.campaign.unit import Unit

LOGGED = """
import os, sys, time
from pathlib import Path
from own import Own

LOG = str(Path(__file__).with_name("log"))

class Logged(Own):
    def forward(self, x, mask=None):
        frame = sys._getframe()
        while frame and frame.f_code.co_name != "_result":
            frame = frame.f_back
        if frame:
            trial = frame.f_locals["self"]
            file = os.open(LOG, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
            os.write(file, f"{trial.law} {trial.block}\\n".encode())
            os.close(file)
            time.sleep(0.003)
        return super().forward(x, mask)
"""
TASK = ("theirs:Logged", "-d", "dtypes=float64", "--only", "dependence-", "--seeds", "0:40", "--workers", "2")
UNITS = 8

Module = Callable[[str], None]


def logged(directory: Path) -> list[tuple[str, int]]:
    """The law and the block of everything that the subject was asked."""
    log = directory / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(law, int(block)) for law, block in map(str.split, lines)]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_killed_at_any_moment_it_goes_on(command: Command, module: Module, tmp_path: Path) -> None:
    module(LOGGED)
    file, whole = tmp_path / "killed.db", tmp_path / "whole.db"
    moments = (
        (os.killpg, file.exists),
        (os.kill, lambda: logged(tmp_path)),
        (os.killpg, lambda: len(rows(file)) > 0),
        (os.kill, lambda: len(rows(file)) > 2),
        (os.killpg, lambda: len(rows(file)) > 4),
    )
    before: list[tuple[object, ...]] = []
    for kill, moment in moments:
        process = command.start("run", file, *TASK, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        asked_before = len(logged(tmp_path))
        until(lambda: moment() or process.poll() is not None, "the moment to kill it")  # noqa: B023
        assert process.poll() is None, "it ended before it could be killed"
        kill(process.pid, signal.SIGKILL)
        until(lambda: not alive(process.pid), "the workers to end by themselves")  # noqa: B023
        assert not {(law, block) for _, law, block, *_ in before} & set(logged(tmp_path)[asked_before:])
        now = rows(file)
        assert set(before) <= set(now)
        before = now
    asked_before = len(logged(tmp_path))
    assert len(before) < UNITS, "all was done before it could be killed: the test has to be slower"
    code, out, err = command.run("run", file, *TASK)
    assert code == 0, err
    assert "no failure" in out
    assert not {(law, block) for _, law, block, *_ in before} & set(logged(tmp_path)[asked_before:])
    command.run("run", whole, *TASK)
    assert len(rows(whole)) == UNITS
    assert rows(file) == rows(whole)


HANGS = """
import itertools, multiprocessing, os, signal, traceback
from pathlib import Path
from own import Own

class Hangs(Own):
    def forward(self, x, mask=None):
        if "_result" in [frame.name for frame in traceback.extract_stack(limit=30)]:
            if not multiprocessing.current_process().daemon:
                os.kill(os.getpid(), signal.SIGKILL)
            Path(__file__).with_name("hangs").touch()
            sum(itertools.repeat(1))  # in C, and lets no other thread run
        return super().forward(x, mask)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_what_hangs_in_a_process_of_its_own_ends_with_the_run_that_is_killed(
    command: Command, module: Module, tmp_path: Path
) -> None:
    module(HANGS)
    task = ("theirs:Hangs", "-d", "dtypes=float64", "--only", "every_query_counts", "--cases", "1", "--time-limit", "0.5")
    process = command.start("run", "it.db", *task, "--workers", "1", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: (tmp_path / "hangs").exists() or process.poll() is not None, "the case that hangs")
    process.kill()
    until(lambda: not alive(process.pid), "all of it to end")


class _Interrupted(dict[str, str]):
    def items(self) -> Any:
        raise KeyboardInterrupt


def test_a_file_is_begun_at_once_or_not_at_all(tmp_path: Path) -> None:
    """Tables that do not say what they are about would be taken for those of another campaign."""
    file = tmp_path / "it.db"
    with pytest.raises(KeyboardInterrupt):
        Store(file, _Interrupted())
    with pytest.raises(CampaignError, match="is empty"):
        Store(file)
    with Store(file, {"kind": "test"}) as store:
        assert store.about == {"kind": "test"}


def test_a_reader_sees_one_state(tmp_path: Path) -> None:
    file = tmp_path / "it.db"
    with Store(file, {"kind": "test"}) as store:
        store.take_subjects({"a": "A"})
        store.add(Unit("a", "law", 0), {"cases": 1}, 0.1)
        with Store(file) as reader:
            store.take_subjects({"b": "B"})
            store.add(Unit("b", "law", 0), {"cases": 1}, 0.1)
            assert [unit.subject for unit, *_ in reader.results()] == [*reader.subjects()] == ["a"]
        with Store(file) as reader:
            assert [unit.subject for unit, *_ in reader.results()] == [*reader.subjects()] == ["a", "b"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_where_nothing_can_be_written_that_is_said(module: Module, tmp_path: Path) -> None:
    module(LOGGED)
    closed = tmp_path / "closed"
    closed.mkdir()
    subjects = asked("theirs:Logged", dtypes=("float64",))
    run(closed / "it.db", subjects, cases=1, only="dependence-", workers=here())
    closed.chmod(0o555)
    try:
        assert Summary.of(closed / "it.db").units == 4, "it can be read all the same"
        for name in ("it.db", "other.db"):
            with pytest.raises(CampaignError, match=f"closed/{name} is no file of a campaign, or cannot be written: "):
                run(closed / name, subjects, cases=1000, only="dependence-", workers=here())
    finally:
        closed.chmod(0o755)


@pytest.mark.parametrize("units", [1, 4, 6, 7])
def test_a_budget_of_cases_reached_by_going_on_is_the_same(units: int, module: Module, tmp_path: Path) -> None:
    """Stopped in its last round, a run may have as many cases as were asked for, but not of the whole round."""
    module(LOGGED.replace("time.sleep(0.003)", "pass"))
    subjects = asked("theirs:Logged", dtypes=("float64",))
    at_once, later = tmp_path / "at_once.db", tmp_path / "later.db"
    run(at_once, subjects, cases=100, only="dependence-", workers=here())
    assert len(rows(at_once)) == UNITS
    with pytest.raises(KeyboardInterrupt):
        run(later, subjects, cases=100, only="dependence-", workers=here(units))
    kept = len(rows(later))
    assert units - 2 <= kept <= units
    assert run(later, subjects, cases=100, only="dependence-", workers=here()).units == UNITS - kept
    assert rows(later) == rows(at_once)
    assert run(later, subjects, cases=100, only="dependence-", workers=here()).units == 0


@pytest.mark.parametrize("moment", ["at the beginning", "in the middle"])
def test_interrupted_from_the_keyboard_it_says_how_to_go_on(
    moment: str, command: Command, module: Module, tmp_path: Path
) -> None:
    module(LOGGED)
    file = tmp_path / "it.db"
    process = command.start("run", file, *TASK[:-4], "--seeds", "0:2000", "--workers", "2")
    until(file.exists if moment == "at the beginning" else lambda: rows(file) or process.poll(), moment)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"what is done is in {file}, and the same command goes on" in err
    assert "Traceback" not in err
    if Path("/proc/self/stat").exists():
        until(lambda: not alive(process.pid), "all of it to end")
    assert not file.with_name("it.db-lock").exists()


def test_while_it_runs_there_is_a_report_but_no_second_run(command: Command, module: Module, tmp_path: Path) -> None:
    module(LOGGED)
    file = tmp_path / "it.db"
    task = (*TASK[:-4], "--seeds", "0:20000")
    process = command.start("run", file, *task, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: rows(file), "the first unit")
    code, out, err = command.run("report", file, "--json")
    assert code == 0, err
    assert json.loads(out)["units"] >= 1
    code, out, err = command.run("run", file, *task)
    assert (code, out) == (2, "")
    assert f"another run is adding to {file}" in err
    code, out, err = command.run("merge", file, file.with_name("other.db"))
    assert code == 2
    assert process.poll() is None
    assert "Traceback" not in err


def test_a_report_before_anything_is_done(command: Command, module: Module, tmp_path: Path) -> None:
    module(LOGGED)
    subjects, file = asked("theirs:Logged", dtypes=("float64",)), tmp_path / "it.db"
    with pytest.raises(KeyboardInterrupt):
        run(file, subjects, cases=1, only="dependence-", workers=here(0))
    code, out, err = command.run("report", file)
    assert (code, err) == (0, "")
    assert "nothing was asked yet" in out


@pytest.mark.parametrize("part", ["report", "run", "merge"])
def test_what_is_no_file_of_a_campaign_is_refused(
    part: str, module: Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from properties.__main__ import main

    module(LOGGED)
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("cases: 12\n" * 100)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "good.db", asked("theirs:Logged", dtypes=("float64",)), cases=1, only="dependence-", workers=here(0))
    behind = {"report": [], "run": ["theirs:Logged", "--cases", "1", "--workers", "1"], "merge": ["good.db"]}[part]
    expected = {
        "text.db": "is no file of a campaign, or cannot be written",
        ".": "is no file of a campaign, or cannot be written",
    }
    expected["no/such.db"] = "is not there" if part == "report" else "there is no directory no"
    if part == "report":
        expected |= {"empty.db": "is empty", "no.db": "is not there"}
    for file, message in expected.items():
        assert main(["campaign", part, file, *behind]) == 2
        assert message in capsys.readouterr().err
    assert (tmp_path / "text.db").read_text() == "cases: 12\n" * 100
