"""The README shows what is so."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest

from faults.catalog import catalog, find
from faults.diagnosis import diagnose
from faults.lessons.explain import explain
from properties import PROPERTIES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_three_lines_are_those_of_the_example() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert block == (ROOT / "examples" / "own_attention" / "test_attention.py").read_text(encoding="utf-8")


def test_the_explanation_is_what_the_command_prints() -> None:
    printed = explain(find("wrong-merge-order")).splitlines()
    (shown,) = re.findall(r"-- explain wrong-merge-order\n\n(.*?)\n\n## ", README, flags=re.DOTALL)
    lines = [line.removeprefix("    ") for line in shown.splitlines()]
    assert {line for line in lines if line not in printed} == {"..."}


def test_it_counts_right() -> None:
    assert f"{len(catalog())} broken ones" in README
    assert f"{len(PROPERTIES)} properties" in README


def test_ci_runs_the_second_of_its_two_commands() -> None:
    commands = re.findall(r"^    (python3 -m venv .*)$", README, flags=re.MULTILINE)
    assert [command.rpartition(" -m ")[2] for command in commands] == ["tox run -e catalog", "tox"]
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "grep -m 1 ' -m tox$' README.md" in script.read_text(encoding="utf-8")


def test_the_diagnosis_is_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "own_attention"))
    found = diagnose(importlib.import_module("own_attention").BrokenSelfAttention, encodings=("bool",))
    (shown,) = re.findall(r"\$ python -m faults diagnose own_attention.*?\n\n(.*?)\n\n[A-Z]", README, flags=re.DOTALL)
    without_counts = (re.sub(r"\d+", "N", " ".join(text.split())) for text in (shown, str(found)))
    assert next(without_counts) == next(without_counts)
