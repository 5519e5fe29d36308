"""Run one property on one subject, as a pytest test."""

from __future__ import annotations

import pytest

from properties.property import Property
from properties.runner import check
from properties.subject import Subject


def hold(law: Property, subject: Subject) -> None:
    """Fail if the law does not hold for the subject; skip, and say why, if it does not apply."""
    if reason := law.not_applicable(subject):
        pytest.skip(reason)
    check(law, subject)
