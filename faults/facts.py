"""Facts about a case that decide whether a fault can show on it: the words in which `visible` is written."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import make_inputs


@functools.lru_cache(maxsize=4096)
def visible_keys(case: Case) -> Tensor:
    """Which query of which head may attend to which key, bool `[B, h, T, S]`."""
    return make_inputs(case).visible()


def keys_if(case: Case, **changed: Any) -> Tensor:
    """Which keys would be visible if these of the inputs were others, bool `[B, h, T, S]`."""
    return replace(make_inputs(case), **changed).visible()


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
    """Is a mask passed in, other than by the causal flag, a prefix or documents alone?"""
    return case.mask not in ("none", "is_causal", "prefix", "documents")


def mask_counts(case: Case) -> bool:
    """Would anything change if the mask tensor were left out: what is visible, a bias, or its gradient?"""
    return not torch.equal(keys_if(case, mask=None), visible_keys(case)) or mask_has_gradient(case)


def has_flag(case: Case) -> bool:
    """Is the causal flag given?"""
    return case.mask.startswith("is_causal")


def written_as_boolean(case: Case) -> bool:
    """Does a boolean mask come up: as the case's own, or because a law writes its additive mask, or its flag, as one?"""
    if has_flag(case):
        return case.mask == "is_causal" or case.encoding == "bool"
    return has_mask(case) and case.encoding != "bias"


def boolean_mask_hides(case: Case) -> bool:
    """Is any key hidden by a boolean mask?"""
    return written_as_boolean(case) and hides(case)


def written_as_additive(case: Case) -> bool:
    """Does an additive mask come up: as the case's own, or because a law writes its boolean mask as one?"""
    return has_mask(case) and (case.encoding != "bool" or not has_flag(case))


@functools.lru_cache(maxsize=4096)
def hidden_by_the_tensor(case: Case) -> Tensor:
    """Which keys the mask tensor hides that the causal flag, if given, does not hide anyway, bool `[B, h, T, S]`."""
    allowed = torch.ones(case.T, case.S, dtype=torch.bool)
    if has_flag(case):
        allowed = allowed.tril(case.S - case.T)
    return allowed & ~visible_keys(case)


def sways(case: Case) -> bool:
    """Is there a finite bias where a query has a choice?"""
    return has_mask(case) and case.encoding == "bias" and chooses(case)


def mask_has_gradient(case: Case) -> bool:
    """Does an additive mask get a gradient? It does where a query has a choice."""
    return has_mask(case) and case.encoding != "bool" and chooses(case)


def grouped(case: Case) -> bool:
    """Do several query heads share a key/value head?"""
    return case.g < case.num_heads
