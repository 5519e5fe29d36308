"""The lesson of one fault as plain data, for a page: everything that is told of it besides what was measured."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from faults.fault import Fault, sections_of, subject_of, summary_of
from faults.killers import telling_first
from faults.lessons.laws import broke_off, raises_where
from faults.lessons.missed import symptom, why_missed
from faults.lessons.sides import diff
from faults.lessons.worked import Drawn, Worked, worked
from faults.matrix import Row
from properties.case import Case
from properties.laws import PROPERTIES
from properties.runner import Counterexample, failure

Numbers = tuple[tuple[float, ...], ...]
LONGEST = 500  # characters of evidence
DIGITS = 5  # behind the point, at most
HUES = 8  # that the page has
BIG = 1e6  # numbers from here on are written with an exponent
Place = tuple[int, int]  # row and column
Hues = tuple[tuple[int | None, ...], ...]


@dataclass(frozen=True)
class Found:
    """A counterexample in words."""

    property: str
    case: str
    evidence: str
    again: str  # Python that shows it again


@dataclass(frozen=True)
class Picture:
    """A drawn tensor, its numbers as they are printed, and what has become of them."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    right: tuple[tuple[str, ...], ...]
    wrong: tuple[tuple[str, ...], ...] | None  # None: the step raised
    differs: tuple[Place, ...]  # where it is wrong
    sources: tuple[tuple[Place, Place], ...]  # a place of `wrong`, and the one of `right` whose number stands there
    coloured: str = ""  # after the rows of what: "rows", its own, or "handed", those of the tensor that the step was handed
    hues: Hues = ()  # of each number of `right`: the row that it belongs to
    wrong_hues: Hues = ()


@dataclass(frozen=True)
class Lesson:
    """What the page says of a fault when it is opened."""

    summary: str
    why: str
    when: str
    missed: str  # why tests usually miss it
    seen: tuple[str, ...]
    diff: tuple[str, ...]
    found: Found | None
    inputs: str
    step: str  # the first whose result differs
    pictures: tuple[Picture, ...]
    remark: str
    raised: str
    symptom: str = ""  # in words; of what raises only on some way that an ordinary call does not take, on which


def lesson(fault: type[Fault], row: Row) -> Lesson:
    """Put it together; the counterexample is looked for on the case of the worked example."""
    sections = sections_of(fault)
    example: Worked = worked(fault)
    shown = found(fault, row, example.case_)
    where = raises_where(fault, example, shown.evidence, shown.property) if shown else ""
    return Lesson(
        summary=summary_of(fault),
        why=_paragraph(sections.get("Why it is wrong", "")),
        when=_paragraph(sections.get("When it shows", "")),
        missed=" ".join(why_missed(fault, example, where)),
        seen=tuple(sections.get("Seen in the wild", "").splitlines()),
        diff=tuple(diff(fault).splitlines()),
        found=shown,
        inputs=example.inputs,
        step=example.step,
        pictures=tuple(pictures(example.drawn)),
        remark=example.remark,
        raised=example.raised,
        symptom=symptom(sections, where),
    )


def found(fault: type[Fault], row: Row, case: Case) -> Found | None:
    """The law that says best what is wrong on this case, or, if none is broken on it, what was met when the row was measured.

    A law that is broken by numbers comes before one on the way to which something was raised.
    """
    subject = subject_of(fault)
    killers = {kill.property: kill for kill in row.kills}
    known = telling_first(p for p in PROPERTIES if p.name in killers)
    loud: Counterexample | None = None
    for property_ in known:
        if property_.about(case, subject) and (evidence := failure(property_, subject, case)) is not None:
            example = Counterexample(property_, subject, case, evidence)
            if not broke_off(evidence):
                return _in_words(example)
            loud = loud or example
    if loud is not None:
        return _in_words(loud)
    for property_ in sorted(known, key=lambda p: broke_off(killers[p.name].evidence)):
        kill = killers[property_.name]
        return _in_words(Counterexample(property_, subject, kill.case, kill.evidence))
    return None


def pictures(drawn: Sequence[Drawn]) -> list[Picture]:
    """All of an example, in colours that show where numbers went, if they only went somewhere else.

    If the result holds the very numbers that the step was handed, the colours are those of the rows there. If not, but wrong
    numbers are right ones in wrong places, they are those of its own rows.
    """
    handed = [tensor for tensor in drawn if tensor.wrong == tensor.right]
    found = []
    for tensor in drawn:
        shown = picture(tensor)
        if len(handed) == 1 and tensor is not handed[0] and (hues := _rows_of(tensor.right, handed[0].right)):
            wrong = tensor.wrong or ()
            shown = replace(shown, coloured="handed", hues=hues, wrong_hues=_rows_of(wrong, handed[0].right, all_of_them=False))
        elif shown.sources:
            own: Hues = tuple(tuple(r for _ in row) for r, row in enumerate(tensor.right))
            moved = {to: origin[0] for to, origin in shown.sources}
            wrongly = set(shown.differs)
            colours = [
                [moved.get((r, c), None if (r, c) in wrongly else r) for c in range(len(row))] for r, row in enumerate(own)
            ]
            shown = replace(shown, coloured="rows", hues=own, wrong_hues=tuple(map(tuple, colours)))
        found.append(shown)
    if any(shown.coloured == "handed" for shown in found):
        at = drawn.index(handed[0])
        rows: Hues = tuple(tuple(r for _ in row) for r, row in enumerate(handed[0].right))
        found[at] = replace(found[at], coloured="handed", hues=rows)
    return found


def _rows_of(numbers: Numbers, handed: Numbers, all_of_them: bool = True) -> Hues:
    """In which row of the tensor that was handed in each number stands; nothing if one does not stand in exactly one."""
    if len(handed) > HUES:
        return ()
    rows = [[_only([r for r, row in enumerate(handed) if value in row]) for value in numbers_] for numbers_ in numbers]
    if all_of_them and any(row is None for found in rows for row in found):
        return ()
    return tuple(map(tuple, rows))


def _only(rows: list[int]) -> int | None:
    return rows[0] if len(rows) == 1 else None


def picture(drawn: Drawn) -> Picture:
    """The numbers as text, and which of them are wrong; of those that only stand in a wrong place, where they belong."""
    wrong = drawn.wrong
    digits = max((_digits(value) for numbers in (drawn.right, wrong or ()) for row in numbers for value in row), default=1)
    differs = [] if wrong is None else _differing(drawn.right, wrong)
    return Picture(
        title=drawn.title,
        rows=drawn.rows,
        columns=drawn.columns,
        right=_text(drawn.right, digits),
        wrong=None if wrong is None else _text(wrong, digits),
        differs=tuple(differs),
        sources=() if wrong is None else tuple(_moved(drawn.right, wrong, differs)),
    )


def plain(lesson_: Lesson) -> dict[str, object]:
    """For JSON."""
    return asdict(lesson_)


def tidy(evidence: str) -> str:
    """Evidence as it is on any machine, and not longer than a reader has patience: of a page of torch's advice the start."""
    text = re.sub(r"\b0x[0-9a-f]+", "0x...", evidence.split("\n\n")[0].strip())  # addresses in memory
    text = re.sub(r"(?<![\w:/.])(?:/[^\s/'\":,]+){2,}/(?=[^\s/'\":,]+)", ".../", text)  # directories
    return text if len(text) <= LONGEST else text[:LONGEST].rstrip() + " ..."


def _in_words(example: Counterexample) -> Found:
    return Found(example.property.name, repr(example.case), tidy(example.evidence), example.reproduction())


def _paragraph(text: str) -> str:
    return " ".join(text.split())


def _digits(value: float) -> int:
    """So many are behind the point; numbers of an example are rounded already."""
    if not math.isfinite(value) or abs(value) >= BIG:
        return 1
    return min(max(len(f"{value:.10f}".rstrip("0").partition(".")[2]), 1), DIGITS)


def _text(numbers: Numbers, digits: int) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(_number(value, digits) for value in row) for row in numbers)


def _number(value: float, digits: int) -> str:
    """With a true minus sign, and words for what is none."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value + 0.0:.{digits}f}" if abs(value) < BIG else f"{value:g}"  # + 0.0: no negative zero
    return text.replace("-", "−")


def _differing(right: Numbers, wrong: Numbers) -> list[Place]:
    return [(r, c) for r, row in enumerate(wrong) for c, value in enumerate(row) if not _same(value, right[r][c])]


def _moved(right: Numbers, wrong: Numbers, differs: list[Place]) -> list[tuple[Place, Place]]:
    """For each wrong number that stands in exactly one place of what is right: this place.

    Numbers of few digits are equal by chance now and then: if it is one alone, or fewer than half, nothing is said.
    """
    places = [((r, c), value) for r, row in enumerate(right) for c, value in enumerate(row)]
    moved = []
    for r, c in differs:
        value = wrong[r][c]
        origins = [place for place, other in places if value and math.isfinite(value) and _same(value, other)]
        if len(origins) == 1:
            moved.append(((r, c), origins[0]))
    return moved if len(moved) > 1 and 2 * len(moved) >= len(differs) else []


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
