"""PyTorch's own attention obeys every law that applies to it."""

from __future__ import annotations

import pytest
from holding import hold

from properties.adapters.pytorch import multihead_attention, scaled_dot_product_attention
from properties.case import Case
from properties.conformance import find
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import failure
from properties.subject import Subject

each_law = pytest.mark.parametrize("law", PROPERTIES, ids=lambda law: law.name)


@each_law
@pytest.mark.parametrize("subject", [multihead_attention(), scaled_dot_product_attention()], ids=lambda subject: subject.name)
def test_pytorch(law: Property, subject: Subject) -> None:
    if law.name == "a_batch_of_none_works" and subject.supports.weights:
        pytest.skip("see below")
    if law.name == "every_submodule_is_called" and subject.supports.module:
        pytest.skip("see below")
    hold(law, subject)


def test_pytorch_returns_no_weights_for_a_batch_of_none() -> None:
    """In evaluation, for self-attention with biases and an even number of heads; see docs/wild.md."""
    law, case = find("a_batch_of_none_works"), Case(num_heads=2, bias=True, alignment="top_left")
    assert failure(law, multihead_attention(), case) == "it declares that it returns weights, and returned None"


def test_pytorch_does_not_call_its_out_projection() -> None:
    """It reads the weight; see docs/wild.md."""
    evidence = failure(find("every_submodule_is_called"), multihead_attention(), Case(alignment="top_left"))
    assert evidence == "in evaluation out_proj was not called: no hook on it runs, only its parameters are read"
