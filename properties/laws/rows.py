"""Laws about the weights of one query: a distribution over the keys it may see, and what follows for its output."""

from __future__ import annotations

import torch

from properties.case import HIDING, Case
from properties.compare import assert_all, assert_close
from properties.inputs import merge_heads, project, split_heads
from properties.oracle import truth
from properties.property import Property
from properties.subject import Subject


def rows_sum_to_one(subject: Subject, case: Case) -> None:
    """The weights of a query that sees a key sum to 1.

    They do not after a softmax over another axis, after masking what the softmax made, or after dropout.
    """
    layer, inputs = subject.start(case)
    weights = layer(inputs).need_weights()
    roundings = 4 * (case.S + 4) * torch.finfo(subject.precision).eps
    total = weights.to(torch.float64).sum(-1)
    assert_close(total, torch.ones_like(total), roundings, "sum of weights", inputs.visible().any(-1))


def no_weight_is_negative(subject: Subject, case: Case) -> None:
    """No weight is negative: a softmax gives none."""
    layer, inputs = subject.start(case)
    weights = layer(inputs).need_weights()
    seen = inputs.visible().any(-1, keepdim=True)
    assert_all((weights >= 0) | ~seen, weights, "weights must not be negative")


def hidden_keys_get_no_weight(subject: Subject, case: Case) -> None:
    """A key that a query may not see has weight exactly 0.

    Not nearly 0: exp(-inf) is 0 in every dtype. A small weight is a mask that was too weak, and lets large contents through.
    """
    layer, inputs = subject.start(case)
    visible = inputs.visible()
    weights = layer(inputs).need_weights()
    assert_close(weights, torch.zeros_like(weights), 0.0, "weight of a hidden key", ~visible & visible.any(-1, keepdim=True))


def weights_explain_the_output(subject: Subject, case: Case) -> None:
    """The returned weights, times the values, merged and projected, are the output.

    So the weights one looks at are those that were used, on the values that belong to them.
    """
    layer, inputs = subject.start(case)
    result = layer(inputs)
    true, bound = truth(case, subject.dtype), subject.rounding(case)
    w = inputs.to(torch.float64).weights
    want = project(merge_heads(result.need_weights().to(torch.float64) @ true.values), w.w_o, w.b_o)
    assert_close(result.output, want, bound.output, "output", subject.judged(inputs)[..., None])


def constant_values_come_back(subject: Subject, case: Case) -> None:
    """If every value is the same vector, that vector is what every query gets, whatever it attends to.

    Weights that do not sum to 1 show here, even those that are not returned; so do values that are not the values.
    """
    layer, inputs = subject.start(case)
    inputs = inputs.with_constant_feature()
    only_first = torch.zeros_like(inputs.weights.w_v)
    only_first[:, 0] = inputs.weights.w_v[:, 0]
    inputs = inputs.with_weights(w_v=only_first).with_identity_out()
    w = inputs.ungrouped().weights
    constant = w.w_v[:, 0] + (0 if w.b_v is None else w.b_v)
    got = layer(inputs).output
    bound = subject.bounds(inputs).output
    assert_close(got, constant.expand_as(got), bound, "merged heads", inputs.attending()[..., None])


def outputs_stay_among_the_values(subject: Subject, case: Case) -> None:
    """In every head and feature, the mix lies between the smallest and the largest value that the query may see.

    Weights are non-negative and sum to 1: a mix cannot leave the hull of what is mixed.
    """
    layer, inputs = subject.start(case)
    inputs = inputs.with_identity_out()
    heads = split_heads(layer(inputs).output.to(torch.float64), case.d_head)
    values = truth(case, subject.dtype).values[:, :, None]  # [B, h, 1, S, d_head]
    seen = inputs.visible()[..., None]  # [B, h, T, S, 1]
    low = values.masked_fill(~seen, torch.inf).amin(-2)
    high = values.masked_fill(~seen, -torch.inf).amax(-2)
    bound = subject.bounds(inputs).heads
    judged = inputs.attending()[:, None, :, None]
    assert_all(
        (heads >= low - bound) & (heads <= high + bound) | ~judged, heads, "[b, h, t, f] must lie among the values it sees"
    )


PROPERTIES = (
    Property(law=rows_sum_to_one, needs=("weights", "whole_rows")),
    Property(law=no_weight_is_negative, needs=("weights",)),
    Property(law=hidden_keys_get_no_weight, needs=("weights",), where={"mask": HIDING}),
    Property(law=weights_explain_the_output, needs=("weights", "loads_weights")),
    Property(law=constant_values_come_back, needs=("loads_weights", "whole_rows")),
    Property(law=outputs_stay_among_the_values, needs=("loads_weights", "whole_rows")),
)
