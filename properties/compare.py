"""Comparisons that fail with evidence: which number, where, what it should be, and how much of it rounding explains."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_close(got: Tensor, want: Tensor, bound: Tensor | float, what: str, where: Tensor | None = None) -> None:
    """Raise AssertionError unless |got - want| <= bound everywhere (or `where` it is True).

    `bound` and `where` broadcast to the shape of `want`. NaN is close to NaN only, and an infinity to itself.
    """
    if got.shape != want.shape:
        raise AssertionError(f"{what} has shape {list(got.shape)}, should have {list(want.shape)}")
    got, want = got.detach().to(torch.float64), want.detach().to(torch.float64)
    wrong = ~(((got - want).abs() <= bound) | (got == want) | (got.isnan() & want.isnan()))
    if where is not None:
        wrong = wrong & where
    if not wrong.any():
        return
    excess = torch.where(wrong, (got - want).abs().nan_to_num(torch.inf), -1.0)
    at = torch.unravel_index(excess.argmax(), excess.shape)
    allowed = float(torch.as_tensor(bound, dtype=torch.float64).expand(want.shape)[at])
    place = ", ".join(str(int(i)) for i in at)
    explained = f"off by {float((got - want)[at].abs()):.3g}; rounding explains {allowed:.1g}" if allowed else "should be equal"
    digits = 9 if f"{float(got[at]):.9g}" != f"{float(want[at]):.9g}" else 17
    raise AssertionError(f"{what}[{place}] = {float(got[at]):.{digits}g}, should be {float(want[at]):.{digits}g} ({explained})")


def assert_all(condition: Tensor, values: Tensor, claim: str) -> None:
    """Raise AssertionError unless the condition holds everywhere; `values` are what it was asked of."""
    if condition.all():
        return
    at = tuple(int(i) for i in (~condition).nonzero()[0])
    raise AssertionError(f"{claim}, but {list(at)} is {float(values[at]):.9g}")


def dimensions(rows: Tensor, error: float) -> int:
    """Return how many dimensions the rows `[n, d]` span for certain, if every element may be off by `error`.

    A singular value moves by no more than the norm of what is added to the matrix (Weyl).
    """
    values = torch.linalg.svdvals(rows.detach().to(torch.float64).nan_to_num(0.0, 0.0, 0.0))
    return int((values > error * rows.numel() ** 0.5).sum())
