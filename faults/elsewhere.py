"""What is wrong with a fault whose output, on a first call in evaluation, is right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from faults.looks import (
    COARSE,
    DECODED,
    GRADIENT,
    LATER,
    LATER_TRAINING,
    LOOKS,
    PASSED_IN,
    RESET,
    TRAINING,
    TRAINING_GRADIENT,
    TRAINING_WEIGHTS,
    WEIGHTS,
    Look,
)
from properties.case import Case
from properties.subject import Subject


def also_wrong(broken: Subject, clean: Subject, cases: Sequence[Case]) -> tuple[str, ...]:
    """Name what differs from the clean attention, on any of the cases, by more than rounding explains.

    Of each group only the first that does: those after it follow from it.
    """
    found: dict[str, None] = {}
    for group in _GROUPS:
        wrong = (
            what
            for what, look in group.items()
            if what in found or any(_differs(LOOKS[look], broken, clean, case) for case in cases)
        )
        found |= dict.fromkeys(itertools.islice(wrong, 1))
    return tuple(found)


def differences(broken: Subject, clean: Subject, case: Case) -> tuple[str, ...]:
    """Name all that differs on this case by more than rounding explains; that the first of two raises differs, too."""
    return tuple(what for what, look in LOOKS.items() if _differs(look, broken, clean, case))


def alike(one: Subject, other: Subject, case: Case) -> bool:
    """Do two subjects, either of which may raise, the same on this case?"""
    return not any(_told_apart(look, one, other, case) for look in LOOKS.values())


def near(got: Tensor | None, clean: Tensor | None, bound: Tensor | float) -> bool:
    """Is it what it should be, but for rounding?"""
    if got is None or clean is None or got.shape != clean.shape:
        return got is clean
    got, clean = got.to(torch.float64), clean.to(torch.float64)
    return bool((((got - clean).abs() <= bound) | (got == clean)).all())


def _differs(look: Look, broken: Subject, right: Subject, case: Case) -> bool:
    try:
        seen = list(look(broken, case))
    except Exception:
        return True
    return any(not near(got, clean, bound) for (got, _), (clean, bound) in zip(seen, look(right, case), strict=True))


def _told_apart(look: Look, one: Subject, other: Subject, case: Case) -> bool:
    try:
        list(look(other, case))
    except Exception:
        try:
            list(look(one, case))
        except Exception:
            return False
        return True
    return _differs(look, one, other, case)


_GROUPS: tuple[dict[str, str], ...] = (  # what to say, and the look
    {WEIGHTS: WEIGHTS, TRAINING_WEIGHTS: TRAINING_WEIGHTS},
    {TRAINING: TRAINING, LATER: LATER_TRAINING},
    {GRADIENT: GRADIENT, TRAINING: TRAINING, TRAINING_GRADIENT: TRAINING_GRADIENT},
    {PASSED_IN: PASSED_IN},
    {LATER: LATER},
    {DECODED: DECODED, RESET: RESET},
    {COARSE: COARSE},
)
