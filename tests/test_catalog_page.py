"""The pages in docs/ say what the docstrings say, and what is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults import __main__ as command
from faults.catalog import catalog, equivalents, find
from faults.killers import names_of_killers
from faults.pages.catalog_page import COMMAND, PAGE, page, stale
from properties.laws import PROPERTIES

GUIDE = PAGE.parent / "reading-a-kill.md"
in_a_clone = pytest.mark.skipif(not PAGE.parent.is_dir(), reason="an installed package has no pages")


@in_a_clone
def test_the_page_is_what_the_docstrings_say() -> None:
    assert stale() is None


def test_a_page_that_says_something_else_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "catalog.md"
    assert stale(path) is None  # an installed package has no pages
    path.parent.mkdir()
    assert COMMAND in (stale(path) or "")
    path.write_text(page(), encoding="utf-8")
    assert stale(path) is None
    path.write_text(page().replace("merge", "fold", 1), encoding="utf-8")
    assert COMMAND in (stale(path) or "")


def test_every_link_leads_somewhere_and_both_ways() -> None:
    text = page()
    anchors = re.findall(r'<a id="([^"]+)">', text)
    assert len(set(anchors)) == len(anchors)
    assert {f"fault-{name}" for name in [*catalog(), *equivalents()]} <= set(anchors)
    assert {f"property-{p.name}" for p in PROPERTIES} <= set(anchors)
    assert set(re.findall(r"\(#([^)]+)\)|^\[[^\]]+\]: #(\S+)", text, re.MULTILINE)) >= {("properties-reference", "")}
    for inline, defined in re.findall(r"\(#([^)]+)\)|^\[[^\]]+\]: #(\S+)", text, re.MULTILINE):
        assert (inline or defined) in anchors
    defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
    listed = re.findall(r"^(?:- \*\*|- properties|Killed by|Kills).*$", text, re.MULTILINE)
    used = {name for line in listed for name in re.findall(r"\[([^\]]+)\](?!\()", line)}
    assert used == defined


def test_what_kills_a_fault_says_that_it_does() -> None:
    text = page()
    (kills,) = re.findall(r"### no_queries_get_no_rows\n.*?\n(Kills .*?)\n", text, re.DOTALL)
    assert "[nothing-for-no-tokens]" in kills
    assert "[wrong-merge-order]" not in kills
    (killed,) = re.findall(r"### nothing-for-no-tokens\n.*?\n(Killed by .*?)\n", text, re.DOTALL)
    assert killed == "Killed by 1 property: [no_queries_get_no_rows]."


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "catalog.md"
    monkeypatch.setattr("faults.pages.catalog_page.PAGE", path)
    assert command.main(["catalog", "--write"]) == 0
    assert path.read_text(encoding="utf-8") == page()
    capsys.readouterr()
    assert command.main(["catalog"]) == 0
    assert capsys.readouterr().out == page()


# The guide, written by hand.


@in_a_clone
def test_the_examples_of_the_guide_are_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```(explain \S+)\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    for arguments, block in blocks:
        assert command.main(arguments.split()) == 0
        printed = iter(capsys.readouterr().out.splitlines())
        for line in block.splitlines():
            assert line == "..." or line in printed, f"{arguments}: {line}"  # `in` goes on where it was: the order counts


@in_a_clone
def test_what_the_guide_says_of_a_fault_is_so() -> None:
    table = re.findall(r"^\| (`.*?) \| (`.*?) \| .*? \| `(\S+)` \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(table) >= 8
    names = {p.name for p in PROPERTIES}
    for failing, holding, fault in table:
        failed, held = (set(re.findall(r"`(\w+)`", cell)) for cell in (failing, holding))
        assert failed | held <= names
        assert failed <= names_of_killers(find(fault)), fault
        assert not held & names_of_killers(find(fault)), fault
