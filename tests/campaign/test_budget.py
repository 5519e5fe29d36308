"""How long a run goes on, and what it says meanwhile."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running import LONG, Command, here, rows

from properties.__main__ import main
from properties.campaign import asked, command, run
from properties.campaign.engine import Budget, Progress
from properties.campaign.told import duration

Module = Callable[[str], None]
SOURCE = """
import time
from own import Own

class Mine(Own):
    pass

class Slow(Own):
    def forward(self, x, mask=None):
        time.sleep(0.002)
        return super().forward(x, mask)
"""


@pytest.fixture(autouse=True)
def written(module: Module) -> None:
    module(SOURCE)


def test_cases_end_after_a_whole_round() -> None:
    subjects = asked("theirs:Mine", dtypes=("float64",))
    for cases, blocks in ((1, 1), (80, 1), (81, 2), (160, 2)):
        run(f"{cases}.db", subjects, cases=cases, only="dependence-", workers=here())
        assert [block for *_, block, _, _ in rows(Path(f"{cases}.db"))] == list(range(blocks)) * 4


def test_cases_of_other_subjects_do_not_count() -> None:
    run("it.db", asked("theirs:Slow", dtypes=("float64",)), cases=80, only="dependence-", workers=here())
    run("it.db", asked("theirs:Mine", dtypes=("float64",)), cases=80, only="dependence-", workers=here())
    assert len(rows(Path("it.db"))) == 8


def test_time_ends_within_a_round() -> None:
    start = time.monotonic()
    progress = run("it.db", asked("theirs:Slow", dtypes=("float64",)), seconds=0.5, only="dependence-", workers=here())
    assert 0.5 <= time.monotonic() - start < LONG
    assert 1 <= progress.units == len(rows(Path("it.db")))


def test_seeds_are_those_and_no_others() -> None:
    run("it.db", asked("theirs:Mine", dtypes=("float64",)), seeds=(40, 80), only="rows-", workers=here())
    assert {block for *_, block, _, _ in rows(Path("it.db"))} == {2, 3}


def test_a_block_does_not_depend_on_where_the_seeds_begin() -> None:
    subjects = asked("theirs:Mine", dtypes=("float64",))
    run("one.db", subjects, seeds=(20, 40), only="rows-", workers=here())
    run("all.db", subjects, seeds=(0, 40), only="rows-", workers=here())
    assert rows(Path("one.db")) == [row for row in rows(Path("all.db")) if row[2] == 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a budget: cases, seconds or seeds"),
        (["--cases", "0"], "argument --cases: must be a whole number, at least 1, got '0'"),
        (["--cases", "many"], "argument --cases: must be a whole number, at least 1, got 'many'"),
        (["--time", "0s"], "argument --time: must be a time like 90s, 30m or 1h30m, got '0s'"),
        (["--time", "-3"], "argument --time: "),
        (["--time", "soon"], "argument --time: must be a time like 90s, 30m or 1h30m, got 'soon'"),
        (["--seeds", "3"], "argument --seeds: must be FIRST:LAST, like 0:1000, got '3'"),
        (["--seeds", "5:45"], "seeds are done 20 at a time, so that nothing is done twice: say 0:60 instead of 5:45"),
        (["--seeds", "40:40"], "seeds must be FIRST:LAST with 0 <= FIRST < LAST, got 40:40"),
        (["--cases", "1", "--workers", "0"], "argument --workers: must be a whole number, at least 1, got '0'"),
        (["--cases", "1", "--workers", "2", "--dask", "tcp://a:1"], "argument --dask: not allowed with argument --workers"),
        (["--cases", "1", "--time-limit", "0"], "time_limit must be a positive number of seconds, got 0.0"),
        (["--cases", "1", "--only", "nobody"], "no law applies whose name has 'nobody' in it"),
        (["--cases", "1", "--leave-out", "nobody"], "nobody"),
        (["--cases", "1", "theirs:Nobody"], "theirs has no Nobody; it has "),
        (["--cases", "1", "theirs:Mine"], "theirs:Mine has a subject that goes by the name of another: theirs.Mine in "),
    ],
)
def test_what_does_not_fit_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = [argument for argument in arguments if argument.startswith("theirs")]
    options = [argument for argument in arguments if argument not in more]
    try:
        code = main(["campaign", "run", "it.db", "theirs:Mine", *more, *options])
    except SystemExit as error:
        code = error.code  # type: ignore[assignment]
    assert code == 2
    assert message in capsys.readouterr().err
    assert not Path("it.db").exists()


@pytest.mark.parametrize(("cases", "seconds"), [(0, None), (-1, None), (None, 0), (None, float("nan"))])
def test_a_budget_is_positive(cases: int | None, seconds: float | None) -> None:
    with pytest.raises(ValueError, match=f"{'cases' if seconds is None else 'seconds'} must be positive"):
        Budget.of(None, cases, seconds)


def test_the_rate_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress(Budget(cases=5000), before=1000, start=90.0)
    assert (progress.rate, progress.left) == (0.0, None)
    progress.cases, progress.units = 1000, 50
    assert (progress.rate, progress.left) == (100.0, 30.0)
    assert command.in_words(progress) == "2,000 of 5,000 cases, 100 a second, about 30 s left"
    progress.budget, progress.total, progress.retries = Budget(), 150, 3
    assert progress.left == 20.0  # 50 of 150 units took 10 s
    assert command.in_words(progress) == "2,000 cases, 50 of 150 units, 100 a second, 3 given again, about 20 s left"
    progress.budget, progress.total = Budget(seconds=3600.0), None
    assert progress.left == 3590.0
    progress.budget = Budget(seconds=5.0)
    assert progress.left == 0.0


def test_durations() -> None:
    spans = [45, 89.4, 90, 720, 5340, 11100, 90000]
    assert [duration(seconds) for seconds in spans] == ["45 s", "89 s", "2 min", "12 min", "89 min", "3 h 05 min", "25 h 00 min"]


LINE = r"\d[\d,]* of 160 cases, [\d,]+ a second, about \d+ s left"
RUN = ("run", "it.db", "theirs:Slow", "-d", "dtypes=float64", "--only", "dependence-", "--cases", "160", "--workers", "1")


def test_a_log_has_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "EVERY", 0.0)
    assert main(["campaign", *RUN]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert any(re.fullmatch(LINE, line) for line in lines), lines
    assert not any("\r" in line or "\033" in line for line in lines)


def test_a_terminal_has_one_line_that_changes(command: Command) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = command.start(*RUN, stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # so Linux says that nobody has the other end any more
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    out, _ = process.communicate(timeout=LONG)
    assert process.returncode == 0
    assert "no failure" in out
    lines = shown.decode().split("\r\033[K")
    assert lines[0] == lines[-1] == ""
    assert len(lines) >= 3
    assert all(re.fullmatch(r"\d[\d,]* of 160 cases, [\d,]+ a second(, about .* left)?", line) for line in lines[1:-1])
    assert "\n" not in shown.decode()
