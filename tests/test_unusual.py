"""Attention unlike `attn` obeys every law if it is right; with a mistake natural to its style it breaks the law it should."""

from __future__ import annotations

from random import Random

import pytest
from holding import a_fifth, hold  # noqa: F401 - a fixture
from torch import nn
from unusual import (
    RIGHT,
    WRONG,
    Bmm,
    BmmMaskRepeated,
    Einsum,
    EinsumExchanged,
    FourthRoot,
    FourthRootThrice,
    LoopInterleaved,
    Online,
    OnlineStaleSum,
    subject_of,
)

from properties import PROPERTIES, Case, failure
from properties.case import MASKS
from properties.property import Property

LAWS = {law.name: law for law in PROPERTIES}
SUBJECTS = {attention: subject_of(attention) for attention in RIGHT + WRONG}
CASES = 6  # of each law for what is wrong: the law named below needs four at most

# For each: the law that it breaks, a case on which it does, what is said then; and a law that it obeys all the same.
EVIDENCE: dict[type[nn.Module], tuple[str, Case, str, str]] = {
    EinsumExchanged: (
        "weights_are_the_formula",
        Case(queries=2, d_head=2),
        r"^weights\[0, 0, \d, \d\] = 0\.\d+, should be 0\.\d+ \(off by",
        "permuted_tokens_give_permuted_rows",  # scores the other way round move with the tokens, too
    ),
    LoopInterleaved: (
        "heads_may_be_permuted",
        Case(num_heads=2, d_head=2, seed=1),
        r"^output for permuted heads\[0, 0, \d\] = \S+, should be ",
        "the_output_is_the_sum_of_its_heads",  # whichever columns of W_O are called a head
    ),
    OnlineStaleSum: (
        "constant_values_come_back",
        Case(keys=3, d_head=4),
        r"^merged heads\[0, 0, \d\] = \S+, should be ",  # of weights that do not sum to 1
        "two_keys_share_by_the_sigmoid",  # two keys are one chunk
    ),
    BmmMaskRepeated: (
        "a_sample_alone_gives_its_own_rows",
        Case(batch=2, keys=2, num_heads=2, mask="padding"),
        r"^output of sample [01] alone\[0, 0, \d\] = \S+, should be ",
        "a_head_is_a_layer_of_one_head",  # asked of a batch of one, for which there is one mask
    ),
    FourthRootThrice: (
        "two_keys_share_by_the_sigmoid",
        Case(queries=2, d_head=2, biases="qvo"),
        r"^merged heads\[0, \d, \d\] = \S+, should be ",
        "constant_values_come_back",  # at any scale the weights sum to 1
    ),
}


@pytest.mark.usefixtures("a_fifth")
@pytest.mark.parametrize("law", PROPERTIES, ids=lambda law: law.name)
@pytest.mark.parametrize("attention", RIGHT, ids=lambda attention: attention.__name__)
def test_right(attention: type[nn.Module], law: Property) -> None:
    hold(law, SUBJECTS[attention])


@pytest.mark.parametrize("attention", RIGHT, ids=lambda attention: attention.__name__)
def test_no_law_passes_for_want_of_support(attention: type[nn.Module]) -> None:
    supports = SUBJECTS[attention].supports
    assert supports.masks == MASKS and supports.cross_attention and supports.dropout and supports.gradients
    assert supports.loads_weights and supports.any_heads and supports.empty_rows == "zero" and len(supports.dtypes) == 4
    assert supports.biases == ("qvo" if attention is FourthRoot else "qkvo")
    assert supports.weights == supports.training_weights == (attention is not Online)
    assert supports.grouped_heads == (attention in (Einsum, Online, Bmm))


@pytest.mark.parametrize("attention", WRONG, ids=lambda attention: attention.__name__)
def test_wrong(attention: type[nn.Module]) -> None:
    law, case, evidence, obeyed = EVIDENCE[attention]
    broken = breaks(attention)
    assert law in broken and obeyed not in broken
    with pytest.raises(AssertionError, match=evidence):
        raise AssertionError(failure(LAWS[law], SUBJECTS[attention], case))
    right = attention.__mro__[1]
    assert right in RIGHT and failure(LAWS[law], SUBJECTS[right], case) is None


def breaks(attention: type[nn.Module]) -> set[str]:
    """The laws that it breaks on some of a few cases of each."""
    subject, random = SUBJECTS[attention], Random(0)
    asked = [law for law in PROPERTIES if law.not_applicable(subject) is None]
    return {law.name for law in asked if any(failure(law, subject, law.sample(random, subject)) for _ in range(CASES))}
