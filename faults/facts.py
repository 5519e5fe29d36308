"""Facts about a case that decide whether a fault can show on it: the words in which `visible` is written."""

from __future__ import annotations

import functools

from torch import Tensor

from properties.case import Case
from properties.inputs import make_inputs


@functools.lru_cache(maxsize=4096)
def visible_keys(case: Case) -> Tensor:
    """Which query of which head may attend to which key, bool `[B, h, T, S]`."""
    return make_inputs(case).visible()


def sees(case: Case) -> bool:
    """Does any query see a key? If none does, nothing reaches the output."""
    return bool(visible_keys(case).any())


def chooses(case: Case) -> bool:
    """Does any query see two keys? With only one its weight is 1, whatever the score."""
    return bool((visible_keys(case).sum(-1) > 1).any())


def hides(case: Case) -> bool:
    """Does the mask, or the causal flag, hide any key from any query?"""
    return not visible_keys(case).all()


def has_empty_rows(case: Case) -> bool:
    """Does any query of any head see no key at all?"""
    return bool((~visible_keys(case).any(-1)).any())


def has_mask(case: Case) -> bool:
    """Is a mask passed in, other than by the causal flag alone?"""
    return case.mask not in ("none", "is_causal")


def grouped(case: Case) -> bool:
    """Do several query heads share a key/value head?"""
    return case.g < case.num_heads
