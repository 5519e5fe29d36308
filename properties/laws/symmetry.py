"""Laws of order: queries do not know of each other, keys are a set."""

from __future__ import annotations

import torch

from properties.case import EXPLICIT, Case
from properties.compare import assert_close
from properties.property import Property
from properties.subject import Subject


def permuted_queries_give_permuted_rows(subject: Subject, case: Case) -> None:
    """Queries in another order give the same rows in that order.

    Queries and keys must move apart: a permutation of both at once is the usual test, and most mistakes survive it.
    """
    layer, inputs = subject.start(case)
    if inputs.square:
        return  # a mask that is its own transpose would lose that
    order = torch.randperm(case.T, generator=case.generator("law"))
    bound = subject.rounding(case).output
    want = layer(inputs).output[:, order]
    got = layer(inputs.take_queries(order)).output
    assert_close(got, want, bound[:, order], "output of permuted queries", subject.judged(inputs)[:, order, None])


def permuted_keys_change_nothing(subject: Subject, case: Case) -> None:
    """Keys, with their values and their columns of the mask, in another order give the same output, and permuted weights."""
    layer, inputs = subject.start(case)
    if inputs.square:
        return  # as above
    order = torch.randperm(case.S, generator=case.generator("law"))
    bound = subject.rounding(case)
    want, got = layer(inputs), layer(inputs.take_keys(order))
    assert_close(got.output, want.output, bound.output, "output for permuted keys", subject.judged(inputs)[..., None])
    if want.weights is not None:
        some = inputs.visible().any(-1, keepdim=True)
        assert_close(got.need_weights(), want.weights[..., order], bound.weights[..., order], "weights of permuted keys", some)


def a_query_alone_gives_its_own_row(subject: Subject, case: Case) -> None:
    """Leaving out some of the queries leaves the rows of the others as they are.

    With fewer queries than keys, a softmax over the wrong axis, and all that takes one length for the other, cannot hide.
    """
    layer, inputs = subject.start(case)
    random = case.generator("law")
    kept = torch.randperm(case.T, generator=random)[: int(torch.randint(1, case.T + 1, (), generator=random))]
    fewer = inputs.take_queries(kept)
    if inputs.square or fewer.square:
        return
    bound = subject.rounding(case).output
    want = layer(inputs).output[:, kept]
    got = layer(fewer).output
    assert_close(got, want, bound[:, kept], "output of some of the queries", subject.judged(inputs)[:, kept, None])


def permuted_tokens_give_permuted_rows(subject: Subject, case: Case) -> None:
    """In self-attention, tokens in another order, the mask with them, give the same rows in that order."""
    layer, inputs = subject.start(case)
    order = torch.randperm(case.T, generator=case.generator("law"))
    bound = subject.rounding(case).output
    want = layer(inputs).output[:, order]
    got = layer(inputs.take_tokens(order)).output
    assert_close(got, want, bound[:, order], "output of permuted tokens", subject.judged(inputs)[:, order, None])


def any_key_may_come_first(subject: Subject, case: Case) -> None:
    """Turn the keys by one place after another, in self-attention the queries with them, and no row is another.

    A permutation drawn at random may leave everything as it was, of two keys every other time. What treats the first key, or the
    last, otherwise than the rest meets every key in that place here.
    """
    layer, inputs = subject.start(case)
    if case.keys is not None and inputs.square:
        return  # as above
    bound, judged = subject.rounding(case).output, subject.judged(inputs)[..., None]
    want = layer(inputs).output
    for by in range(1, case.S):
        order = torch.arange(case.S).roll(by)
        turned = inputs.take_keys(order) if case.keys is not None else inputs.take_tokens(order)
        got = layer(turned).output
        if case.keys is None:
            got = got[:, order.argsort()]
        assert_close(got, want, bound, f"output, keys turned by {by}", judged)


def self_attention_is_attention_to_oneself(subject: Subject, case: Case) -> None:
    """Attending to x as context, the same tensor or an equal one, is attending to x.

    A layer that asks "is it the same tensor?" to choose its path answers differently for a copy.
    """
    layer, inputs = subject.start(case)
    if case.S == 1 < case.T:
        return  # x in the place of one key would bring in a choice
    alone = inputs.of_itself(None)
    want = layer(alone).output
    bound = subject.bounds(alone).output
    assert_close(layer(inputs.of_itself(inputs.x)).output, want, bound, "output with context=x")
    assert_close(layer(inputs.of_itself(inputs.x.clone())).output, want, bound, "output with context=x.clone()")


CROSS = (1, 2, 3, 4, 5)
WITHOUT_FLAG = ("none", *EXPLICIT)

PROPERTIES = (
    Property(law=permuted_queries_give_permuted_rows, needs=("unordered",), where={"keys": CROSS, "mask": WITHOUT_FLAG}),
    Property(law=permuted_keys_change_nothing, needs=("unordered",), where={"keys": CROSS, "mask": WITHOUT_FLAG}),
    Property(law=a_query_alone_gives_its_own_row, needs=("unordered",), where={"keys": CROSS, "mask": WITHOUT_FLAG}),
    Property(law=permuted_tokens_give_permuted_rows, needs=("unordered",), where={"keys": (None,), "mask": WITHOUT_FLAG}),
    Property(law=any_key_may_come_first, needs=("unordered",), where={"mask": WITHOUT_FLAG}),
    Property(law=self_attention_is_attention_to_oneself, where={"keys": CROSS, "mask": ("none",)}),
)
