"""Laws of how the numbers combine: the softmax ignores a common shift, and values enter linearly."""

from __future__ import annotations

import torch

from properties.case import Case
from properties.compare import assert_close
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


PROPERTIES = (
    Property(law=a_shift_of_all_keys_changes_nothing, needs=("formula", "plain_scores")),
    Property(law=values_enter_linearly, needs=("loads_weights",)),
)
