"""The pages in docs/ say what the docstrings say, and what is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults import __main__ as command
from faults.catalog import catalog, equivalents, find
from faults.killers import names_of_killers
from faults.pages.catalog_page import COMMAND, DOCS, pages, stale
from properties.laws import PROPERTIES

GUIDE = DOCS / "reading-a-kill.md"
LINK = r"\(([\w.-]*#[^)]+)\)|^\[[^\]]+\]: (\S+)"  # inline, or defined below
in_a_clone = pytest.mark.skipif(not DOCS.is_dir(), reason="an installed package has no pages")


@in_a_clone
def test_the_pages_are_what_the_docstrings_say() -> None:
    assert stale() is None


def test_a_page_that_says_something_else_is_stale(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    assert stale(docs) is None  # an installed package has no pages
    docs.mkdir()
    assert COMMAND in (stale(docs) or "")
    for name, text in pages().items():
        (docs / name).write_text(text, encoding="utf-8")
    assert stale(docs) is None
    (docs / "properties.md").write_text(pages()["properties.md"].replace("merge", "fold", 1), encoding="utf-8")
    assert (stale(docs) or "").startswith("docs/properties.md:") and COMMAND in (stale(docs) or "")


def test_every_link_leads_somewhere_and_both_ways() -> None:
    anchors = {name: re.findall(r'<a id="([^"]+)">', text) for name, text in pages().items()}
    assert all(len(set(found)) == len(found) for found in anchors.values())
    assert {f"fault-{name}" for name in [*catalog(), *equivalents()]} == set(anchors["catalog.md"])
    assert {f"property-{p.name}" for p in PROPERTIES} <= set(anchors["properties.md"])
    for here, text in pages().items():
        links = [inline or defined for inline, defined in re.findall(LINK, text, re.MULTILINE)]
        assert len(links) > 300
        for page, _, anchor in (link.partition("#") for link in links):
            assert anchor in anchors[page or here]
        defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
        listed = re.findall(r"^(?:- \*\*|Killed by|Kills).*$", text, re.MULTILINE)
        assert {name for line in listed for name in re.findall(r"\[([^\]]+)\](?!\()", line)} <= defined


def test_what_kills_a_fault_says_that_it_does() -> None:
    faults, properties = pages().values()
    (kills,) = re.findall(r"### no_queries_get_no_rows\n.*?\n(Kills .*?)\n", properties, re.DOTALL)
    assert "[nothing-for-no-tokens]" in kills
    assert "[wrong-merge-order]" not in kills
    (killed,) = re.findall(r"### nothing-for-no-tokens\n.*?\n(Killed by .*?)\n", faults, re.DOTALL)
    assert killed == "Killed by 1 property: [no_queries_get_no_rows]."


def test_the_command_writes_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("faults.pages.catalog_page.DOCS", tmp_path)
    assert command.main(["catalog", "--write"]) == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == pages()
    capsys.readouterr()
    assert command.main(["catalog"]) == 0
    assert capsys.readouterr().out == "".join(pages().values())


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
