"""What a campaign of properties has found so far, from its file."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from properties.campaign.bounds import CONFIDENCE, at_most
from properties.campaign.coverage import expected
from properties.campaign.plan import KIND
from properties.campaign.store import Store
from properties.campaign.told import columns, count, duration
from properties.case import DTYPES

SLOWEST = 5  # laws that are named
ALL_SHOWN = 20  # failures that are shown in full
WIDTH = 120


@dataclass
class Tally:
    """Cases and failures of a subject, or a law, or both."""

    cases: int = 0
    failures: int = 0
    seconds: float = 0.0
    shown: list[tuple[str, str]] = field(default_factory=list)  # some of the failures: case and evidence

    def add(self, result: dict[str, Any], seconds: float) -> None:
        self.cases += result["cases"]
        self.failures += result["failures"]
        self.seconds += seconds
        self.shown += result["shown"]


@dataclass
class Summary:
    """All of it."""

    file: Path
    about: dict[str, str]
    units: int
    inputs: int  # cases that are not the same but for the dtype, each of one law and one attention
    whole: Tally
    asked: dict[str, dict[str, Any]]  # what goes by the names of the subjects
    subjects: dict[str, Tally]
    laws: dict[str, Tally]
    failing: dict[tuple[str, str], Tally]  # by subject and law
    drawn: Counter[str]

    @classmethod
    def of(cls, file: str | Path) -> Summary:
        """Read it; the run may be going on."""
        with Store.read(Path(file), KIND) as store:
            asked = store.subjects()
            inputs: dict[tuple[str, str, int], int] = {}
            made = cls(Path(file), store.about, 0, 0, Tally(), asked, {name: Tally() for name in asked}, {}, {}, Counter())
            for unit, result, seconds in store.results():
                made.units += 1
                same = _without_dtype(unit.subject), unit.law, unit.block  # on one seed all dtypes are asked the same case
                inputs[same] = max(inputs.get(same, 0), result["cases"])
                for tally in (made.whole, made.subjects[unit.subject], made.laws.setdefault(unit.law, Tally())):
                    tally.add(result, seconds)
                if result["failures"]:
                    made.failing.setdefault((unit.subject, unit.law), Tally())
                made.drawn.update(result["drawn"])
            # Of a law that fails, all cases count, those of blocks without a failure too.
            for unit, result, seconds in store.results() if made.failing else ():
                if (unit.subject, unit.law) in made.failing:
                    made.failing[unit.subject, unit.law].add(result, seconds)
        made.inputs = sum(inputs.values())
        return made

    @property
    def never_drawn(self) -> list[str]:
        """What should come up, and has not."""
        return [name for name in expected() if not self.drawn[name]]

    @property
    def bound(self) -> float | None:
        """The upper bound of the share of inputs that fail in some dtype, at 95 % confidence."""
        return at_most(min(self.whole.failures, self.inputs), self.inputs) if self.inputs else None

    def came_up(self) -> list[tuple[str, int]]:
        """What was drawn, and how often: in the order of `expected`, and behind it what only some subjects have."""
        usual = [name for name in expected() if self.drawn[name]]
        return [(name, self.drawn[name]) for name in [*usual, *sorted({*self.drawn} - {*usual})]]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "file": str(self.file),
            **self.about,
            "units": self.units,
            "cases": self.whole.cases,
            "inputs": self.inputs,
            "failures": self.whole.failures,
            "at_most": self.bound,
            "confidence": CONFIDENCE,
            "seconds": self.whole.seconds,
            "subjects": {name: {"cases": t.cases, "failures": t.failures} for name, t in self.subjects.items()},
            "laws": {name: {"cases": t.cases, "failures": t.failures, "seconds": t.seconds} for name, t in self.laws.items()},
            "failing": [
                {"subject": subject, "law": law, "failures": t.failures, "cases": t.cases, "shown": t.shown}
                for (subject, law), t in self.failing.items()
            ],
            "drawn": dict(sorted(self.drawn.items())),
            "never_drawn": self.never_drawn,
        }

    def __str__(self) -> str:
        return "\n\n".join(part for part in ("\n".join(lines) for lines in self._parts()) if part)

    def _parts(self) -> Iterable[list[str]]:
        yield [
            f"{self.file}: {count(len(set(map(_without_dtype, self.subjects))), 'subject')} in up to "
            f"{count(len(DTYPES), 'dtype')}, {count(len(self.laws), 'law')}; {self.whole.cases:,} cases in "
            f"{count(self.units, 'unit')}, {duration(self.whole.seconds)} of work",
            self._verdict(),
        ]
        yield from self._failures()
        yield ["cases of each subject", *self._by_dtype()]
        yield ["what came up, of all cases", *self._drawn()]
        yield ["never came up, or is not declared", *_wrapped(self.never_drawn)] if self.never_drawn else []
        slowest = sorted(self.laws.items(), key=lambda item: -item[1].seconds)[:SLOWEST]
        yield [
            "where the time went",
            *columns(
                (name, f"{t.seconds / self.whole.seconds:.1%}", f"{1000 * t.seconds / t.cases:.1f} ms a case")
                for name, t in slowest
            ),
        ]

    def _verdict(self) -> str:
        if self.bound is None:
            return "nothing was asked yet"
        if self.whole.failures:
            return f"{count(self.whole.failures, 'failure')}: {self.whole.failures / self.whole.cases:.2%} of the cases"
        return (
            f"no failure: with 95 % confidence fewer than 1 in {int(1 / self.bound):,} inputs like these fail in any dtype "
            f"({self.inputs:,} inputs, the dtypes not counted)"
        )

    def _by_dtype(self) -> list[str]:
        """A line for each subject, a column for each dtype."""
        rows: dict[str, dict[str, Tally]] = {}
        for name, tally in self.subjects.items():
            subject, dtype = _without_dtype(name), name.rpartition(" in ")[2]
            rows.setdefault(subject, {})[dtype] = tally
        dtypes = [dtype for dtype in DTYPES if any(dtype in row for row in rows.values())]
        return columns([("", *dtypes), *((name, *map(_cell, map(row.get, dtypes))) for name, row in rows.items())])

    def _failures(self) -> Iterable[list[str]]:
        for number, ((subject, law), tally) in enumerate(self.failing.items()):
            if number == ALL_SHOWN:
                yield [f"and {len(self.failing) - ALL_SHOWN} more pairs of a subject and a law; --json has all"]
                return
            case, evidence = tally.shown[0]
            yield [
                f"{subject} breaks {law}: {tally.failures:,} of {tally.cases:,} cases",
                f"  on {case}",
                f"  {evidence}",
                "  to see it again:",
                "    import properties.campaign",
                f"    properties.replay({self._expression(subject)}, {law!r}, properties.{case})",
            ]

    def _expression(self, name: str) -> str:
        what = self.asked[name]
        options = [repr(what["path"]), *what["declared"], *(["as_black_box=True"] if what["black box"] else [])]
        return f"properties.campaign.asked({', '.join(options)})[{name!r}].subject()"

    def _drawn(self) -> Iterable[str]:
        """A line for each field."""
        of_fields: dict[str, list[str]] = {}
        for name, number in self.came_up():
            field_, equals, value = name.partition("=")
            alone = "" if field_.endswith(" ") or not equals else field_  # "T = S" is no field
            of_fields.setdefault(alone, []).append(f"{value if alone else name} {number / self.whole.cases:.1%}")
        for field_, values in of_fields.items():
            yield from _wrapped(values, f"{field_}: " if field_ else "")


def _without_dtype(name: str) -> str:
    return name.rpartition(" in ")[0]


def _wrapped(items: Iterable[str], before: str = "") -> list[str]:
    """Lines of these, none cut in two."""
    text = before + ", ".join(item.replace(" ", "\0") for item in items)
    lines = textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
    return [line.replace("\0", " ") for line in lines]


def _cell(tally: Tally | None) -> str:
    if tally is None:
        return ""
    return f"{tally.failures:,} of {tally.cases:,} failed" if tally.failures else f"{tally.cases:,}"
