"""The kill matrix as Markdown, in colour, and as JUnit's XML."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from faults import __main__ as command
from faults.colour import Paint, paint
from faults.fault import Fault, family_of
from faults.kills import Kill
from faults.matrix import Row
from faults.pages.markdown import summary
from faults.table import table, totals
from faults.testing import catalog_tests, problem_of
from properties.case import Case

ROOT = Path(__file__).parents[1]


def row(
    name: str, family: str, *killers: str, cases: int | None = 1, symptom: str = "silent", first: tuple[str, ...] = ()
) -> Row:
    kills = tuple(Kill(killer, 1, Case(queries=2), "off by 1") for killer in killers)
    return Row(name, family, "", "", symptom, cases, kills, first or killers[:1])


FELL = row("wrong-split-order", "lesson", "output_is_the_formula", "weights_are_the_formula", "rows_sum_to_one")
LATE = row("missing-contiguous", "lesson", "rows_sum_to_one", cases=7, symptom="loud", first=("rows_sum_to_one", "a", "b"))
STOOD = row("scale-by-d-model", "scale", cases=None)
UNMET = row("zero-scale", "scale", "rows_sum_to_one", cases=None)
RIGHT = row("attn.MultiHeadAttention", "attn", symptom="correct")
FLAGGED = row("dropped-key-bias", "equivalents", "rows_sum_to_one", symptom="correct")


# Markdown.


def test_the_summary_of_a_good_run() -> None:
    said = summary([RIGHT, FELL, LATE])
    assert "**2 of 2 faults killed** by " in said and "1 of 1 correct ones" in said and "As it should be." in said
    assert "| lesson | 2 | 2 | 1 | 1 |  | 1 | 2 |" in said  # of 1 and 3 killers
    assert "| `missing-contiguous` | lesson | 7 | `rows_sum_to_one` and 2 others |" in said
    assert "| `wrong-split-order` |" not in said, "it fell at once"
    assert "Survivors" not in said and "flagged" not in said


def test_the_summary_of_a_bad_run() -> None:
    said = summary([RIGHT, FLAGGED, FELL, STOOD, UNMET])
    assert "**1 of 3 faults killed**" in said and "1 of 2 correct ones" in said and "That should not be." in said
    survivors = said.partition("### Survivors")[2].partition("###")[0]
    assert "| `scale-by-d-model` | scale | " in survivors and "| `zero-scale` |" in survivors and "wrong-split" not in survivors
    assert "| `dropped-key-bias` | `rows_sum_to_one` | `Case(queries=2)` |" in said
    assert "| **all** | 3 | 1 |" in said
    assert "Each fell to the first random case." in said


def test_every_table_of_the_summary_has_its_columns() -> None:
    for block in summary([RIGHT, FLAGGED, FELL, LATE, STOOD]).split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1, lines


# Colour.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("choice", "stream", "environment", "on"),
    [
        ("auto", Terminal(), {}, True),
        ("auto", io.StringIO(), {}, False),
        ("auto", Terminal(), {"NO_COLOR": "1"}, False),
        ("auto", Terminal(), {"NO_COLOR": ""}, True),  # as https://no-color.org has it
        ("auto", Terminal(), {"TERM": "dumb"}, False),
        ("always", io.StringIO(), {"NO_COLOR": "1"}, True),  # who asks for it gets it
        ("never", Terminal(), {}, False),
    ],
)
def test_when_there_is_colour(choice: str, stream: io.StringIO, environment: dict[str, str], on: bool) -> None:
    assert paint(choice, stream, environment) == Paint(on)


def test_colour_adds_nothing_but_colour() -> None:
    faulty, correct = [FELL, LATE, STOOD], [RIGHT, FLAGGED]
    plain = table(faulty) + totals(faulty, correct, 1.0)
    coloured = table(faulty, Paint(True)) + totals(faulty, correct, 1.0, Paint(True))
    assert re.sub(r"\033\[[\d;]*m", "", coloured) == plain
    assert "\033" not in plain and coloured.count("\033[0m") == len(re.findall(r"\033\[[\d;]+m(?<!\033\[0m)", coloured))
    styles = set(re.findall(r"\033\[([\d;]+)m", coloured))
    assert styles == {"0", "1", "2", "1;31"}, "no colour that some background swallows"


def test_first_killed_and_held_are_told_apart() -> None:
    (line,) = [line for line in table([FELL], Paint(True)).splitlines() if "wrong-split-order" in line]
    assert "\033[1m    2\033[0m" in line  # the formula, which killed first
    assert re.search(r"0m    1\033\[2m    \.", line)  # rows, and a family that held
    (line,) = [line for line in table([STOOD], Paint(True)).splitlines() if "scale-by-d-model" in line]
    assert line.startswith("  \033[1;31mscale-by-d-model")
    assert "\033[1;31mSURVIVED: scale-by-d-model\033[0m" in totals([STOOD], [], 1.0, Paint(True))


@pytest.mark.parametrize(("option", "coloured"), [("always", True), ("never", False), ("auto", False)])
def test_the_option(option: str, coloured: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "rows", lambda *_: iter([FELL, RIGHT]))
    assert command.main(["run", "--colour", option]) == 0
    assert ("\033[" in capsys.readouterr().out) == coloured
    assert command.main(["--colour", option]) == 0
    assert ("\033[" in capsys.readouterr().out) == coloured


# JUnit.


def cases_of(folder: Path, *arguments: str) -> dict[str, tuple[str, bool]]:
    """Class, and whether it failed, of each test case in the XML."""
    xml = folder / "junit.xml"
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", str(xml), *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONWARNINGS": ""}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=environment)
    assert xml.exists(), done.stdout + done.stderr
    assert "PytestExperimentalApiWarning" not in done.stdout
    found = ElementTree.parse(xml).iter("testcase")
    return {case.get("name", ""): (case.get("classname", ""), case.find("failure") is not None) for case in found}


def test_a_fault_is_a_test_case_of_its_family(tmp_path: Path) -> None:
    chosen = "wrong-split-order or distance-the-other-way"
    assert cases_of(tmp_path, "--pyargs", "faults.testing", "-k", chosen) == {
        "wrong-split-order": ("faults.lesson", False),
        "distance-the-other-way": ("faults.relative", False),
    }


def test_the_catalog_itself_does_without_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; from faults.__main__ import catalog; print(len(catalog()))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 200


def test_a_law_is_a_test_case_too(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from own import Own\nfrom properties.testing import attention_tests\ntest_mine = attention_tests(Own)\n"
        "class Double(Own):\n    def forward(self, x, mask=None):\n        return 2 * super().forward(x, mask)\n"
        "test_double = attention_tests(Double)\n",
        encoding="utf-8",
    )
    (tmp_path / "conftest.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('few', max_examples=5, database=None, derandomize=True)\n"
        "settings.load_profile('few')\n",
        encoding="utf-8",
    )
    found = cases_of(tmp_path, "-k", "reference-output or permuted_tokens")
    assert found == {
        "test_mine[reference-output_is_the_formula]": ("test_mine", False),
        "test_mine[symmetry-permuted_tokens_give_permuted_rows]": ("test_mine", False),
        "test_double[reference-output_is_the_formula]": ("test_mine", True),
        "test_double[symmetry-permuted_tokens_give_permuted_rows]": ("test_mine", False),
    }


def test_the_tests_of_the_catalog_have_stable_names() -> None:
    (marks,) = [mark for mark in catalog_tests(["WrongSplitOrder"]).pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    assert [parameter.id for parameter in marks.args[1]] == ["lesson-wrong-split-order"]


def test_what_is_wrong_with_an_entry_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem_of("wrong-split-order") is None
    assert problem_of("dropped-key-bias") is None

    def glance(fault: type[Fault]) -> Row:
        return STOOD if family_of(fault) == "lesson" else UNMET

    monkeypatch.setattr("faults.testing.glance", glance)
    assert "no property fails on the first case" in (problem_of("wrong-split-order") or "")
    assert "on any random case" in (problem_of("zero-scale") or "")
    monkeypatch.setattr("faults.testing.check_correct", lambda *_, **__: FLAGGED.kills)
    assert "is right, and rows_sum_to_one fails on Case(queries=2)" in (problem_of("dropped-key-bias") or "")
