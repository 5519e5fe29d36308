"""Laws of heads: each is an attention of its own, and the output is their sum."""

from __future__ import annotations

from dataclasses import replace

import torch

from properties.case import Case
from properties.compare import assert_close, dimensions
from properties.property import Property
from properties.subject import Subject


def heads_may_be_permuted(subject: Subject, case: Case) -> None:
    """Heads in another order, with the weights and masks that belong to them, change nothing but the order of the weights."""
    layer, inputs = subject.start(case)
    order = torch.randperm(case.num_heads, generator=case.generator("law"))
    bound = subject.rounding(case)
    want, got = layer(inputs), layer(inputs.permute_heads(order))
    assert_close(got.output, want.output, bound.output, "output for permuted heads", subject.judged(inputs)[..., None])
    if want.weights is not None:
        some = inputs.visible().any(-1, keepdim=True)[:, order]
        assert_close(got.need_weights(), want.weights[:, order], bound.weights[:, order], "weights of permuted heads", some)


def the_output_is_the_sum_of_its_heads(subject: Subject, case: Case) -> None:
    """Let each head alone reach the output, and the outputs add up: W_O is linear, and heads meet nowhere before it."""
    layer, inputs = subject.start(case)
    bound, bias = subject.rounding(case).output, inputs.weights.b_o
    want = layer(inputs).output
    alone = [layer(inputs.only_head(head)).output for head in range(case.num_heads)]
    got = sum(alone[1:], alone[0]) - (0 if bias is None else (case.num_heads - 1) * bias)
    assert_close(got, want, (case.num_heads + 1) * bound, "sum of the heads' outputs", subject.judged(inputs)[..., None])


def a_head_is_a_layer_of_one_head(subject: Subject, case: Case) -> None:
    """h heads are h layers of one head each, added up.

    Catches what mixes heads, and a scale that takes the width of the model for the width of a head.
    """
    layer, inputs = subject.start(case)
    want, bias = layer(inputs).output, inputs.weights.b_o
    singles = [inputs.single_head(head) for head in range(case.num_heads)]
    one = subject.layer(singles[0])
    alone = [one(single).output for single in singles]
    got = sum(alone[1:], alone[0]) + (0 if bias is None else bias)
    bound = subject.rounding(case).output + sum(subject.bounds(single).output for single in singles)
    assert_close(got, want, bound, "sum of layers of one head", subject.judged(inputs)[..., None])


def grouped_heads_are_full_heads_with_repeated_weights(subject: Subject, case: Case) -> None:
    """Query head i reads key/value head i // (h // g): a layer with those weights repeated gives the same."""
    layer, inputs = subject.start(case)
    full = inputs.ungrouped()
    bound = subject.rounding(case).output
    want = subject.layer(full)(full).output
    assert_close(layer(inputs).output, want, bound, "output of grouped heads", subject.judged(inputs)[..., None])


def each_query_head_reads_its_own_group(subject: Subject, case: Case) -> None:
    """Let every key/value head hold one vector of its own for all tokens: each query head returns that of its group."""
    layer, inputs = subject.start(case)
    inputs = inputs.with_constant_feature()
    random = case.generator("law")
    only_first = torch.zeros_like(inputs.weights.w_v)
    only_first[:, 0] = torch.randn(len(only_first), generator=random, dtype=torch.float64).to(only_first.dtype)
    b_v = inputs.weights.b_v
    inputs = inputs.with_weights(w_v=only_first, b_v=None if b_v is None else torch.zeros_like(b_v)).with_identity_out()
    own = inputs.ungrouped().weights.w_v[:, 0]
    got = layer(inputs).output
    assert_close(got, own.expand_as(got), subject.bounds(inputs).output, "merged heads", inputs.attending()[..., None])


def every_head_chooses_for_itself(subject: Subject, case: Case) -> None:
    """Between two keys every head chooses on its own: the rows of many queries do not all lie on one line.

    With two keys, each head moves its part of the output along a line of its own. If all heads use the same weights, the sum
    moves along a single line, and no formula is needed to see that.
    """
    layer, inputs = subject.start(case)
    pair = inputs.take_keys(torch.arange(2))
    if pair.square != inputs.square:
        return
    random, bound = case.generator("law"), subject.bounds(pair).output
    rows: list[torch.Tensor] = []
    for _ in range(QUERIES):
        rows.append(layer(pair).output[0].to(torch.float64))
        apart = torch.cat(rows) - rows[0][0]
        if dimensions(apart, float(bound.max())) > 1:
            return
        pair = replace(pair, x=torch.randn(pair.x.shape, generator=random, dtype=torch.float64).to(pair.x.dtype))
    raise AssertionError(f"the outputs for {len(torch.cat(rows))} queries and two keys lie on a line, those of sample 0")


QUERIES = 16  # tries, of T queries each, to find rows that do not lie on one line
MORE_THAN_ONE = range(2, 1_000_000)

PROPERTIES = (
    Property(law=heads_may_be_permuted, needs=("formula", "equal_heads"), where={"num_kv_heads": (None,)}),
    Property(law=the_output_is_the_sum_of_its_heads, needs=("loads_weights",)),
    # Restricted so that the other layer, of wider or of more heads, shows nothing that the case itself does not: at d_head = 1 a
    # scale, at g = 1 a mistaken order of the key/value heads, in a batch a mask for every head that is now one for every sample.
    Property(
        law=a_head_is_a_layer_of_one_head,
        needs=("formula", "any_heads", "plain_scores"),
        where={"num_heads": MORE_THAN_ONE, "d_head": MORE_THAN_ONE, "batch": (1,)},
    ),
    Property(
        law=every_head_chooses_for_itself,
        needs=("double_precision", "plain_scores"),
        where={"num_heads": MORE_THAN_ONE, "keys": (2, 3, 4, 5), "mask": ("none",)},
    ),
    Property(law=grouped_heads_are_full_heads_with_repeated_weights, needs=("loads_weights",), where={"num_kv_heads": (2,)}),
    Property(law=each_query_head_reads_its_own_group, needs=("loads_weights", "whole_rows"), where={"num_kv_heads": (1, 2)}),
)
