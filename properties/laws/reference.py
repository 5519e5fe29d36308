"""Laws that know the right numbers: the formula in float64, and its closed form for two keys."""

from __future__ import annotations

import math

import torch

from properties.case import Case
from properties.compare import assert_close
from properties.inputs import gradients, merge_heads
from properties.oracle import attend, truth
from properties.property import Property
from properties.rounding import gradient_bounds
from properties.subject import Subject


def output_is_the_formula(subject: Subject, case: Case) -> None:
    """The output is concat(softmax(q k^T / sqrt(d_head) + mask) v) W_O^T.

    Computed query by query in float64. Almost every mistake shows here; the other laws say which one it is, and hold for those
    who have no formula to compare with.
    """
    layer, inputs = subject.start(case)
    want, bound = truth(case, subject.dtype), subject.rounding(case)
    assert_close(layer(inputs).output, want.output, bound.output, "output", subject.judged(inputs)[..., None])


def weights_are_the_formula(subject: Subject, case: Case) -> None:
    """The returned weights are softmax(q k^T / sqrt(d_head) + mask), for every head its own.

    A layer can compute its output from the right weights and still return others: an average over heads, scores, or weights after
    dropout.
    """
    layer, inputs = subject.start(case)
    want, bound = truth(case, subject.dtype), subject.rounding(case)
    got = layer(inputs).need_weights()
    assert_close(got, want.weights, bound.weights, "weights", inputs.visible().any(-1, keepdim=True))


def gradients_are_those_of_the_formula(subject: Subject, case: Case) -> None:
    """The gradients of tokens, weights and additive mask are those of the formula, for a random cotangent.

    A sum as loss would not do: it is blind to whatever the softmax does to a constant. Right values with a cut or altered
    backward pass train a network that never learns what its forward pass computes.
    """
    layer, inputs = subject.start(case)
    judged = subject.judged(inputs)
    if not judged.all() and not subject.supports.finite_empty_rows:
        return
    cotangent = torch.randn(inputs.x.shape, generator=case.generator("law"), dtype=torch.float64) * judged[..., None]
    ours, our_leaves = inputs.leaves()
    theirs, their_leaves = inputs.to(torch.float64).leaves()
    bound = gradient_bounds(inputs, cotangent, subject.rounding(case))
    want = gradients(attend(theirs).output, cotangent, their_leaves)
    for name, got in gradients(layer(ours, grad=True).output, cotangent, our_leaves).items():
        assert_close(got, want[name], bound[name], f"gradient of {name}")


def two_keys_share_by_the_sigmoid(subject: Subject, case: Case) -> None:
    """Between two keys, the first gets sigmoid((s1 - s2) / sqrt(d_head)), where s is its product with the query.

    The one law that sees a wrong scale without knowing the formula for more keys: every symmetry holds at any scale.
    """
    layer, inputs = subject.start(case)
    keys = min(case.S, 2)
    pair = inputs.first(keys if case.keys is None else case.T, keys).with_identity_out()
    if pair.square != inputs.square:
        return
    q, k, v = pair.projected()
    first, last = v[:, :, :1], v[:, :, -1:]  # the same one, if there is only one key
    share = torch.sigmoid((q @ (k[:, :, :1] - k[:, :, -1:]).mT) / math.sqrt(case.d_head))  # [B, h, T, 1]
    bound = subject.bounds(pair).output
    assert_close(layer(pair).output, merge_heads(last + share * (first - last)), bound, "merged heads")


PROPERTIES = (
    Property(law=output_is_the_formula, needs=("formula",)),
    Property(law=weights_are_the_formula, needs=("formula", "weights")),
    Property(law=gradients_are_those_of_the_formula, needs=("formula", "gradients")),
    Property(law=two_keys_share_by_the_sigmoid, needs=("formula", "plain_scores"), where={"mask": ("none",)}),
)
