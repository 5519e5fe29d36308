"""Every property holds for the oracle as well: a law that the formula itself breaks is no law."""

from __future__ import annotations

import pytest
import torch
from holding import a_fifth, hold  # noqa: F401 - a fixture

from faults.subject import DECLARED, subject
from properties.inputs import Inputs
from properties.laws import PROPERTIES
from properties.oracle import attend
from properties.property import Property
from properties.subject import Layer, Result, Subject, Supports


def _run(inputs: Inputs, training: bool) -> Result:
    if inputs.x.shape[0] == 0:  # it goes through the samples one by one, and has nothing to stack if there are none
        return Result(torch.zeros_like(inputs.x), torch.zeros(inputs.scores_shape, dtype=inputs.x.dtype))
    truth = attend(inputs)
    return Result(truth.output, truth.weights)


# It reads the visible keys only, so what stands in the hidden ones may be anything; of all subjects it alone can promise that.
ORACLE = Subject(
    name="oracle",
    build=lambda inputs: Layer(_run),
    supports=Supports(
        dtypes=("float64",), dropout=False, module=False, ignores_nonfinite_hidden=True, nan_comes_out=True, any_device=False
    ),
)


@pytest.mark.usefixtures("a_fifth")  # it takes its time
@pytest.mark.parametrize("law", PROPERTIES, ids=lambda law: law.name)
def test_oracle(law: Property) -> None:
    hold(law, ORACLE)


def test_every_law_applies_to_some_subject() -> None:
    subjects = (*map(subject, DECLARED), ORACLE)
    assert [law.name for law in PROPERTIES if all(law.not_applicable(one) for one in subjects)] == []
