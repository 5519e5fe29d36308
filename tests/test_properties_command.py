"""`python -m properties` checks, lists and says what it cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from properties import PROPERTIES
from properties.__main__ import main

MODULE = """
import torch
from own import Own
from properties import of_class

print("importing")

class Halved(Own):
    def forward(self, x, mask=None):
        print("calling")
        return super().forward(x, mask) / 2

def subject():
    return of_class(Own, name="made by a function")

A_SUBJECT = subject()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    sys.modules.pop("theirs", None)


def test_a_right_one_ends_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own:Own", "--cases", "3"]) == 0
    assert capsys.readouterr().out.startswith("own.Own: ")


def test_a_broken_one_ends_with_one_and_says_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "theirs:Halved", "--cases", "5", "--only", "rows-"]) == 1
    output = capsys.readouterr().out
    assert "2 failed" in output
    assert "If every value is the same vector" in output
    assert "properties.replay(properties.of_class(theirs.Halved), 'constant_values_come_back', properties.Case(" in output
    assert "importing" not in output


def test_json_is_json_whatever_the_subject_prints(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "theirs:Halved", "--cases", "3", "--only", "rows-", "--json"]) == 1
    data = json.loads(capfd.readouterr().out)
    assert data["subject"] == "theirs.Halved"
    assert data["printed"].startswith("calling")
    assert [found["property"] for found in data["findings"]] == [law.name for law in PROPERTIES if law.family == "rows"]


@pytest.mark.parametrize("name", ["subject", "A_SUBJECT"])
def test_a_subject_can_be_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"theirs:{name}", "--cases", "2", "--only", "symmetry"]) == 0
    assert capsys.readouterr().out.startswith("made by a function: ")


def test_declarations_and_expectations_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    declared = ["-d", "masks=none,causal", "-d", "empty_rows=nan", "-d", "d_heads=4,8", "-d", "floors={'float64': 'float32'}"]
    assert main(["check", "own:Own", "--cases", "3", *declared]) == 0
    laws = ("constant_values_come_back", "outputs_stay_among_the_values")
    expected = [part for law in laws for part in ("--expect", f"{law}=known since May")]
    assert main(["check", "theirs:Halved", "--cases", "5", "--only", "rows-", *expected]) == 0
    assert "constant_values_come_back: known since May" in capsys.readouterr().out


def test_a_black_box_is_asked_less(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own:Own", "--black-box", "--cases", "3"]) == 0
    assert "its weights cannot be set" in capsys.readouterr().out


def test_one_case_can_be_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own:Own", "--only", "rows-constant_values_come_back", "--case", "Case(queries=2)"]) == 0
    assert main(["check", "theirs:Halved", "--only", "rows-constant_values_come_back", "--case", "Case(queries=2)"]) == 1
    assert "breaks a law of attention" in capsys.readouterr().out


def test_the_properties_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out.count("\n    ") == len(PROPERTIES)
    assert main(["list", "--json"]) == 0
    assert [law["name"] for law in json.loads(capsys.readouterr().out)] == [law.name for law in PROPERTIES]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["own"], "'own' must be of the form module:name, like my_project.attention:MyAttention"),
        (["nowhere:Own"], "cannot import nowhere: No module named 'nowhere'"),
        (["own:Other"], "own has no Other; it has "),
        (["own:Own", "-d", "mask=none"], "-d mask=none: mask is nothing one can declare; there is masks, "),
        (["own:Own", "-d", "masks"], "'masks' must be of the form -d NAME=VALUE"),
        (["own:Own", "-d", "scale=1"], "-d scale=1: scale is a function; make a Subject in Python, and give its name"),
        (["own:Own", "-d", "masks=triangle"], "masks must be some of none, "),
        (["own:Own", "--expect", "rows_sum_to_one"], "'rows_sum_to_one' must be of the form --expect LAW=REASON"),
        (["own:Own", "--only", "nobody"], "only='nobody' is part of no property's name"),
        (
            ["own:Own", "--only", "rows-rows_sum_to_one", "--case", "Case(queries=0)"],
            "queries must be at least 1, got 0",
        ),
        (["own:Own", "--case", "Case()"], f"--only must be part of one name, and '' is part of {len(PROPERTIES)}"),
        (["own:Own", "--only", "rows_sum", "--case", "Case(oops"], "--case: 'Case(oops' must be of the form 'Case("),
        (["own:Own", "--only", "rows_sum", "--case", "Case(foo=1)"], "--case: "),
    ],
)
def test_what_it_cannot_do_it_says(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_it_runs_as_a_command() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "properties", "list"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, timeout=60)
    assert done.returncode == 0
