"""Run one property on one subject, as a pytest test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from properties.property import Property
from properties.runner import check
from properties.subject import Subject


def hold(law: Property, subject: Subject) -> None:
    """Fail if the law does not hold for the subject; skip, and say why, if it does not apply."""
    if reason := law.not_applicable(subject):
        pytest.skip(reason)
    check(law, subject)


@pytest.fixture
def a_fifth() -> Iterator[None]:
    """A fifth of the cases that the loaded profile draws, for what is many times the work of one subject."""
    ambient = settings.get_current_profile_name()
    profile = settings.get_profile(ambient)
    settings.register_profile("a fifth", profile, max_examples=max(1, profile.max_examples // 5))
    settings.load_profile("a fifth")
    yield
    settings.load_profile(ambient)
