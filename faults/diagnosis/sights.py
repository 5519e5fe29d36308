"""What a subject shows on a case, compared with what another shows on the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from faults.looks import (
    COARSE,
    DECODED,
    GRADIENT,
    LATER,
    LATER_TRAINING,
    LOOKS,
    OUTPUT,
    PASSED_IN,
    RESET,
    TRAINING,
    TRAINING_GRADIENT,
    TRAINING_WEIGHTS,
    WEIGHTS,
)
from properties.case import Case
from properties.inputs import make_inputs
from properties.subject import Subject
from properties.supports import Supports
from properties.surroundings import seeded, undisturbed
from properties.time_limit import OutOfTime, Patience, time_limit

CHANCE = "what dropout may give"
DRAWS = 256  # calls to see what dropout may give
_FEW = 6  # weights at most that may be dropped or not, for that
_HANGING = 5  # times that a subject may hang, before it is not asked any more
_HANGS = "it has not ended"
_LIKELY = 4.0  # standard deviations between two counts of the same chance

# What rounding does to a wrong formula is not known, only what it does to the right one. A thousand times that is, in float64,
# still a million times less than what makes a mistake; in float32 there is less room.
_SLACK = {torch.float64: 1024.0, torch.float32: 16.0}
_FLOAT32 = torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Sight:
    """What came of a look."""

    tensors: tuple[Tensor | None, ...] = ()
    bounds: tuple[Tensor | float, ...] = ()  # how far rounding may lead the right ones
    raised: str = ""  # and then there are no others
    counts: Mapping[tuple[float, ...], int] | None = None  # of outputs, where it is left to chance
    backward: bool = False  # gradients: where a NaN gets to, on the way back, is a matter of how the same is written

    def usable(self, right: Sight) -> bool:
        """Did it return, and what is of the shape of the right thing?"""
        if self.raised or self.counts is not None:
            return not self.raised
        shapes = [tensor is not None and tensor.shape for tensor in self.tensors]
        return bool(right.raised) or shapes == [tensor is not None and tensor.shape for tensor in right.tensors]

    @property
    def spoilt(self) -> bool:
        """Is anything of it NaN?"""
        return any(tensor is not None and bool(tensor.isnan().any()) for tensor in self.tensors)

    def same(self, other: Sight, right: Sight, dtype: torch.dtype) -> bool | None:
        """Do two show the same, rounding aside? None: one of them shows nothing that can be used, and the other does.

        `right` is what the right one shows, `dtype` what they compute in.
        """
        usable = self.usable(right), other.usable(right)
        if not all(usable):
            return None if any(usable) else True
        if self.counts is not None and other.counts is not None:
            return _alike(self.counts, other.counts)
        rights: tuple[Tensor | None, ...] = right.tensors if not right.raised else (None,) * len(self.tensors)
        bounds = right.bounds if not right.raised else self.bounds
        pairs = zip(self.tensors, other.tensors, rights, bounds, strict=True)
        if self.backward and self.spoilt and other.spoilt:
            return True
        return all(_near(one, another, truth, bound, dtype) for one, another, truth, bound in pairs)


def looks(supports: Supports, case: Case) -> tuple[str, ...]:
    """What can be looked at on this case, of a subject that declares this; without dropout, since chance falls differently."""
    if case.dropout:
        few = case.batch * case.num_heads * case.T * case.S <= _FEW
        return (OUTPUT, *([CHANCE] if few else []))
    return (
        OUTPUT,
        *([WEIGHTS] if supports.weights else []),
        *([GRADIENT] if supports.gradients else []),
        LATER,
        TRAINING,
        *([TRAINING_WEIGHTS] if supports.training_weights else []),
        *([TRAINING_GRADIENT] if supports.gradients else []),
        LATER_TRAINING,
        PASSED_IN,
        *([DECODED, RESET] if supports.cache else []),
        COARSE,
    )


class Viewer:
    """Looks at one subject, and remembers what it saw."""

    def __init__(self, subject: Subject, patience: Patience | None = None) -> None:
        self.subject = subject
        self._patience = patience or Patience()
        self._seen: dict[tuple[str, Case], Sight] = {}
        self._hung = 0

    def see(self, look: str, case: Case) -> Sight:
        """What it shows; whatever it does, it shows something."""
        if (look, case) not in self._seen:
            try:
                with undisturbed(), time_limit(self._patience.seconds):
                    self._seen[look, case] = self._look(look, case)
            except OutOfTime:
                self._patience.lose()
                self._hung += 1
                self._seen[look, case] = Sight(raised=_HANGS)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._seen[look, case] = Sight(raised=type(error).__name__)
        return self._seen[look, case]

    def _look(self, look: str, case: Case) -> Sight:
        if self._hung == _HANGING:
            return Sight(raised=_HANGS)  # enough of that
        if look == CHANCE:
            return Sight(counts=_outcomes(self.subject, case))
        seen = list(LOOKS[look](self.subject, case))
        backward = look in (GRADIENT, TRAINING_GRADIENT)
        return Sight(tuple(tensor for tensor, _ in seen), tuple(bound for _, bound in seen), backward=backward)


def _near(one: Tensor | None, other: Tensor | None, right: Tensor | None, bound: Tensor | float, dtype: torch.dtype) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return one is other
    one, other = one.detach().to(torch.float64), other.detach().to(torch.float64)
    if one.numel() == 0:
        return True
    # Of the whole tensor: where the right one has an exact zero, the wrong ones may have numbers.
    largest = torch.stack([tensor.abs().nan_to_num(0.0, 0.0, 0.0).amax() for tensor in (one, other)]).amax()
    rounding = torch.as_tensor(bound, dtype=torch.float64).amax()
    slack = max(float(rounding), float(largest) * torch.finfo(dtype).eps) * _SLACK.get(dtype, 4.0)
    if bool((((one - other).abs() <= slack) | (one == other) | (one.isnan() & other.isnan())).all()):
        return True
    if right is None or dtype != torch.float64:
        return False
    # Both are off by what rounding in float32 explains, and by more than rounding in float64 does: the same mistake, which
    # never gives the same digits twice.
    right, coarse = right.detach().to(torch.float64), slack / _SLACK[dtype] * _FLOAT32
    off = [(tensor - right).abs() for tensor in (one, other)]
    return all(bool((error <= coarse).all()) and bool((error > slack).any()) for error in off)


def _outcomes(subject: Subject, case: Case) -> Counter[tuple[float, ...]]:
    """How often which output comes up in training, to five digits."""
    inputs = make_inputs(case, subject.dtype)
    layer = subject.layer(inputs)
    counts: Counter[tuple[float, ...]] = Counter()
    for seed in range(DRAWS):
        with seeded(seed):
            output = layer(inputs, training=True).output
        counts[tuple(float(f"{value:.4e}") + 0.0 for value in output.flatten().tolist())] += 1
    return counts


def _alike(one: Mapping[tuple[float, ...], int], other: Mapping[tuple[float, ...], int]) -> bool:
    """May both counts be of the same chance?"""
    return all(
        abs(one.get(value, 0) - other.get(value, 0)) <= _LIKELY * (one.get(value, 0) + other.get(value, 0)) ** 0.5
        for value in {*one, *other}
    )
