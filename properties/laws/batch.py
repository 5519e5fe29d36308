"""Laws of the batch: a sample is alone, and its padding is nothing."""

from __future__ import annotations

import torch

from properties.case import EXPLICIT, HIDING, Case
from properties.compare import assert_close
from properties.property import Property
from properties.subject import Subject


def a_sample_alone_gives_its_own_rows(subject: Subject, case: Case) -> None:
    """Every sample of a batch gets what it gets alone, whatever the lengths and masks of the others."""
    layer, inputs = subject.start(case)
    want = layer(inputs).output
    bound = subject.rounding(case).output
    judged = subject.judged(inputs)[..., None]
    for b in range(case.batch):
        row = torch.tensor([b])
        assert_close(layer(inputs.rows(row)).output, want[row], bound[row], f"output of sample {b} alone", judged[row])


def padding_changes_nothing(subject: Subject, case: Case) -> None:
    """More padding, any amount on any side, leaves the rows of the real tokens as they are."""
    layer, inputs = subject.start(case)
    visible = inputs.visible()
    # What a fault needs to show must be in the case: a row that sees one key and not another, in self-attention also a mask that
    # is not its own transpose (padding is hidden and yet asks). Padding is not to bring it in.
    if not (~visible & visible.any(-1, keepdim=True)).any():
        return
    random = case.generator("law")
    at, amount = int(torch.randint(case.S + 1, (), generator=random)), int(torch.randint(1, 4, (), generator=random))
    padding = torch.randn(case.batch, amount, case.d_model, generator=random, dtype=torch.float64).to(inputs.x.dtype)
    real = (
        torch.cat([torch.arange(at), torch.arange(at + amount, case.S + amount)]) if case.keys is None else torch.arange(case.T)
    )
    padded = inputs.insert_padding(at, padding)
    if padded.square != inputs.square or (case.keys is None and torch.equal(visible, visible.mT)):
        return
    bound = subject.rounding(case).output
    want = layer(inputs).output
    got = layer(padded).output[:, real]
    assert_close(got, want, bound, f"output with {amount} padding tokens at {at}", subject.judged(inputs)[..., None])


PROPERTIES = (
    Property(law=a_sample_alone_gives_its_own_rows, where={"batch": (2, 3)}),
    Property(law=padding_changes_nothing, needs=("unordered",), where={"mask": tuple(m for m in EXPLICIT if m in HIDING)}),
)
