"""Every entry of the catalog is what it says it is."""

from __future__ import annotations

import pytest

from faults.bless import measured_sections
from faults.catalog import catalog, equivalents
from faults.fault import (
    MEASURED,
    OF_EQUIVALENTS,
    ROOT_CAUSES,
    WRITTEN,
    Fault,
    FaultError,
    check_entry,
    name_of,
    sections_of,
    step_of,
    subject_of,
)
from faults.matrix import Row, check_correct, rows
from faults.mistakes import mistake, read
from faults.strength import Strength, problems, stale
from properties.laws import PROPERTIES
from properties.runner import falsify

LESSON = [
    "wrong-split-order",
    "missing-transpose",
    "missing-contiguous",
    "wrong-merge-order",
    "mask-shape-mismatch",
    "surplus-projection-bias",
]

each_fault = pytest.mark.parametrize("fault", catalog().values(), ids=catalog())
each_equivalent = pytest.mark.parametrize("variant", equivalents().values(), ids=equivalents())


def test_the_six_mistakes_of_the_lesson_come_first() -> None:
    assert list(catalog())[: len(LESSON)] == LESSON
    assert len(catalog()) >= 120


def test_every_root_cause_of_the_taxonomy_has_an_entry() -> None:
    known = {f"{category}: {cause}" for category, causes in ROOT_CAUSES.items() for cause in causes}
    assert {fault.root_cause for fault in catalog().values()} == known


@pytest.fixture(scope="session")
def rows_by_name(request: pytest.FixtureRequest) -> dict[str, Row]:
    """The rows of the matrix that are asked for, measured on all cores."""
    asked = [item for item in request.session.items if "rows_by_name" in item.fixturenames]  # type: ignore[attr-defined]
    faults = [item.callspec.params["fault"] if hasattr(item, "callspec") else None for item in asked]
    names = list(catalog()) if None in faults else [name_of(fault) for fault in faults]
    return {row.name: row for row in rows(names)}


@each_fault
def test_what_was_measured_is_what_the_docstring_says(fault: type[Fault], rows_by_name: dict[str, Row]) -> None:
    row = rows_by_name[name_of(fault)]
    documented = sections_of(fault)
    for heading, text in measured_sections(fault, row).items():
        written = " ".join(documented.get(heading, "").split())
        assert written == " ".join(text.split()), f"{heading} is stale: run `python -m faults bless {row.name}`"


@pytest.mark.parametrize("fault", list(catalog().values())[::12], ids=name_of)
def test_properties_are_told_what_was_measured(fault: type[Fault], rows_by_name: dict[str, Row]) -> None:
    row = rows_by_name[name_of(fault)]
    assert read().keys() == catalog().keys()
    told = mistake(fault, (kill.property for kill in row.kills))
    assert read()[row.name] == told, f"known_mistakes.json is stale: run `python -m faults bless {row.name}`"


def test_the_page_on_strength_says_what_was_measured(rows_by_name: dict[str, Row]) -> None:
    strength = Strength.of(list(rows_by_name.values()))
    assert stale(strength) is None
    assert problems(strength) == []


@each_fault
def test_hypothesis_finds_it(fault: type[Fault]) -> None:
    subject = subject_of(fault)
    killers = sections_of(fault)["Killed by"]
    named = [property_ for property_ in PROPERTIES if property_.name in killers] or [
        property_ for property_ in PROPERTIES if f"{property_.family}: all" in killers
    ]
    assert any(falsify(property_, subject, max_examples=100) for property_ in named)


@each_fault
def test_a_fault_replaces_one_step_and_documents_it(fault: type[Fault]) -> None:
    check_entry(fault)
    assert list(sections_of(fault)) == [*WRITTEN, *MEASURED]
    assert all(sections_of(fault).values())


GOOD = """What it does.

    Why it is wrong:
        So.

    When it shows:
        Then.

    Seen in the wild:
        https://example.org/1
    """


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"__doc__": None}, "must begin with one line"),
        (
            {"__doc__": GOOD.replace("When it shows", "When")},
            "must have the headings Why it is wrong, When it shows, Seen in the wild",
        ),
        ({"__doc__": GOOD.replace("https://", "")}, "address of at least one report"),
        ({"root_cause": "masking: bad luck"}, "root_cause must be one of these"),
        ({"visible": Fault.visible}, "visible.case. is missing"),
        ({"softmax": lambda self, scores, empty: scores}, "exactly one step of MultiHeadAttention, it replaces combine, softmax"),
        ({"combine": None}, "it replaces none"),
    ],
)
def test_an_entry_that_is_none_is_told_what_to_mend(changes: dict[str, object], message: str) -> None:
    good = {"__doc__": GOOD, "root_cause": "score: implementation", "visible": staticmethod(lambda case: True)}
    entry = type("Draft", (Fault,), {**good, "combine": lambda self, weights, v: v, **changes})
    if changes.get("combine", entry) is None:
        del entry.combine
    with pytest.raises(FaultError, match=message):
        check_entry(entry)


@each_equivalent
def test_an_equivalent_is_killed_by_nothing(variant: type[Fault]) -> None:
    assert list(sections_of(variant)) == list(OF_EQUIVALENTS)
    step_of(variant)
    assert check_correct(subject_of(variant), seed=1, cases=6) == ()
