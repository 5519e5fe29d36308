"""`docs/other-checks.md`, and the table of it in the README: which faults other kinds of check see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.catalog import catalog, find
from faults.fault import family_of
from faults.matrix import spread
from faults.other_checks.checks import BEYOND, CHECKS, SEEN, Check

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "other-checks.md", ROOT / "README.md"
COMMAND = "python -m faults others --write"
BEGIN, END = "<!-- `python -m faults others --write` writes this table -->", "<!-- until here -->"
_MARKS = {SEEN: "x", BEYOND: "-"}


@dataclass(frozen=True)
class Verdicts:
    """What each check makes of each fault: SEEN, UNSEEN or BEYOND, in the order of the checks."""

    checks: tuple[Check, ...]
    of: Mapping[str, tuple[str, ...]]
    family: Mapping[str, str]

    def count(self, check: int, verdict: str, family: str | None = None) -> int:
        names = [name for name in self.of if family in (None, self.family[name])]
        return sum(self.of[name][check] == verdict for name in names)

    def seen_by_others(self) -> int:
        """How many are seen by any check but the last, which is these properties."""
        return sum(SEEN in verdicts[:-1] for verdicts in self.of.values())


def judge(names: Iterable[str] | None = None, workers: int | None = None) -> Verdicts:
    """Ask every check about every fault."""
    names = list(catalog() if names is None else names)
    of = dict(zip(names, spread(_judge, names, workers), strict=True))
    return Verdicts(CHECKS, of, {name: family_of(find(name)) for name in names})


def _judge(name: str) -> tuple[str, ...]:
    return tuple(check(find(name)) for check in CHECKS)


def stale(verdicts: Verdicts, page_path: Path = PAGE, readme: Path = README) -> str | None:
    """Say how to mend the page or the table if they do not say what was found; None if they do, or this is no clone."""
    if not page_path.parent.is_dir() or not readme.exists():
        return None
    wrong = []
    if not page_path.exists() or page_path.read_text(encoding="utf-8") != page(verdicts):
        wrong.append(f"{page_path.parent.name}/{page_path.name}")
    if (text := readme.read_text(encoding="utf-8")) != with_table(text, verdicts):
        wrong.append(f"the table in {readme.name}")
    return f"{' and '.join(wrong)} not what is found now: run `{COMMAND}`" if wrong else None


def write(verdicts: Verdicts, page_path: Path = PAGE, readme: Path = README) -> None:
    page_path.write_text(page(verdicts), encoding="utf-8")
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), verdicts), encoding="utf-8")


def with_table(text: str, verdicts: Verdicts) -> str:
    """The README with this table in it; as it is, if it has no place for one."""
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return between.sub(lambda _: f"{BEGIN}\n\n{totals(verdicts)}\n\n{END}", text)


def totals(verdicts: Verdicts) -> str:
    """One line a check: how many faults it sees."""
    rows = [(check.name, verdicts.count(n, SEEN), verdicts.count(n, BEYOND) or "") for n, check in enumerate(verdicts.checks)]
    rows.insert(-1, (_TOGETHER, verdicts.seen_by_others(), ""))
    return _table((f"kind of check, on {len(verdicts.of)} faults", "sees", "could not have"), rows)


def page(verdicts: Verdicts) -> str:
    """The page, in Markdown."""
    letters = [check.letter for check in verdicts.checks]
    families = list(dict.fromkeys(verdicts.family.values()))
    by_family = [
        (family, sum(own == family for own in verdicts.family.values()), *counts)
        for family in families
        for counts in [[verdicts.count(n, SEEN, family) or "" for n in range(len(letters))]]
    ]
    whole = ("all", len(verdicts.of), *(verdicts.count(n, SEEN) for n in range(len(letters))))
    each = [(name, *(_MARKS.get(verdict, "") for verdict in of)) for name, of in verdicts.of.items()]
    return _PAGE.format(
        command=COMMAND,
        faults=len(verdicts.of),
        together=verdicts.seen_by_others(),
        totals=_table(
            ("", "kind of check", "sees", "does not", "could not have"),
            [
                (check.letter, _linked(check), *(verdicts.count(n, verdict) or "" for verdict in (SEEN, "unseen", BEYOND)))
                for n, check in enumerate(verdicts.checks)
            ],
        ),
        looks=_table(("", "inputs", "looks at"), [(check.letter, check.inputs, check.looks_at) for check in verdicts.checks]),
        by_family=_table(("family", "faults", *letters), [*by_family, whole]),
        each=_table(("fault", *letters), each),
    )


_TOGETHER = "all of these together"
_PAGE = """\
# What other checks see

Found by `{command}`; do not edit. Of the {faults} faults of the catalog, how many does each of these kinds of check see?

{totals}

A to D together see {together}. *Could not have*: the fault is one of a mechanism (rotary positions, a cache, a window, a soft
cap, ...) that the check has no words for. It is not seen all the same.

## How this was found, and what it does not say

The inputs of the checks are replayed, not their suites run. Each is handed to the fault itself, and what comes out is compared
with what the clean class gives, the one the fault was made from: a perfect oracle, within what rounding explains
(`properties/rounding.py`). So C1 to C6 are better here than they are: their tests compare with tolerances, or with the layer
itself. And they are worse: a suite has other tests beside those that ask for numbers, of gradients, of copying, of other
devices, and these are not replayed. Dropout is 0 in all of them, and no query that sees no key is judged in C1 to C6. They are
the tests of torch and keras that say which numbers should come out, and, of keras, those of masks; they were written for the
layers they test, and not for these faults.

D and E are taken from what is measured of each fault (`python -m faults bless`), on random cases on which it can show.

{looks}

## By family

How many faults of each family are seen.

{by_family}

## Every fault

x: it is seen. -: the check has no words for what it needs.

{each}
"""


def _linked(check: Check) -> str:
    return f"[{check.name}]({check.link})" if check.link else check.name


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])
