"""What is done, in one SQLite file.

A database and not a log of lines: however the process ended, a unit is there or not, and never twice, and the file can be read
while it grows. Only the process that hands out the work writes. By write-ahead logging a unit costs no wait for the disk; what a
power cut can undo is the last few units, which are done again.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from properties.campaign.told import differences
from properties.campaign.unit import CampaignError, Result, Unit

_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE subjects (name TEXT PRIMARY KEY, what TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE units (
    subject TEXT, law TEXT, block INTEGER,
    cases INTEGER NOT NULL, seconds REAL NOT NULL, result TEXT NOT NULL,
    PRIMARY KEY (subject, law, block)
) WITHOUT ROWID;
"""
_FORMAT = 1


class Store:
    """A file of results. `about` is what has to be equal for results to belong together."""

    def __init__(self, path: Path, about: Mapping[str, str] | None = None) -> None:
        """Open the file, or begin it with `about`; CampaignError if it is another campaign's, or none at all."""
        self.path = path
        if about is None and not path.exists():
            raise CampaignError(f"{path} is not there")
        if not path.parent.is_dir():
            raise CampaignError(f"{path}: there is no directory {path.parent}")
        try:
            self._db = self._connect(reading=about is None)
            try:
                self._open(about)
            except BaseException:
                self._db.close()
                raise
        except sqlite3.DatabaseError as error:
            raise CampaignError(f"{path} is no file of a campaign, or cannot be written: {error}") from None

    def _connect(self, *, reading: bool) -> sqlite3.Connection:
        # SQLite writes beside a file that it reads, to see what others do. Where it may not, nobody does anything.
        beside = Path(f"{self.path}-wal")
        if reading and not os.access(self.path.parent, os.W_OK) and not beside.exists():
            return sqlite3.connect(f"{self.path.resolve().as_uri()}?immutable=1", uri=True, isolation_level=None)
        return sqlite3.connect(self.path, isolation_level=None, timeout=60)

    def _open(self, about: Mapping[str, str] | None) -> None:
        if not self._begun():
            if about is None:
                raise CampaignError(f"{self.path} is empty")
            self._begin(about)
        self._db.execute("PRAGMA synchronous=NORMAL")
        if about is None:
            self._db.execute("BEGIN")  # who only reads sees one state, whatever is added meanwhile
        self.about = dict(self._db.execute("SELECT name, value FROM about"))
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version != _FORMAT:
            raise CampaignError(f"{self.path} has format {version}, and this is written for format {_FORMAT}")
        if about is not None and (its := self.about.get("kind")) != about["kind"]:
            raise CampaignError(f"{self.path} is a campaign of {its}, not of {about['kind']}: name another file")
        if about is not None and (differs := differences(self.about, about)):
            raise CampaignError(
                f"{self.path} was begun with {differs}; results of both do not belong together: name another file"
            )

    def _begun(self) -> bool:
        return self._db.execute("SELECT name FROM sqlite_master").fetchone() is not None

    def _begin(self, about: Mapping[str, str]) -> None:
        """Make the tables and say what they are about, at once: a run may be killed here, too, and another one begin."""
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("BEGIN IMMEDIATE")
        if not self._begun():
            for table in _TABLES.split(";"):
                self._db.execute(table)
            self._db.execute(f"PRAGMA user_version={_FORMAT}")
            self._db.executemany("INSERT INTO about VALUES (?, ?)", about.items())
        self._db.execute("COMMIT")

    @classmethod
    def read(cls, path: Path, kind: str) -> Self:
        """Open a file of this kind for reading; CampaignError if it is another."""
        store = cls(path)
        if (its := store.about.get("kind")) != kind:
            store._db.close()
            raise CampaignError(f"{path} is a campaign of {its}: ask `python -m {its} campaign report {path}`")
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process do units for this file; CampaignError if one does."""
        # A lock that goes with the process, however it ends, on every system: that of another database.
        beside = Path(f"{self.path}-lock")
        with closing(sqlite3.connect(beside, isolation_level=None, timeout=0)) as lock:
            try:
                lock.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                raise CampaignError(f"another run is adding to {self.path}") from None
            try:
                yield
            finally:
                with suppress(OSError):  # where a file that is open cannot be removed, it stays
                    beside.unlink()

    def take_subjects(self, subjects: Mapping[str, Any]) -> None:
        """Write down what is asked; CampaignError if something else goes by the name of one."""
        if clash := self._clash(subjects):
            raise CampaignError(f"{self.path}: {clash}; results of both do not belong together: name another file")
        rows = [(name, json.dumps(what)) for name, what in subjects.items()]
        self._db.executemany("INSERT OR IGNORE INTO subjects VALUES (?, ?)", rows)

    def _clash(self, subjects: Mapping[str, Any]) -> str:
        """Which of these subjects is another one here, and how; "" if none is."""
        known = self.subjects()
        other = (name for name, what in subjects.items() if known.get(name, what) != what)
        return next((f"{name} was begun with {differences(known[name], subjects[name])}" for name in other), "")

    def subjects(self) -> dict[str, Any]:
        """What is asked, by name."""
        return {name: json.loads(what) for name, what in self._db.execute("SELECT name, what FROM subjects")}

    def add(self, unit: Unit, result: Result, seconds: float) -> None:
        """Keep the result of a unit."""
        text = json.dumps(result, sort_keys=True)
        try:
            self._db.execute("INSERT INTO units VALUES (?, ?, ?, ?, ?, ?)", (*unit, result["cases"], seconds, text))
        except sqlite3.Error as error:
            raise CampaignError(f"{self.path} cannot be written: {error}") from error

    def done(self) -> dict[Unit, int]:
        """The units that are done, and how many cases each took."""
        return {Unit(*row): cases for *row, cases in self._db.execute("SELECT subject, law, block, cases FROM units")}

    def results(self) -> Iterator[tuple[Unit, Result, float]]:
        """Every unit in order, with its result and the seconds that it took."""
        for subject, law, block, result, seconds in self._db.execute(
            "SELECT subject, law, block, result, seconds FROM units ORDER BY subject, law, block"
        ):
            yield Unit(subject, law, block), json.loads(result), seconds

    def merge(self, others: Sequence[Path]) -> list[int]:
        """Take in what the others have and this one has not, or nothing at all if two contradict each other; count units."""
        columns = "subject, law, block, cases, seconds, result"
        try:
            self._db.execute(f"CREATE TEMP TABLE theirs AS SELECT 0 AS number, {columns} FROM units WHERE false")
            subjects = [self._fetch(number, other) for number, other in enumerate(others)]
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for other, of_one in zip(others, subjects, strict=True):
                    if clash := self._clash(of_one):
                        raise CampaignError(f"{other} does not fit the others: {clash}")
                    self.take_subjects(of_one)
                both = f"SELECT {columns} FROM units UNION ALL SELECT {columns} FROM theirs"
                twice = self._db.execute(
                    f"SELECT subject, law, block FROM ({both}) GROUP BY subject, law, block HAVING count(DISTINCT result) > 1"
                ).fetchone()
                if twice:
                    raise CampaignError(self._twice(Unit(*twice), others))
                insert = f"INSERT OR IGNORE INTO units SELECT {columns} FROM theirs WHERE number = ?"
                taken = [self._db.execute(insert, (number,)).rowcount for number, _ in enumerate(others)]
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
            self._db.execute("DROP TABLE theirs")
            return taken
        except sqlite3.Error as error:
            raise CampaignError(f"{self.path}: nothing can be merged: {error}") from error

    def _twice(self, unit: Unit, others: Sequence[Path]) -> str:
        """Words for a unit of which there are different results."""
        where = "WHERE subject = ? AND law = ? AND block = ?"
        having = [others[number] for (number,) in self._db.execute(f"SELECT number FROM theirs {where}", unit)]
        if self._db.execute(f"SELECT 1 FROM units {where}", unit).fetchone():
            having.insert(0, self.path)
        asked = " and ".join(filter(None, unit[:2]))
        return (
            f"{', '.join(map(str, having))}: not all have the same result of {asked}, block {unit.block}: what was asked is not "
            f"the same everywhere, or is left to chance"
        )

    def _fetch(self, number: int, other: Path) -> dict[str, Any]:
        """Copy the units of another file to where they can be looked at; return its subjects."""
        if other.exists() and other.samefile(self.path):
            raise CampaignError(f"{other} is the file that the others are to go into")
        with Store.read(other, self.about["kind"]) as theirs:
            if differs := differences(theirs.about, self.about):
                raise CampaignError(f"{other} does not fit the others: it has {differs}")
            subjects = theirs.subjects()
        try:
            self._db.execute("ATTACH ? AS other", (str(other),))
            try:
                self._db.execute("INSERT INTO theirs SELECT ?, * FROM other.units", (number,))
            finally:
                self._db.execute("DETACH other")
        except sqlite3.Error as error:
            raise CampaignError(f"{other} cannot be read: {error}") from error
        return subjects
