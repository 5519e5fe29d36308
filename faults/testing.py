"""The catalog as pytest tests, one for each fault: `python -m pytest --pyargs faults.testing`, and `--junitxml FILE` behind it.

The one place here that knows pytest; `faults.catalog` leaves it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from faults.catalog import catalog, equivalents, find
from faults.fault import family_of, name_of, subject_of
from faults.kills import quick
from faults.matrix import check_correct, glance


def catalog_tests(names: Iterable[str] | None = None) -> Callable[[str, Any], None]:
    """Return a test function with one test for each fault, or each of these; give it a name that pytest collects.

        test_fault = catalog_tests()

    Its tests are called `family-name`, so `-k rotary-` runs a family. In JUnit's XML the family is the class of the test case,
    `faults.rotary`. A test fails if no property kills the fault, or, for an equivalent that is named, if one does.
    """
    chosen = [find(name) for name in (catalog() if names is None else names)]

    # The class of a test case has no other way to be said, and pytest calls this one experimental.
    @pytest.mark.filterwarnings("ignore:record_xml_attribute is an experimental feature")
    @pytest.mark.parametrize(
        "name", [pytest.param(name_of(fault), id=f"{family_of(fault).replace(' ', '-')}-{name_of(fault)}") for fault in chosen]
    )
    def test(name: str, record_xml_attribute: Callable[[str, str], None]) -> None:
        record_xml_attribute("classname", find(name).__module__)
        record_xml_attribute("name", name)
        if problem := problem_of(name):
            raise AssertionError(problem)

    return test


def problem_of(name: str) -> str | None:
    """What is wrong with an entry of the catalog; None if nothing is."""
    if name in equivalents():
        wrong = check_correct(subject_of(find(name)), properties=quick(find(name)))
        return (
            "; ".join(f"{name} is right, and {kill.property} fails on {kill.case!r}: {kill.evidence}" for kill in wrong) or None
        )
    row = glance(find(name))
    if not row.kills:
        return f"{name}: no property fails on the first case on which it shows"
    if row.cases is None:
        return f"{name}: no property fails on any random case on which it shows"
    return None


test_fault = catalog_tests()
