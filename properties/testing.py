"""The properties as tests of another project: the one place that knows pytest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from properties.case import HIDING
from properties.conformance import check_expected
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import hypothesis_test
from properties.time_limit import TIME_LIMIT, Patience
from properties.wrap import as_subject


def attention_tests(
    attention: object,
    *,
    expected_failures: Mapping[str, str] | None = None,
    time_limit: float = TIME_LIMIT,
    **declared: Any,
) -> Callable[[Property], None]:
    """Return a test function with one test for each property; give it a name that pytest collects.

        test_attention = attention_tests(MyAttention)

    Its tests are called `family-name`, always in the same order, so `-k causality` runs a family, and workers of pytest-xdist
    agree on them. A property that does not apply is skipped, with the reason. How many cases are drawn, and how, is up to the
    Hypothesis profile that is loaded. HypoFuzz collects them too: `hypothesis fuzz` goes on drawing, guided by coverage.

    Args:
        attention: a class like the lesson's (see `of_class`), a function of q, k and v (see `of_function`), or a `Subject`, as
            `of_module` and `black_box` make them.
        expected_failures: names of properties that are known to fail, each with the reason: strict xfails.
        time_limit: seconds that one case may take.
        declared: what the attention supports, fields of `Supports`, and options of `of_class` or `of_function`.
    """
    subject = as_subject(attention, **declared)
    expected = check_expected(expected_failures or {}, subject)
    if not set(subject.supports.masks) & set(HIDING):
        masks = ", ".join(subject.supports.masks)
        warnings.warn(f"{subject.name} is tested without any mask that hides keys: it declares {masks}", stacklevel=2)

    def parameter(law: Property) -> Any:
        marks = []
        if why := law.not_applicable(subject):
            marks.append(pytest.mark.skip(reason=f"not applicable: {why}"))
        if reason := expected.get(law.name):
            marks.append(pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError))
        return pytest.param(law, id=law.full_name, marks=marks)

    check = hypothesis_test(subject, Patience(time_limit))

    @pytest.mark.parametrize("law", [parameter(law) for law in PROPERTIES])
    def test(law: Property) -> None:
        check(law)

    vars(test).update(vars(check))  # a Hypothesis test, too, to whoever looks for those
    return test
