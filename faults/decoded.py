"""Facts about a sequence that is handed over piece by piece, for the faults that have a cache."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from faults.facts import has_mask, visible_keys
from properties.case import Case
from properties.inputs import causal, make_inputs


def warm_pieces(case: Case) -> list[tuple[int, int]]:
    """The pieces that meet a cache that is not empty: all but the first."""
    return case.pieces()[1:]


def static(case: Case) -> bool:
    """Has the cache a fixed number of slots?"""
    return case.spare is not None


def past(case: Case) -> Tensor:
    """Which key came in an earlier piece than which query, bool `[T, S]`."""
    begins = torch.tensor([begin for begin, end in case.pieces() for _ in range(begin, end)])
    return torch.arange(case.S) < begins[:, None]


def sees_the_past(case: Case) -> bool:
    """Does any query see a key that came in an earlier piece?"""
    return bool((visible_keys(case) & past(case)).any())


def beams_see_the_past(case: Case, samples: slice = slice(None)) -> bool:
    """Does any query see, after a reorder, a key from before it? Beams are reordered after the first piece."""
    first = case.chunks()[0]
    return case.batch > 1 and bool(visible_keys(case)[samples, :, first:, :first].any())


def seen_without_causality(case: Case) -> Tensor:
    """What a query would see if no future and no window were hidden from it, bool `[B, h, T, S]`."""
    inputs = make_inputs(case)
    return replace(inputs, is_causal=False, mechanisms=replace(inputs.mechanisms, window=None)).visible()


def future_leaks(case: Case, some: list[tuple[int, int]]) -> bool:
    """Is there, in one of these pieces, a key that nothing but causality hides?"""
    keys = seen_without_causality(case) & ~causal(case.T, case.S)
    return any(bool(keys[:, :, begin:end, :end].any()) for begin, end in some)


def reads_others(case: Case, piece: tuple[int, int], holds: Tensor) -> bool:
    """Does a query of this piece meet other tokens, if slot j holds keys and values of token `holds[j]`?

    The mask goes by slots. Which of the tokens that are seen stands in which slot does not matter, unless slots have a bias.
    """
    begin, end = piece
    slots = visible_keys(case)[:, :, begin:end, :end]
    tokens = torch.zeros_like(slots)
    tokens[..., holds] = slots
    biased = has_mask(case) and case.encoding == "bias"
    moved = slots & (holds != torch.arange(end)) & (slots.sum(-1, keepdim=True) > 1)
    return bool((tokens != slots).any() or (biased and moved.any()))


def misplaced(case: Case, wrong: Tensor) -> bool:
    """Does a query that has a choice see a key at a wrong distance? `wrong` broadcasts to `[B, h, T, S]`."""
    keys = visible_keys(case)
    return bool((keys & (keys.sum(-1, keepdim=True) > 1) & wrong).any())


def misplaced_at(case: Case, places: Tensor) -> bool:
    """Does it, if the tokens stand at these places, `[T]` or `[B, T]`?"""
    apart = make_inputs(case).places()[0]
    right, got = (p[..., :, None] - p[..., None, :] for p in (apart, places.expand_as(apart)))
    return misplaced(case, (right != got)[:, None])
