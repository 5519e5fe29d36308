"""Every property holds for the clean attention: its values, in all modes, are tested here and nowhere else."""

from __future__ import annotations

import pytest
from holding import hold

from faults.subject import subject
from properties.laws import PROPERTIES
from properties.property import Property


@pytest.mark.parametrize("law", PROPERTIES, ids=lambda law: law.name)
def test_clean_attention(law: Property) -> None:
    hold(law, subject())
