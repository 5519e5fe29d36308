"""PyTorch's own attention obeys every law that applies to it."""

from __future__ import annotations

import pytest
from holding import hold

from properties.adapters.pytorch import multihead_attention, scaled_dot_product_attention
from properties.laws import PROPERTIES
from properties.property import Property
from properties.subject import Subject

each_law = pytest.mark.parametrize("law", PROPERTIES, ids=lambda law: law.name)


@each_law
@pytest.mark.parametrize("subject", [multihead_attention(), scaled_dot_product_attention()], ids=lambda subject: subject.name)
def test_pytorch(law: Property, subject: Subject) -> None:
    hold(law, subject)
