"""A new entry is told what is wrong with it before it is blessed, and what is made of the entries is made anew."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from faults import __main__ as command
from faults import commands
from faults.bless import bless
from faults.catalog import catalog
from faults.fault import Fault
from faults.lessons import review as module
from faults.lessons.review import review, words
from faults.matrix import Row
from properties.case import Case
from properties.laws import PROPERTIES

QUICK = ("reference", "symmetry", "rows", "decoding")  # families that find what is wrong here, and some that do not apply


@pytest.fixture(autouse=True)
def _few_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROPERTIES", tuple(p for p in PROPERTIES if p.family in QUICK))
    monkeypatch.setattr(module, "LOOKED_AT", 20)


class OverQueries(Fault):
    """Normalise over the queries."""

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = scores.softmax(dim=-2)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.T != 1 or case.S != 1


class Unspoilt(Fault):
    """Merge the heads one by one, which is right."""

    def merge_heads(self, heads: Tensor) -> Tensor:
        return torch.cat(heads.unbind(1), dim=-1)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads > 1


def with_visible(fault: type[Fault], visible: Callable[[Case], bool]) -> type[Fault]:
    """The same fault, another condition."""
    return type("Renamed", (Fault,), {**vars(fault), "visible": staticmethod(visible)})


def unwritten(case: Case) -> bool:
    raise NotImplementedError("Renamed.visible is not written: it is to be true")


def test_nothing_is_wrong_with_a_fault_that_is_one() -> None:
    exact = with_visible(OverQueries, visible=lambda case: case.S > 1 or case.T > 1)
    assert review(exact) == []


@pytest.mark.parametrize(
    ("visible", "message"),
    [
        (unwritten, "Renamed.visible is not written: it is to be true"),
        (lambda case: case.nothing, "visible.case. raises AttributeError: 'Case' object has no attribute 'nothing'"),
        (lambda case: False, "true for none of 2,000 random cases.\nThe smallest case found on which it differs"),
        (lambda case: True, r"visible.case. is true where nothing differs.* on Case\(\)\."),
        (
            lambda case: case.T > 1,
            r"visible.case. is false where a property fails: output_is_the_formula, on Case\(keys=2\): output",
        ),
    ],
)
def test_a_wrong_visible_is_told_with_its_case(visible: Callable[[Any], bool], message: str) -> None:
    (complaint,) = review(with_visible(OverQueries, visible))
    assert re.search(message, complaint), complaint


def test_what_nothing_kills_is_told_what_was_tried() -> None:
    (complaint,) = review(Unspoilt)
    first, tried, not_applicable, differs = complaint.splitlines()
    assert first == "no property kills it."
    applying = [p for p in PROPERTIES if p.family in QUICK and p.family != "decoding"]
    assert tried == f"Tried: {3 * len(applying)} cases of {len(applying)} properties, on all of which it is visible."
    assert "token_by_token_is_one_pass" in not_applicable and "(it has no cache)" in not_applicable
    assert differs.startswith("On none of 20 random cases does anything differ") and "`Equivalent`" in differs
    assert words(Unspoilt, [complaint]).startswith("unspoilt: not blessed\n  no property kills it.\n  Tried")


def test_what_is_visible_where_no_law_is_about_is_not_tried() -> None:
    rare = with_visible(Unspoilt, visible=lambda case: case.num_heads == 4 and case.keys is None and case.T == 1)
    (complaint,) = review(rare)
    assert "Not tried, since it is visible on none of 120 cases of theirs: " in complaint


def test_a_survivor_that_differs_is_shown_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kills", lambda *_: ())
    (complaint,) = review(OverQueries)
    last = complaint.splitlines()[-1]
    assert last.startswith("The smallest case found on which it differs from the clean attention: Case(")
    assert "What differs: the output, the returned weights" in last
    case = eval(last.partition(": ")[2].partition(". What")[0], {"Case": Case})
    assert sum((case.batch, case.T, case.S, case.num_heads, case.d_head)) == 6  # one field above the simplest case


class RaisesForTwo(Unspoilt):
    """Refuse two samples."""

    def merge_heads(self, heads: Tensor) -> Tensor:
        if heads.shape[0] == 2:
            raise RuntimeError("two are too many")
        return super().merge_heads(heads)


def test_a_survivor_that_raises_is_shown_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kills", lambda *_: ())
    (complaint,) = review(RaisesForTwo)
    assert complaint.endswith("Case(batch=2). It raises RuntimeError: two are too many.")


class DropsOthers(Fault):
    """Draw the weights to drop otherwise, which is nobody's mistake."""

    def drop(self, weights: Tensor) -> Tensor:
        kept = torch.rand_like(weights) >= self.dropout if self.training else torch.ones_like(weights)
        return weights * kept / (1 - self.dropout if self.training else 1)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0


def test_other_random_numbers_are_no_mistake_by_themselves() -> None:
    (complaint,) = review(DropsOthers)
    assert "What differs: the output in training" in complaint
    assert complaint.endswith("It may only draw other weights to drop, which by itself is no mistake.")


def test_the_command_blesses_nothing_that_was_objected_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(commands, "find", lambda name: Unspoilt)
    monkeypatch.setattr(commands, "check_entry", lambda fault: None)
    monkeypatch.setattr(commands, "review", lambda fault: ["visible(case) is wrong"])
    monkeypatch.setattr(commands, "bless", lambda *given: written.append(given))
    monkeypatch.setattr(commands, "write", lambda mistakes, keep: written.extend(mistakes))
    assert command.main(["bless", "unspoilt"]) == 1
    assert capsys.readouterr().err == "unspoilt: not blessed\n  visible(case) is wrong\n"
    assert written == []


def test_a_visible_that_is_not_written_is_said_by_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("faults.matrix.find", lambda name: with_visible(OverQueries, unwritten))
    monkeypatch.setattr(command, "all_names", lambda: ["renamed"])
    assert command.main(["--workers", "1"]) == 2
    assert "Renamed.visible is not written" in capsys.readouterr().err


ROW = Row("missing-scale", "scale", "score", "score: normalization", "silent", 1, ())


def test_the_page_on_strength_is_written_if_all_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "PAGE", tmp_path / "strength.md")
    commands.regenerate([ROW], changed=False)
    assert (tmp_path / "strength.md").read_text().startswith("# How strong")
    commands.regenerate(None, changed=False)
    assert "docs/strength.md: written\n" in capsys.readouterr().out


def test_otherwise_the_command_that_writes_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(commands.subprocess, "run", lambda command, **options: ran.append(command))
    monkeypatch.setattr(commands, "PAGES_OF_ENTRIES", {("catalog", "--write"): "docs/catalog.md"})
    readme = tmp_path / "README.md"
    readme.write_text("Here are 7 broken ones.", encoding="utf-8")
    monkeypatch.setattr(commands, "README", readme)
    commands.regenerate(None, changed=True)
    said = capsys.readouterr().out
    assert "`python -m faults strength --write`" in said
    assert "docs/catalog.md: rewritten\n" in said and "pages: " not in said
    assert f'README.md: left as it is; it says "7 broken ones", and there are {len(catalog())}: to be changed by hand\n' in said
    readme.write_text(f"Here are {len(catalog())} broken ones.", encoding="utf-8")
    assert ran == [[sys.executable, "-m", "faults", "catalog", "--write"]]
    commands.regenerate(None, changed=False)
    assert len(ran) == 1 and capsys.readouterr().out == ""


TWO = '''"""Two."""

from faults.fault import Fault


class One(Fault):
    """One."""


class Other(Fault):
    """Other."""
'''


def test_two_of_one_file_are_blessed_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two_in_a_file.py").write_text(TWO)
    monkeypatch.syspath_prepend(tmp_path)
    two = importlib.import_module("two_in_a_file")
    assert bless(two.One, {"Symptom": "Silent.\nVery.", "Smallest case": "Case()"})
    assert bless(two.Other, {"Symptom": "Loud."})
    written = (tmp_path / "two_in_a_file.py").read_text()
    first, second = written.split("class Other")
    assert '        Silent.\n        Very.\n\n    Smallest case:\n        Case()\n    """\n' in first
    assert '    Symptom:\n        Loud.\n    """\n' in second
