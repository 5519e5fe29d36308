"""`visible` is exact: on every case on which a fault says it shows some property fails, and on no other."""

from __future__ import annotations

from random import Random

import pytest

from faults.catalog import catalog
from faults.fault import Fault, sections_of, subject_of
from faults.smallest import simpler
from properties.case import Case, sample
from properties.laws import PROPERTIES
from properties.runner import failure

CASES = 2  # random cases of either kind that `visible` is held to; benchmarks/visibility.py runs many more

each_fault = pytest.mark.parametrize("fault", catalog().values(), ids=catalog())


def broken_law(fault: type[Fault], case: Case) -> str | None:
    """The first property that fails on the case, with its evidence."""
    subject = subject_of(fault)
    for property_ in PROPERTIES:
        if property_.not_applicable(subject) is None and property_.about(case, subject):
            evidence = failure(property_, subject, case)
            if evidence is not None:
                return f"{property_.name}: {evidence}"
    return None


@each_fault
def test_a_fault_shows_exactly_where_it_says(fault: type[Fault]) -> None:
    random = Random(0)
    missing = {True: CASES, False: CASES}
    for _ in range(150 * CASES):  # enough to meet what is rare: one query, one head
        case = sample(random, subject_of(fault).supports.fields())
        visible = fault.visible(case)
        if missing[visible] == 0:
            continue
        missing[visible] -= 1
        evidence = broken_law(fault, case)
        assert visible == (evidence is not None), f"visible({case!r}) is {visible}; broken: {evidence}"
        if not any(missing.values()):
            break
    assert missing[True] < CASES, "no random case showed it"


@each_fault
def test_the_smallest_case_reveals_and_no_smaller_one_does(fault: type[Fault]) -> None:
    case = eval(sections_of(fault)["Smallest case"], {"Case": Case})
    assert fault.visible(case)
    assert broken_law(fault, case)
    below = list(simpler(case, subject_of(fault).supports.fields()))
    for smaller in below:
        assert not fault.visible(smaller), f"{smaller!r} reveals it too"
    for smaller in below[-1:]:  # that no law fails where it is not visible is tested above
        assert broken_law(fault, smaller) is None, repr(smaller)
