"""Laws of positions: what counts is how far apart tokens are."""

from __future__ import annotations

from dataclasses import replace

import torch

from properties.case import EXPLICIT, HIDING, Case
from properties.compare import assert_close
from properties.laws.dependence import assert_changed
from properties.oracle import attend
from properties.property import Property
from properties.subject import Subject

FAR_OUT = 3000  # bfloat16 tells whole numbers apart up to 256, float16 up to 2048


def a_shift_of_all_positions_changes_nothing(subject: Subject, case: Case) -> None:
    """A sequence that stands elsewhere, its distances the same, gives the same."""
    _assert_shifted_is_the_same(subject, case, 5)


def positions_are_counted_if_none_are_given(subject: Subject, case: Case) -> None:
    """Without positions, the tokens stand at 0, 1, 2, ..."""
    layer, inputs = subject.start(case)
    given = replace(inputs, positions=inputs.places()[0].contiguous())
    bound = subject.rounding(case).output
    want = layer(inputs).output
    assert_close(layer(given).output, want, bound, "output with positions that count", subject.judged(inputs)[..., None])


def position_zero_changes_nothing(subject: Subject, case: Case) -> None:
    """With every token at position 0, the layer is one without positions."""
    _assert_no_positions(subject, case, 0)


def one_position_for_all_is_none(subject: Subject, case: Case) -> None:
    """With every token at the same position, wherever it is, the layer is one without positions.

    Queries and keys turn together: a rotation keeps lengths, and the angles between them. What is no rotation does not.
    """
    _assert_no_positions(subject, case, 3)


def every_position_counts(subject: Subject, case: Case) -> None:
    """A token that moves away changes the row of a query that has a choice between it and others that stay."""
    layer, inputs = subject.start(case)
    visible = inputs.visible()
    counts = (visible & (visible.sum(-1, keepdim=True) > 1)).any(1)  # [B, T, S]
    there = inputs.places()[0].contiguous()
    placed = replace(inputs, positions=there)
    for s in range(case.S):
        places = there.clone()
        places[:, s] += 11
        rows = counts[..., s].clone()
        rows[:, s] = False  # the query moves with it
        moved = replace(inputs, positions=places)
        in_formula = case.placing != "none"  # otherwise it is a placing that has no name here
        assert_changed(subject, layer, placed, [moved], rows, f"another position of token {s}", in_formula=in_formula)


def far_out_positions_are_told_apart(subject: Subject, case: Case) -> None:
    """A sequence that stands far out gives what it gives at the beginning.

    Half precision cannot count as far: there, tokens share a position with their neighbours.
    """
    _assert_shifted_is_the_same(subject, case, FAR_OUT)


def equal_tokens_are_told_apart_by_their_distance(subject: Subject, case: Case) -> None:
    """Where all tokens are the same one, the slopes of ALiBi and the mask alone decide, whatever the weights of the layer are."""
    layer, inputs = subject.start(case)
    same = inputs.with_keys(inputs.x[:, :1].expand_as(inputs.x).contiguous())
    want = same.bias().softmax(-1)
    bound = subject.bounds(same).weights
    assert_close(layer(same).need_weights(), want, bound, "weights of equal tokens", same.visible().any(-1, keepdim=True))


def left_padding_changes_nothing(subject: Subject, case: Case) -> None:
    """Padding at the left moves every token, and leaves the rows of the real ones as they are."""
    layer, inputs = subject.start(case)
    visible = inputs.visible()
    if inputs.mask is None or not (~visible & visible.any(-1, keepdim=True)).any():
        return  # as for padding elsewhere: nothing is to be hidden that was not before
    random = case.generator("law")
    padding = torch.randn(case.batch, 2, case.d_model, generator=random, dtype=torch.float64).to(inputs.x.dtype)
    positions = inputs.positions
    if positions is not None:
        positions = torch.cat([positions.new_zeros(case.batch, 2), positions], dim=1)
    padded = replace(inputs.insert_padding(0, padding), positions=positions)
    bound = subject.rounding(case).output + subject.bounds(padded).output[:, 2:]
    want = layer(inputs).output
    got = layer(padded).output[:, 2:]
    assert_close(got, want, bound, "output with 2 padding tokens at the left", subject.judged(inputs)[..., None])


def _assert_shifted_is_the_same(subject: Subject, case: Case, by: int) -> None:
    layer, inputs = subject.start(case)
    shifted = replace(inputs, positions=inputs.places()[0] + by)
    bound = subject.rounding(case).output + subject.bounds(shifted).output
    want = layer(inputs).output
    assert_close(layer(shifted).output, want, bound, f"output, all positions {by} further on", subject.judged(inputs)[..., None])


def _assert_no_positions(subject: Subject, case: Case, position: int) -> None:
    layer, inputs = subject.start(case)
    same = replace(inputs, positions=torch.full((case.batch, case.T), position))
    without = replace(inputs, positions=None, mechanisms=replace(inputs.mechanisms, placing="none"))
    bound = subject.bounds(same).output + subject.bounds(without).output
    want = attend(without).output
    assert_close(layer(same).output, want, bound, f"output, all tokens at position {position}", subject.judged(inputs)[..., None])


PADDED = (*(mask for mask in EXPLICIT if mask in HIDING), "is_causal+padding")
NOTHING_AT_0 = (
    "rotary",
    "rotary_interleaved",
    "alibi",
)  # a relative bias has a number for a distance of 0, and one for all that lies ahead

PROPERTIES = (
    Property(law=a_shift_of_all_positions_changes_nothing, needs=("explicit_positions",)),
    Property(law=positions_are_counted_if_none_are_given, needs=("explicit_positions",), where={"positions": ("counted",)}),
    Property(law=position_zero_changes_nothing, needs=("explicit_positions", "formula"), where={"placing": NOTHING_AT_0}),
    Property(law=one_position_for_all_is_none, needs=("explicit_positions", "formula"), where={"placing": NOTHING_AT_0}),
    Property(law=every_position_counts, needs=("explicit_positions",), where={"placing": ("none", *NOTHING_AT_0)}),
    Property(law=far_out_positions_are_told_apart, needs=("explicit_positions",)),
    Property(law=equal_tokens_are_told_apart_by_their_distance, needs=("weights", "whole_rows"), where={"placing": ("alibi",)}),
    Property(law=left_padding_changes_nothing, needs=("ordered",), where={"mask": PADDED, "keys": (None,)}),
)
