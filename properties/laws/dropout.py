"""Laws of dropout that know neither the weights nor the formula: what the rows of the output may be in training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from properties.case import Case
from properties.compare import dimensions
from properties.inputs import Inputs
from properties.laws.heads import MORE_THAN_ONE
from properties.property import Property
from properties.subject import Layer, Subject

# At most. That a right dropout shows in none of them what a draw fails to show with probability 3/4 or less: (3/4)**100, 3e-13.
DRAWS = 100
SOME = 8  # for what is wrong in every draw, or in many


def one_key_is_dropped_or_scaled_up(subject: Subject, case: Case) -> None:
    """With one key and one head, training gives two rows, the key dropped or kept, with evaluation as their mean by p and 1 - p.

    Features that are dropped one by one give more rows than two, dropped scores only one, and what is kept and not scaled up has
    another mean.
    """
    layer, one = _one_key(subject, case)
    if one is None:
        return
    error, p = _error(subject, one), case.dropout
    mean = layer(one).output[0, 0].to(torch.float64)  # an evaluation, after which it must go on dropping
    rows: list[Tensor] = []
    for number, row in enumerate(_draws(layer, one, 0, 0), start=1):
        _collect(rows, row, error)
        if number >= SOME and len(rows) >= 2:
            break
    if len(rows) != 2:
        raise AssertionError(f"one key of one head, dropped or kept, gave {len(rows)} different rows in {number} draws, not 2")
    off = min(float((p * dropped + (1 - p) * kept - mean).abs().max()) for dropped, kept in (rows, rows[::-1]))
    if not off <= 2 * error:
        told = f"evaluation gives {_shown(mean)}, training {_shown(rows[0])} or {_shown(rows[1])}"
        raise AssertionError(f"{told}: the first is not the mean of the others by {p} and {1 - p}")


def no_draw_is_the_evaluation(subject: Subject, case: Case) -> None:
    """With one key, no draw gives what evaluation gives: what is not dropped is scaled up, if nothing is dropped as well."""
    layer, one = _one_key(subject, case)
    if one is None:
        return
    error = _error(subject, one)
    mean = layer(one).output[0, 0].to(torch.float64)
    for number, row in enumerate(_draws(layer, one, 0, 0, SOME), start=1):
        if (row - mean).abs().max() <= error:
            raise AssertionError(f"with one key, training gave in draw {number} what evaluation gives, {_shown(mean)}")


def one_key_is_dropped_by_whole_heads(subject: Subject, case: Case) -> None:
    """With one key, all that dropout can do is to take out heads: draws differ in no more dimensions than there are heads."""
    layer, one = _one_key(subject, case)
    if one is None:
        return
    error = _error(subject, one)
    mean = layer(one).output[0, 0].to(torch.float64)
    rows = torch.stack(list(_draws(layer, one, 0, 0, 2 * case.num_heads + SOME)))
    found = dimensions(rows - mean, error)
    if found > case.num_heads:
        raise AssertionError(f"with one key, dropout moves the output in {found} dimensions, and has only {case.num_heads} heads")


def every_head_drops_for_itself(subject: Subject, case: Case) -> None:
    """With one key, several heads give more than two rows in training: it is not all of them or none."""
    layer, one = _one_key(subject, case, heads=2)
    if one is None:
        return
    error = _error(subject, one)
    layer(one)  # an evaluation, after which it must go on dropping
    rows: list[Tensor] = []
    for row in _draws(layer, one, 0, 0):
        _collect(rows, row, error)
        if len(rows) > 2:
            return
    raise AssertionError(
        f"one key of {case.num_heads} heads gave {len(rows)} different rows in {DRAWS} draws: more can be dropped"
    )


def every_key_is_dropped_for_itself(subject: Subject, case: Case) -> None:
    """Dropout takes single keys out of a head, not whole heads: draws differ in more dimensions than there are heads.

    The keys are brought close to each other, so that none of them has next to no weight, however sharp the weights are.
    """
    layer, inputs = subject.start(case)
    inputs = inputs.with_keys(inputs.keys[:, :1] + (inputs.keys - inputs.keys[:, :1]) / 16)
    keys = inputs.visible().sum(-1)  # [B, h, T]
    choosing = ((keys > 1).any(1) & subject.judged(inputs)).nonzero()
    if not len(choosing):
        return
    b, t = choosing[int(torch.randint(len(choosing), (), generator=case.generator("law")))].tolist()
    heads, error = int((keys[b, :, t] > 0).sum()), _error(subject, inputs)
    mean = layer(inputs).output[b, t].to(torch.float64)
    rows: list[Tensor] = []
    for row in _draws(layer, inputs, b, t):
        rows.append(row - mean)
        if len(rows) > heads and dimensions(torch.stack(rows), error) > heads:
            return
    raise AssertionError(
        f"in {DRAWS} draws, dropout moved output[{b}, {t}] in no more dimensions than the {heads} heads that see keys"
    )


def equal_rows_are_dropped_apart(subject: Subject, case: Case) -> None:
    """Two queries, or two samples, that ask and see the same do not always lose the same: each draws for itself."""
    layer, inputs = subject.start(case)
    context = None if inputs.context is None else inputs.context[:1].expand_as(inputs.context).clone()
    inputs = replace(inputs, x=inputs.x[:1, :1].expand_as(inputs.x).clone(), context=context)
    error, bias = _error(subject, inputs), inputs.bias().transpose(1, 2).flatten(2).flatten(0, 1)  # [B*T, h*S]
    sees = (inputs.attending() & subject.judged(inputs)).flatten()
    equal = (bias[:, None] == bias).all(-1) & sees[:, None] & sees
    equal = equal & ~torch.eye(len(equal), dtype=torch.bool)
    for _ in range(DRAWS):
        if not equal.any():
            return
        rows = layer(inputs, training=True).output.to(torch.float64).flatten(0, 1)
        equal = equal & ((rows[:, None] - rows).abs().amax(-1) <= error)
    if equal.any():
        one, other = ([int(n) // case.T, int(n) % case.T] for n in equal.nonzero()[0])
        raise AssertionError(f"in {DRAWS} draws, output{one} [b, t] was always that of {other}, which asks and sees the same")


def _one_key(subject: Subject, case: Case, heads: int = 1) -> tuple[Layer, Inputs | None]:
    """A layer, and inputs cut to one query and one key, no mask; None if so many heads never see the same key in the case."""
    layer, inputs = subject.start(case)
    one = replace(inputs, mask=None, is_causal=False).first(1, 1)
    return layer, one if (inputs.visible().sum(1) >= heads).any() else None


def _error(subject: Subject, inputs: Inputs) -> float:
    """How far two elements that should be equal may lie apart in training: what is kept grows, and what it is off by."""
    return float(subject.bounds(inputs).output.max()) / (1 - inputs.dropout)


def _draws(layer: Layer, inputs: Inputs, b: int, t: int, number: int = DRAWS) -> Iterator[Tensor]:
    """The same row of the output in so many trainings, float64 [d]."""
    for _ in range(number):
        yield layer(inputs, training=True).output[b, t].to(torch.float64)


def _collect(rows: list[Tensor], row: Tensor, error: float) -> None:
    """Add the row, unless it is one of those already there."""
    if not any(bool((row - other).abs().max() <= 2 * error) for other in rows):
        rows.append(row)


def _shown(row: Tensor) -> str:
    return "[" + ", ".join(f"{number:.6g}" for number in row.tolist()) + "]"


# Where roundoff is this small, rows that differ do not look equal, nor heads dependent, by chance.
_NEEDS = ("dropout", "double_precision")
_RATES = (0.5, 0.25)

PROPERTIES = (
    Property(law=one_key_is_dropped_or_scaled_up, needs=_NEEDS, where={"dropout": _RATES, "num_heads": (1,)}),
    Property(law=no_draw_is_the_evaluation, needs=_NEEDS, where={"dropout": _RATES}),
    Property(law=one_key_is_dropped_by_whole_heads, needs=_NEEDS, where={"dropout": _RATES, "d_head": MORE_THAN_ONE}),
    Property(law=every_head_drops_for_itself, needs=_NEEDS, where={"dropout": _RATES, "num_heads": MORE_THAN_ONE}),
    Property(law=every_key_is_dropped_for_itself, needs=_NEEDS, where={"dropout": _RATES, "d_head": MORE_THAN_ONE}),
    Property(law=equal_rows_are_dropped_apart, needs=(*_NEEDS, "unordered"), where={"dropout": _RATES}),
)
