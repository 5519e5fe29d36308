"""What the values of a mask mean: mistaken polarity, and one encoding taken for another."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from faults.facts import chooses, has_mask, visible_keys
from faults.fault import Fault
from properties.case import EXPLICIT, Case
from properties.inputs import make_inputs

# Facts, also for the other families of masks.


@functools.lru_cache(maxsize=4096)
def attending_rows(case: Case) -> Tensor:
    """Which queries see a key in every head, bool `[B, 1, T, 1]`. What a law makes of the case is compared on these alone."""
    return make_inputs(case).attending()[:, None, :, None]


@functools.lru_cache(maxsize=4096)
def hidden_by_the_tensor(case: Case) -> Tensor:
    """Which keys the mask tensor hides that the causal flag, if given, does not hide anyway, bool `[B, h, T, S]`."""
    allowed = torch.ones(case.T, case.S, dtype=torch.bool)
    if case.mask.startswith("is_causal"):
        allowed = allowed.tril(case.S - case.T)
    return allowed & ~visible_keys(case)


def hides_from_attending(case: Case) -> bool:
    """Is any key hidden from a query that sees another key in every head?"""
    return bool((~visible_keys(case) & attending_rows(case)).any())


def attends(case: Case) -> bool:
    """Does any query see a key in every head?"""
    return bool(attending_rows(case).any())


def passes_booleans(case: Case) -> bool:
    """Is the mask tensor of the case boolean?"""
    return has_mask(case) and case.encoding == "bool"


def also_written_as_boolean(case: Case) -> bool:
    """Does a law write the mask of the case as a boolean tensor, though the case does not?"""
    return case.mask == "is_causal" or (case.mask in EXPLICIT and case.encoding == "additive")


def boolean_mask_hides(case: Case) -> bool:
    """Is any key hidden by a boolean tensor, be it the case's own or another form of its mask?"""
    if passes_booleans(case):
        return bool(hidden_by_the_tensor(case).any()) or hides_from_attending(case)
    return also_written_as_boolean(case) and hides_from_attending(case)


def sways(case: Case) -> bool:
    """Is there a finite bias where a query has a choice?"""
    return has_mask(case) and case.encoding == "bias" and chooses(case)


def gradient_of_mask_counts(case: Case) -> bool:
    """Is there an additive mask whose gradient is not zero: one under which an attending query has a choice?"""
    choosing = visible_keys(case).sum(-1, keepdim=True) > 1  # [B, h, T, 1]
    return has_mask(case) and case.encoding != "bool" and bool((choosing & attending_rows(case)).any())


# Faults.


class InvertedPolarity(Fault):
    """Read True as "hide this key" instead of "may attend".

    Why it is wrong:
        Two conventions live in one library: `nn.MultiheadAttention` hides where the mask is True,
        `scaled_dot_product_attention` shows. A mask made for the one and given to the other shows exactly what it should hide.

    When it shows:
        On every boolean mask, even one that hides nothing: then every row is empty. Additive masks are read correctly.

    Seen in the wild:
        https://github.com/rasbt/LLMs-from-scratch/issues/1061
        https://github.com/lucidrains/halonet-pytorch/issues/4
        https://github.com/InseeFrLab/torchTextClassifiers/pull/92
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = ~attn_mask
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return passes_booleans(case) or (also_written_as_boolean(case) and attends(case))


class BooleanMaskAdded(Fault):
    """Add the boolean mask to the scores as if it were an additive one, so that True counts as 1 and False as 0.

    Why it is wrong:
        The addition is accepted, for a bool is promoted to a number. Visible keys gain a factor e over hidden ones, and nothing
        is hidden. Any test that asks only whether the mask changes the output is content.

    When it shows:
        Whenever a boolean mask hides a key; one that hides nothing adds 1 to every score of a row, which the softmax does not
        see.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/41443
        https://github.com/huggingface/diffusers/issues/14342
        https://github.com/huggingface/pytorch-image-models/pull/2674
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores, attn_mask = scores + attn_mask, None
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return boolean_mask_hides(case)


class ZeroOneMaskAdded(Fault):
    """Turn a boolean mask into floats with 1 for a hidden key, and add these without the large negative factor.

    Why it is wrong:
        `(1 - mask) * -10000` is half a mask as long as the second factor is missing. A hidden key then gains 1 on its score: it
        is not hidden, it is preferred.

    When it shows:
        Whenever a boolean mask hides a key. In a row that hides all of them, every score gains the same, and no key is hidden.

    Seen in the wild:
        https://github.com/Comfy-Org/ComfyUI/pull/13471
        https://github.com/HKUSTDial/flash-sparse-attention/issues/146
        https://github.com/timeseriesAI/tsai/issues/171
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = 1.0 - attn_mask.to(scores.dtype)  # now 1 = hidden, as the next line would have needed, had there been one
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return boolean_mask_hides(case)


class FloatMaskReadAsBoolean(Fault):
    """Cast an additive mask with `.bool()`, so that 0 (leave the score alone) becomes False (hide the key).

    Why it is wrong:
        In an additive mask 0 means visible and -inf hidden; as booleans 0 is False and -inf is True. The cast inverts the mask,
        and of a mask that carries a bias it shows every key and forgets the bias.

    When it shows:
        On every additive mask of zeros and -inf. With a bias, when it hides a key, or when a query has a choice that the bias
        sways.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/38094
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, None if attn_mask is None else attn_mask.bool(), is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        if passes_booleans(case):  # a law writes it as an additive one
            return case.mask in EXPLICIT and attends(case)
        if case.encoding == "bias":
            return has_mask(case) and (chooses(case) or bool(hidden_by_the_tensor(case).any()))
        return has_mask(case)


class BiasLost(Fault):
    """Keep of an additive mask only where it is -inf, and forget the finite numbers in it.

    Why it is wrong:
        An additive mask can carry distances, relative positions, a learned preference. Reduced to visible and hidden it still
        masks perfectly, so every test of masking passes; what the model knew of positions is gone, and a learned bias gets no
        gradient.

    When it shows:
        When a query sees at least two keys under a bias. Where all that is finite is 0, only the gradient of the mask is
        missing.

    Seen in the wild:
        https://github.com/keras-team/keras-hub/pull/2977
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask > -math.inf
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return sways(case) or gradient_of_mask_counts(case)
