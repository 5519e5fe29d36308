"""Laws of how the numbers combine: the softmax ignores a common shift, and values enter linearly."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from properties.case import EXPLICIT, HIDING, Case
from properties.compare import assert_close
from properties.inputs import Inputs
from properties.property import Property
from properties.subject import Subject


def a_shift_of_all_keys_changes_nothing(subject: Subject, case: Case) -> None:
    """One vector added to every key adds one number to a query's scores, and the softmax does not see it."""
    layer, inputs = subject.start(case)
    inputs = inputs.with_constant_feature()
    w_k = inputs.weights.w_k.clone()
    w_k[:, 0] += torch.randn(w_k.shape[0], generator=case.generator("law"), dtype=torch.float64).to(w_k.dtype)
    shifted = inputs.with_weights(w_k=w_k)
    bound = subject.bounds(inputs).output + subject.bounds(shifted).output
    want = layer(inputs).output
    assert_close(layer(shifted).output, want, bound, "output, all keys shifted", subject.judged(inputs)[..., None])


def values_enter_linearly(subject: Subject, case: Case) -> None:
    """The output for a sum of values is the sum of the outputs: values are mixed, and nothing else is done to them."""
    layer, inputs = subject.start(case)
    w, random = inputs.weights, case.generator("law")
    other = torch.randn(w.w_v.shape, generator=random, dtype=torch.float64).to(w.w_v.dtype)
    parts = [inputs, inputs.with_weights(w_v=other, b_o=None if w.b_o is None else torch.zeros_like(w.b_o))]
    whole = inputs.with_weights(w_v=w.w_v + other, b_v=None if w.b_v is None else 2 * w.b_v)
    bound = torch.stack([subject.bounds(i).output for i in (*parts, whole)]).sum(0)
    got = layer(parts[0]).output + layer(parts[1]).output
    assert_close(got, layer(whole).output, bound, "sum of outputs for two sets of values", subject.judged(inputs)[..., None])


def a_shift_of_the_mask_changes_nothing(subject: Subject, case: Case) -> None:
    """A number added to the whole mask changes nothing: the softmax does not see what all scores have in common.

    A row that is divided by more than its own sum, or not at all, is no softmax, whatever its weights are.
    """
    layer, inputs = subject.start(case)
    if inputs.mask is None:
        return
    shifted = replace(inputs, mask=inputs.mask + SHIFT)
    bound = subject.bounds(inputs).output + subject.bounds(shifted).output
    want = layer(inputs).output
    got = layer(shifted).output
    assert_close(got, want, bound, f"output, {SHIFT} added to the mask,", subject.judged(inputs)[..., None])


def a_bias_multiplies_the_odds(subject: Subject, case: Case) -> None:
    """A number c added to the mask at a key multiplies its odds against the other keys by exp(c), whatever its score.

    One head moves along the line from its mix of the other keys to the value of this one. Both ends are had by hiding, so no
    weights need to be known, and no formula for the scores.
    """
    layer, inputs = subject.start(case)
    mask, visible, random = inputs.mask, inputs.visible(), case.generator("law")
    if mask is None or visible.all():
        return  # hiding is not to be brought in
    four = mask if mask.dim() == 4 else mask[None, None]
    if case.num_heads > 1 and bool((four == four[:, :1]).all()):
        return  # what is done to one head would give heads masks of their own; done to all, it moves along no line
    i, s = (int(torch.randint(size, (), generator=random)) for size in (four.shape[1], case.S))
    others = four[:, i] > -math.inf  # [.., T, S]
    its_own = torch.zeros_like(others)
    its_own[..., s] = others[..., s]
    others = others & ~its_own
    choice = its_own.any(-1, keepdim=True) & others.any(-1, keepdim=True)  # rows that see this key, and another
    if not choice.any():
        return

    def masked(change: Tensor) -> Inputs:
        changed = four.clone()
        changed[:, i] += change.to(four.dtype)
        return replace(inputs, mask=changed.reshape(mask.shape))

    nothing = torch.zeros(choice.shape, dtype=torch.float64)
    without, alone = (masked(nothing.masked_fill(choice & hidden, -math.inf)) for hidden in (its_own, others))
    raised = masked(nothing.masked_fill(choice & its_own, SHIFT))
    four_of_them = (inputs, raised, without, alone)
    error = torch.stack([subject.bounds(i).output for i in four_of_them]).amax((0, 3), keepdim=True)[0]  # [B, T, 1]
    start, got, none, all_ = (layer(i).output.to(torch.float64) for i in four_of_them)
    way = all_ - none
    share = ((start - none) * way).sum(-1, keepdim=True) / (way * way).sum(-1, keepdim=True)
    share = share.nan_to_num(0.0).clamp(0.0, 1.0)
    odds = math.exp(SHIFT)
    share = share * odds / (1 - share + share * odds)
    # The share is off by up to 4 * sqrt(d) errors, divided by the way; the odds make at most `odds` times as much of it.
    bound = (4 + 4 * case.d_model**0.5 * odds) * error
    rows = (choice[..., 0].expand(case.batch, case.T) & inputs.attending() & subject.judged(inputs))[..., None]
    assert_close(got, none + share * way, bound, f"output, {SHIFT} added to the mask at key {s},", rows)


def no_bias_and_zeros_give_zeros(subject: Subject, case: Case) -> None:
    """Tokens of zeros give zeros in a layer without biases: every value is zero, and so is any mix of them."""
    layer, inputs = subject.start(case)
    context = None if inputs.context is None else torch.zeros_like(inputs.context)
    got = layer(replace(inputs, x=torch.zeros_like(inputs.x), context=context)).output
    assert_close(got, torch.zeros_like(got), 0.0, "output for zeros, without biases,", subject.judged(inputs)[..., None])


SHIFT = 1.0  # what is added to a mask: no dtype rounds it

PROPERTIES = (
    Property(law=a_shift_of_all_keys_changes_nothing, needs=("formula", "plain_scores")),
    Property(law=values_enter_linearly, needs=("loads_weights",)),
    Property(law=a_shift_of_the_mask_changes_nothing, needs=("whole_rows",), where={"mask": EXPLICIT, "encoding": ("bias",)}),
    Property(
        law=a_bias_multiplies_the_odds,
        needs=("whole_rows",),
        where={"mask": tuple(m for m in EXPLICIT if m in HIDING), "encoding": ("bias",)},
    ),
    Property(law=no_bias_and_zeros_give_zeros, needs=("unordered", "optional_bias"), where={"bias": (False,)}),
)
