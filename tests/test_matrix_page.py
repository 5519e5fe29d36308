"""The matrix page as a file: that it is complete in itself, says what was measured, and is the same on every machine."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import faults
from faults import __main__ as command
from faults.catalog import catalog
from faults.fault import family_of
from faults.kills import Kill
from faults.lessons.worked import Drawn
from faults.matrix import Row, glance
from faults.pages import command as report
from faults.pages.facts import Entry, entry, facts
from faults.pages.lesson import Picture, found, picture, pictures, tidy
from faults.pages.matrix_page import matrix_page
from properties.case import Case
from properties.laws import PROPERTIES

NAME = "wrong-merge-order"


@pytest.fixture(scope="module")
def measured() -> list[Entry]:
    return [entry(NAME, look=glance), entry("dropped-key-bias", look=glance)]


@pytest.fixture(scope="module")
def told(measured: list[Entry]) -> dict[str, Any]:
    return facts(measured)


class Elements(HTMLParser):
    """The scripts, styles and data of a page, and every attribute that could make a browser ask for something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.asks: list[tuple[str, str | None]] = []
        self.policy = ""
        self._in = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.asks += [
            (name, value)
            for name, value in attrs
            if name in ("src", "href", "srcset", "action", "style") or name.startswith("on")
        ]
        if given.get("http-equiv"):
            self.policy = given.get("content") or ""
        self._in = (given.get("id") or tag) if tag in ("script", "style") else ""

    def handle_data(self, data: str) -> None:
        if self._in:
            self.texts[self._in] = self.texts.get(self._in, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._in = ""


# The file.


def test_it_needs_nothing_besides_itself(told: dict[str, Any]) -> None:
    elements = Elements(matrix_page(told))
    assert set(elements.texts) == {"style", "script", "facts"}
    assert elements.asks == [("href", "#matrix")]
    code = elements.texts["style"] + elements.texts["script"]
    assert "://" not in code.replace("https:\\/\\/", "") and "@import" not in code and "url(" not in code
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import|eval)\b\s*\(", elements.texts["script"])


def test_the_browser_is_told_to_run_this_and_nothing_else(told: dict[str, Any]) -> None:
    elements = Elements(matrix_page(told))
    assert elements.policy.startswith("default-src 'none'; ")
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(elements.texts[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in elements.policy


def test_nothing_in_the_facts_ends_the_element_they_stand_in(measured: list[Entry]) -> None:
    row = dataclasses.replace(measured[0].row, kills=(Kill(PROPERTIES[0].name, 1, Case(), "</script><!--<script> {{style}}"),))
    elements = Elements(matrix_page(facts([dataclasses.replace(measured[0], row=row)])))
    assert json.loads(elements.texts["facts"])["faults"][0]["kills"]["0"][2] == "</script><!--<script> {{style}}"


def test_it_is_the_same_every_time_and_on_every_machine(told: dict[str, Any]) -> None:
    page = matrix_page(told)
    assert page == matrix_page(facts([entry(NAME, look=glance), entry("dropped-key-bias", look=glance)]))
    for place in (str(Path(faults.__file__).parents[1]), sys.prefix, str(Path.home())):
        assert place == "/" or place not in page
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", page)


def test_names_can_stand_in_html_as_they_are() -> None:
    plain = re.compile(r"[a-z0-9_ -]+")
    words = [*catalog(), *map(family_of, catalog().values()), *(p.name for p in PROPERTIES), *(p.family for p in PROPERTIES)]
    assert [word for word in words if not plain.fullmatch(word)] == []


# The facts.


def test_what_was_measured_is_told(measured: list[Entry], told: dict[str, Any]) -> None:
    row = measured[0].row
    (fault,) = told["faults"]
    names = [p["name"] for p in told["properties"]]
    assert {names[n] for n in fault["kills"]} == {kill.property for kill in row.kills}
    assert tuple(names[n] for n in fault["first"]) == row.first
    kill = row.kills[0]
    assert fault["kills"][names.index(kill.property)] == [kill.cases, repr(kill.case), kill.evidence]
    assert (fault["symptom"], fault["drawn"], fault["step"]) == ("silent", row.cases, "merge_heads")
    assert told["numbers"] == {
        "faults": 1,
        "killed": 1,
        "silent": 1,
        "properties": len(PROPERTIES),
        "at_once": int(row.cases == 1),
        "drawn": row.cases,
        "alone": 0,
        "correct": 1,
        "flagged": [],
    }
    assert len(told["smallest"]) == 1 and told["smallest"][0] in fault["kills"]


def test_what_does_not_apply_is_told_with_the_reason(told: dict[str, Any]) -> None:
    (fault,) = told["faults"]
    why = {told["properties"][n]["name"]: told["reasons"][reason] for n, reason in fault["not_applicable"].items()}
    assert "cache" in why["requests_do_not_see_each_other"]
    assert "output_is_the_formula" not in why
    assert not set(fault["not_applicable"]) & set(fault["kills"])


def test_the_lesson_is_told(told: dict[str, Any]) -> None:
    lesson = told["faults"][0]["lesson"]
    assert lesson["summary"].startswith("Merge the heads with one `reshape`")
    assert lesson["why"].startswith("Nothing complains") and "\n" not in lesson["why"]
    assert "It never shows with " in lesson["missed"]
    assert all(line.startswith("https://") for line in lesson["seen"]) and lesson["seen"]
    assert any(line.startswith("+") and "heads.reshape" in line for line in lesson["diff"])
    assert "should be" in lesson["found"]["evidence"] and "properties.replay(" in lesson["found"]["again"]
    assert any(drawn["differs"] for drawn in lesson["pictures"])


def test_a_law_behind_the_formula_explains_it(measured: list[Entry]) -> None:
    fault, row = catalog()[NAME], measured[0].row
    shown = found(fault, row, Case(queries=2, num_heads=2))
    assert shown is not None and shown.property == "weights_explain_the_output" and shown.case == "Case(queries=2, num_heads=2)"
    as_measured = found(fault, row, Case())  # on which it cannot show
    assert as_measured is not None and as_measured.case in {repr(kill.case) for kill in row.kills}
    survivor: Row = dataclasses.replace(row, kills=())
    assert found(fault, survivor, Case(queries=2, num_heads=2)) is None


# Tensors.


def drawn(right: list[list[float]], wrong: list[list[float]] | None) -> Picture:
    def fixed(numbers: list[list[float]]) -> tuple[tuple[float, ...], ...]:
        return tuple(map(tuple, numbers))

    return picture(Drawn("heads", ("a", "b", "c"), ("0", "1"), fixed(right), None if wrong is None else fixed(wrong)))


def test_numbers_have_as_many_digits_as_their_neighbours() -> None:
    shown = drawn([[1.0, -0.25], [-0.0, math.inf]], [[1.0, -0.125], [math.nan, -math.inf]])
    assert shown.right == (("1.000", "−0.250"), ("0.000", "∞"))
    assert shown.wrong == (("1.000", "−0.125"), ("NaN", "−∞"))
    assert drawn([[1.0]], None).right == (("1.0",),)
    assert drawn([[0.00001234567, 1e20]], None).right == (("0.00001", "1e+20"),)


def test_what_only_stands_in_a_wrong_place_is_said_to_belong_elsewhere() -> None:
    shown = drawn([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]], [[1.0, 3.0], [9.0, 4.0], [4.0, 0.0]])
    assert shown.differs == ((0, 1), (1, 0), (2, 0))
    assert shown.sources == (((0, 1), (1, 0)), ((2, 0), (1, 1)))


def test_a_number_that_could_come_from_two_places_comes_from_none() -> None:
    shown = drawn([[1.0], [1.0], [5.0]], [[5.0], [5.0], [1.0]])
    assert shown.sources == (((0, 0), (2, 0)), ((1, 0), (2, 0)))


def test_one_number_that_stands_elsewhere_too_may_do_so_by_chance() -> None:
    shown = drawn([[1.0, 2.0], [3.0, 4.0]], [[1.0, 3.0], [3.0, 4.0]])
    assert shown.differs == ((0, 1),) and shown.sources == ()
    shown = drawn([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[2.0, 1.0], [7.1, 7.2], [7.3, 7.4]])
    assert len(shown.differs) == 6 and shown.sources == ()


def test_colours_are_those_of_the_rows_that_were_handed_in() -> None:
    heads = Drawn("heads", ("h0", "h1"), ("0", "1"), ((1.0, 2.0), (3.0, 4.0)), ((1.0, 2.0), (3.0, 4.0)))
    merged = Drawn("merged", ("t0", "t1"), ("0", "1"), ((1.0, 3.0), (2.0, 4.0)), ((1.0, 2.0), (9.0, 4.0)))
    output = Drawn("output", ("t0",), ("0",), ((7.0,),), ((8.0,),))
    first, second, third = pictures([heads, merged, output])
    assert (first.coloured, first.hues) == ("handed", ((0, 0), (1, 1)))
    assert (second.coloured, second.hues, second.wrong_hues) == ("handed", ((0, 1), (0, 1)), ((0, 0), (None, 1)))
    assert (third.coloured, third.hues) == ("", ())


def test_or_of_its_own_rows_if_numbers_only_moved() -> None:
    (shown,) = pictures([Drawn("rows", ("a", "b", "c"), ("0",), ((1.0,), (2.0,), (3.0,)), ((2.0,), (1.0,), (3.0,)))])
    assert (shown.coloured, shown.hues, shown.wrong_hues) == ("rows", ((0,), (1,), (2,)), ((1,), (0,), (2,)))


def test_a_step_that_raised_has_only_a_right_side() -> None:
    shown = drawn([[math.nan]], None)
    assert shown.right == (("NaN",),) and shown.wrong is None and shown.differs == ()
    assert drawn([[math.nan]], [[math.nan]]).differs == ()


def test_evidence_names_no_place_of_this_machine() -> None:
    assert tidy("in /opt/some/lib/torch/nn.py at 0x7f00aa, [B, T/h/2], https://a.org/b/c/d") == (
        "in .../nn.py at 0x..., [B, T/h/2], https://a.org/b/c/d"
    )
    assert tidy('File "/usr/lib/python3/site.py"') == 'File ".../site.py"'
    assert tidy("wrong\n\nadvice") == "wrong"
    assert tidy("x" * 600) == "x" * 500 + " ..."


# The command.


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "matrix.html"
    assert command.main(["report", "--html", str(path), "--workers", "1", "CausalFlagSticks"]) == 0
    assert f"{path} written" in capsys.readouterr().err
    assert json.loads(Elements(path.read_text(encoding="utf-8")).texts["facts"])["faults"][0]["name"] == "causal-flag-sticks"


def test_names_come_in_the_order_of_the_catalog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Faults of a family stand below one heading, whatever order they are named in."""
    asked: list[list[str]] = []
    monkeypatch.setattr(report, "entries", lambda names, *given: asked.append(names) or iter(()))
    monkeypatch.setattr(report, "facts", lambda *given: {})
    monkeypatch.setattr(report, "matrix_page", lambda told: "")
    given = ["wrong-merge-order", "zero-scale", "wrong-split-order", "WrongMergeOrder"]
    command.main(["report", "--html", str(tmp_path / "matrix.html"), *given])
    assert asked == [["wrong-split-order", "wrong-merge-order", "zero-scale"]]


def test_both_ways_of_counting_are_explained_where_they_meet(told: dict[str, Any]) -> None:
    page = matrix_page(told)
    assert "A red mark: " in page and "Its 1st, 2nd, 3rd case: " in page
    assert "it is about none" not in page


def test_what_raises_elsewhere_is_told_so() -> None:
    (fault,) = facts([entry("context-accumulated-in-place", look=glance)])["faults"]
    assert fault["lesson"]["symptom"] == "An ordinary call is right; under autocast it raises."
    assert "Nothing is raised" not in fault["lesson"]["missed"]


def test_the_command_says_at_once_what_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "entries", lambda *_: pytest.fail("measured for nothing"))
    assert command.main(["report", "--html", str(tmp_path / "none" / "matrix.html"), NAME]) == 2
    assert "there is no directory" in capsys.readouterr().err
    assert command.main(["report", "--html", str(tmp_path), NAME]) == 2
    assert "is a directory" in capsys.readouterr().err
    assert command.main(["report", "--html", str(tmp_path / "matrix.html"), "wrong-marge-order"]) == 2
    assert "did you mean wrong-merge-order" in capsys.readouterr().err
    assert command.main(["report"]) == 2
    assert "--html" in capsys.readouterr().err
