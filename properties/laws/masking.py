"""Laws of masks: a hidden key is no key at all, however the mask is written."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from properties.case import EXPLICIT, HIDING, Case
from properties.compare import assert_close
from properties.inputs import Inputs, gradients, split_heads
from properties.oracle import truth
from properties.property import Property
from properties.subject import Subject


def hidden_keys_can_be_deleted(subject: Subject, case: Case) -> None:
    """A sample without the keys that its mask hides from every query gives the same output as with them.

    Wherever they lie: at the right, at the left, or between the others.
    """
    layer, inputs = subject.start(case)
    sample = torch.randint(case.batch, (1,), generator=case.generator("law"))
    whole = inputs.rows(sample)
    kept = whole.visible().flatten(0, 2).any(0).nonzero().flatten()
    if not 0 < len(kept) < case.S:
        return
    less = whole.take_tokens(kept) if case.keys is None else whole.take_keys(kept)
    if less.square != whole.square:
        return
    rows = kept if case.keys is None else torch.arange(case.T)
    bound = subject.rounding(case).output[sample][:, rows]
    want = layer(whole).output[:, rows]
    assert_close(layer(less).output, want, bound, "output without the hidden keys", subject.judged(less)[..., None])


def content_of_hidden_keys_is_irrelevant(subject: Subject, case: Case) -> None:
    """What stands in the keys and values that a query may not see does not reach it, be it 1e30.

    A mask that only makes a key unlikely is beaten by a large score; weights that are only nearly 0 let a large value through.
    """
    layer, inputs = subject.start(case)
    visible = inputs.visible()
    # [B, h, T, S]: heads that see some key, of queries that see this one in no head: where a head sees it, it counts.
    unaware = ~visible.any(1, keepdim=True) & visible.any(-1, keepdim=True)
    if subject.supports.loads_weights:
        inputs = inputs.with_identity_out()  # a row of one head is judged by what this head may not see
        what, parts, bound = "merged heads", partial(split_heads, d_head=case.d_head), subject.bounds(inputs).heads
    else:  # a row of the output, by what no head may see
        unaware = unaware.all(1, keepdim=True)
        what, parts, bound = "output", partial(split_heads, d_head=case.d_model), subject.bounds(inputs).output[:, None]
    if case.keys is None:
        unaware &= ~torch.eye(case.T, dtype=torch.bool)  # to change a token changes its own query
    size = min(1e30, torch.finfo(inputs.x.dtype).max ** 0.45)  # in float32, sums of its squares have to fit
    noise = torch.randn(inputs.keys.shape, generator=case.generator("law"), dtype=torch.float64).to(inputs.x.dtype) * size
    want = parts(layer(inputs).output)
    for s in unaware.flatten(0, 2).any(0).nonzero().flatten().tolist():
        for content in (noise[:, s], -noise[:, s]):  # of the scores that it makes, one sign or the other is large
            keys = inputs.keys.clone()
            keys[:, s] = content
            got = parts(layer(inputs.with_keys(keys)).output)
            assert_close(got, want, bound, f"{size:.0e} in key {s}, hidden from this query: {what}", unaware[..., s, None])


def nonfinite_hidden_tokens_are_irrelevant(subject: Subject, case: Case) -> None:
    """NaN and infinity in tokens that no query may see change nothing.

    0 times NaN is NaN: only a layer that never touches hidden values can promise this, hence it is declared.
    """
    layer, inputs = subject.start(case)
    unseen = ~inputs.visible().flatten(1, 2).any(1)  # [B, S]
    bound = subject.rounding(case).output
    want = layer(inputs).output
    judged = subject.judged(inputs) if case.keys is not None else subject.judged(inputs) & ~unseen
    for value in (math.nan, math.inf):
        got = layer(inputs.with_keys(inputs.keys.masked_fill(unseen[..., None], value))).output
        assert_close(got, want, bound, f"output with {value} in unseen tokens", judged[..., None])


def a_mask_may_be_written_in_any_form(subject: Subject, case: Case) -> None:
    """One mask gives one output, whether boolean or additive, of two axes or four, repeated or written out, contiguous or not."""
    layer, inputs = subject.start(case)
    want = layer(inputs).output
    bound = subject.rounding(case).output
    for form, mask in _forms(inputs, case.encoding, subject.supports.encodings):
        got = layer(replace(inputs, mask=mask)).output
        assert_close(got, want, bound, f"output with {form}", subject.judged(inputs)[..., None])


def empty_rows_are_as_declared(subject: Subject, case: Case) -> None:
    """A query that sees no key gets what the subject declares: zero weights and context, or NaN, or the mean of all values.

    The formula has no answer for it, so there is no right one; but there must be one.
    """
    layer, inputs = subject.start(case)
    empty = ~inputs.visible().any(-1)  # [B, h, T]
    if not empty.any():
        return
    inputs = inputs.with_identity_out()
    result = layer(inputs)
    heads = split_heads(result.output, case.d_head)  # [B, h, T, d_head]
    policy = subject.supports.empty_rows
    if policy == "uniform":
        values = truth(case, subject.dtype).values  # [B, h, S, d_head]
        want, share = values.mean(-2, keepdim=True).expand_as(heads), 1 / case.S
        bound = 4 * (case.S + case.d_model) * torch.finfo(subject.precision).eps * (1 + float(values.abs().max()))
    else:
        share, bound = (math.nan if policy == "nan" else 0.0), 0.0
        want = torch.full_like(heads, share)
    assert_close(heads, want, bound, "context of an empty row", empty[..., None])
    if result.weights is not None:
        assert_close(result.weights, torch.full_like(result.weights, share), bound, "weight in an empty row", empty[..., None])


def empty_rows_harm_no_gradient(subject: Subject, case: Case) -> None:
    """With empty rows in the batch, every gradient of the other rows is finite.

    The softmax of a row of nothing but -inf is NaN, and 0 * NaN is NaN: its output may be thrown away, the shared weights are
    poisoned all the same, while the loss looks healthy.
    """
    layer, inputs = subject.start(case)
    attending = inputs.attending()
    if attending.all():
        return
    leaves, named = inputs.leaves()
    used = layer(leaves, grad=True).output[attending]
    for name, gradient in gradients(used, torch.ones_like(used), named).items():
        if not gradient.isfinite().all():
            raise AssertionError(f"the gradient of {name} is not finite, though only rows that see a key are used")


def _forms(inputs: Inputs, encoding: str, encodings: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """The same mask in other forms, with what they are called."""
    mask = inputs.mask
    if mask is None:
        raise ValueError("_forms: there is no mask")
    B, h, T, S = inputs.scores_shape
    four = mask if mask.dim() == 4 else mask[None, None]
    yield "a mask of four axes", four
    yield "its mask expanded over batch and heads", four.expand(B, h, T, S)
    yield "its mask written out", four.expand(B, h, T, S).contiguous()
    yield "a transposed mask", four.mT.contiguous().mT
    yield "a strided mask", torch.stack([four, four], dim=-1)[..., 0]
    if encoding == "bool" and "additive" in encodings:
        yield "an additive mask", torch.zeros(mask.shape, dtype=inputs.x.dtype).masked_fill(~mask, -math.inf)
    if encoding == "additive" and "bool" in encodings:
        yield "a boolean mask", mask == 0


PROPERTIES = (
    Property(law=hidden_keys_can_be_deleted, needs=("unordered",), where={"mask": tuple(m for m in EXPLICIT if m in HIDING)}),
    Property(law=content_of_hidden_keys_is_irrelevant, where={"mask": HIDING}),
    Property(law=nonfinite_hidden_tokens_are_irrelevant, needs=("ignores_nonfinite_hidden",), where={"mask": HIDING}),
    Property(law=a_mask_may_be_written_in_any_form, where={"mask": EXPLICIT}),
    Property(law=empty_rows_are_as_declared, needs=("loads_weights", "declared_empty_rows"), where={"mask": HIDING}),
    Property(law=empty_rows_harm_no_gradient, needs=("gradients", "finite_empty_rows"), where={"mask": HIDING}),
)
