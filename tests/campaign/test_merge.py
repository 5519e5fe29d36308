"""Results of several machines are put together, if they belong together; if not, nothing is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from running import here, rows

from properties.__main__ import main
from properties.campaign import asked, run
from properties.campaign.asked import source_of

Module = Callable[[str], None]
SOURCE = "from own import Own\n\nclass Mine(Own):\n    pass\n\nclass Other(Own):\n    pass\n"


def ask(file: str, first: int, last: int, name: str = "Mine") -> None:
    run(file, asked(f"theirs:{name}", dtypes=("float64",)), seeds=(first, last), only="dependence-", workers=here())


@pytest.fixture(autouse=True)
def halves(module: Module) -> None:
    module(SOURCE)
    ask("first.db", 0, 40)
    ask("second.db", 40, 60)


def test_two_halves_are_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    ask("whole.db", 0, 60)
    assert main(["campaign", "merge", "both.db", "first.db", "second.db"]) == 0
    assert "first.db: 8 units that were not in both.db" in capsys.readouterr().out
    assert rows(Path("both.db")) == rows(Path("whole.db"))
    assert main(["campaign", "merge", "both.db", "second.db", "first.db"]) == 0
    assert "second.db: 0 units" in capsys.readouterr().out
    assert rows(Path("both.db")) == rows(Path("whole.db"))
    assert main(["campaign", "report", "both.db"]) == 0
    assert "240 cases in 12 units" in capsys.readouterr().out


def test_what_both_have_is_there_once() -> None:
    ask("overlap.db", 20, 60)
    assert main(["campaign", "merge", "first.db", "overlap.db"]) == 0
    ask("whole.db", 0, 60)
    assert rows(Path("first.db")) == rows(Path("whole.db"))


def test_a_run_goes_on_with_what_was_merged() -> None:
    main(["campaign", "merge", "both.db", "first.db", "second.db"])
    subjects = asked("theirs:Mine", dtypes=("float64",))
    assert run("both.db", subjects, seeds=(0, 80), only="dependence-", workers=here()).units == 4


def test_other_subjects_are_taken_in() -> None:
    ask("third.db", 0, 20, "Other")
    assert main(["campaign", "merge", "first.db", "third.db"]) == 0
    assert {subject for subject, *_ in rows(Path("first.db"))} == {"theirs.Mine in float64", "theirs.Other in float64"}


def change(file: str, statement: str) -> None:
    database = sqlite3.connect(file)
    with database:
        database.execute(statement)
    database.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "UPDATE units SET result = replace(result, '\"failures\": 0', '\"failures\": 1') WHERE block = 1",
            "first.db, more.db: not all have the same result of theirs.Mine in float64 and every_parameter_counts, block 1",
        ),
        (
            "UPDATE about SET value = 'Python 3.9, torch 1.0' WHERE name = 'versions'",
            "more.db does not fit the others: it has versions Python 3.9, torch 1.0 instead of Python",
        ),
        ("UPDATE about SET value = 'faults' WHERE name = 'kind'", "more.db is a campaign of faults"),
        ("UPDATE about SET value = 'abc' WHERE name = 'laws'", "it has laws abc instead of"),
        (
            "UPDATE subjects SET what = replace(what, 'source', 'origin')",
            "more.db does not fit the others: theirs.Mine in float64 was begun with",
        ),
        ("PRAGMA user_version = 7", "has format 7, and this is written for format 1"),
        ("DROP TABLE units", "more.db cannot be read: no such table"),
    ],
)
def test_what_does_not_belong_together_is_refused(statement: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask("more.db", 0, 60)
    change("more.db", statement)
    before = rows(Path("first.db"))
    assert main(["campaign", "merge", "first.db", "second.db", "more.db"]) == 2
    assert message in capsys.readouterr().err
    assert rows(Path("first.db")) == before
    assert main(["campaign", "merge", "new.db", "first.db", "more.db"]) == 2
    assert not list(Path().glob("new.db*"))


def test_a_file_is_not_merged_with_itself_nor_with_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["campaign", "merge", "first.db", "first.db"]) == 2
    assert "first.db is the file that the others are to go into" in capsys.readouterr().err
    assert main(["campaign", "merge", "new.db", "nowhere.db"]) == 2
    assert "nowhere.db is not there" in capsys.readouterr().err
    assert not Path("new.db").exists()


def test_a_file_beside_it_in_its_package_is_part_of_a_subject(module: Module) -> None:
    package = Path("packaged")
    package.mkdir()
    (package / "__init__.py").write_text("from own import Own\n")
    (package / "beside.py").write_text("")
    before = asked("packaged:Own", dtypes=("float64",))
    (package / "beside.py").write_text("SCALE = 2\n")
    source_of.cache_clear()
    assert source_of("packaged:Own") != next(iter(before.values())).source


def test_a_subject_that_was_changed_is_another(module: Module, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows(Path("first.db"))
    module(SOURCE + "\n# changed\n")
    command = ["run", "first.db", "theirs:Mine", "-d", "dtypes=float64", "--only", "dependence-", "--seeds", "0:80"]
    assert main(["campaign", *command, "--workers", "1"]) == 2
    assert "theirs.Mine in float64 was begun with source " in capsys.readouterr().err
    assert rows(Path("first.db")) == before
