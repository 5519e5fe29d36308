"""Laws of causal masks: the past knows nothing of the future."""

from __future__ import annotations

from dataclasses import replace

import torch

from properties.case import CAUSAL, HIDING, Case
from properties.compare import assert_close
from properties.inputs import Inputs, causal, gradients
from properties.property import Property
from properties.subject import Subject


def the_future_does_not_change_the_past(subject: Subject, case: Case) -> None:
    """Other tokens from some position on leave the rows of all queries before it as they are."""
    layer, inputs = subject.start(case)
    random = case.generator("law")
    start = int(torch.randint(case.S, (), generator=random))  # from this key on, everything is new
    aligned = causal(case.T, case.S, inputs.alignment if inputs.is_causal else "bottom_right")
    past = int((~aligned[:, start:]).all(-1).sum())  # queries that see only older keys
    new = inputs.keys.clone()
    new[:, start:] = torch.randn(new[:, start:].shape, generator=random, dtype=torch.float64).to(new.dtype)
    bound = subject.rounding(case).output[:, :past]
    want, got = layer(inputs).output[:, :past], layer(inputs.with_keys(new)).output[:, :past]
    assert_close(got, want, bound, f"output, keys from {start} on changed", subject.judged(inputs)[:, :past, None])


def no_gradient_flows_from_hidden_keys(subject: Subject, case: Case) -> None:
    """The gradient of one row is exactly 0 for the keys its query may not see, for every other query, and every other sample.

    Queries and keys are told apart where they are different tokens: a leak of the one is easily covered by the other.
    """
    layer, inputs = subject.start(case)
    visible = inputs.visible().any(1)  # [B, T, S]
    judged = subject.judged(inputs)
    if not judged.all() and not subject.supports.finite_empty_rows:
        return
    random = case.generator("law")
    b, t = (int(torch.randint(size, (), generator=random)) for size in (case.batch, case.T))
    if not judged[b, t]:
        return
    leaves, named = inputs.leaves()
    row = layer(leaves, grad=True).output[b, t]
    cotangent = torch.randn(row.shape, generator=random, dtype=torch.float64)
    found = gradients(row, cotangent, {name: named[name] for name in ("x", "context") if name in named})
    itself = torch.zeros(case.batch, case.T, dtype=torch.bool)
    itself[b, t] = True
    seen = torch.zeros(case.batch, case.S, dtype=torch.bool)
    seen[b] = visible[b, t]
    may_reach = {"x": itself | seen if case.keys is None else itself, "context": seen}
    for name, gradient in found.items():
        zero = torch.zeros_like(gradient)
        assert_close(gradient, zero, 0.0, f"gradient of row [{b}, {t}] by {name}", ~may_reach[name][..., None])


def a_prefix_gives_the_first_rows(subject: Subject, case: Case) -> None:
    """The first tokens alone give the first rows of the whole: what decoding token by token relies on."""
    layer, inputs = subject.start(case)
    want, bound = layer(inputs).output, subject.rounding(case).output
    for fewer in range(1, min(case.T, case.S)):
        queries, keys = case.T - fewer, case.S - fewer
        if inputs.is_causal and inputs.alignment == "top_left":
            keys = max(keys, min(queries, case.S))  # those that the first queries see
        prefix = inputs.first(queries, keys)
        judged = subject.judged(prefix)[..., None]
        assert_close(
            layer(prefix).output, want[:, :queries], bound[:, :queries], f"output of the first {queries} queries", judged
        )


def the_flag_means_its_mask(subject: Subject, case: Case) -> None:
    """`is_causal` hides what the causal mask hides, also next to another mask, and for T != S where alignments part."""
    layer, inputs = subject.start(case)
    explicit = replace(inputs, mask=_with_the_flag_in_it(inputs), is_causal=False)
    bound = subject.rounding(case).output
    want = layer(explicit).output
    assert_close(layer(inputs).output, want, bound, "output with is_causal", subject.judged(inputs)[..., None])


def _with_the_flag_in_it(inputs: Inputs) -> torch.Tensor:
    hidden = ~replace(inputs, mask=None).visible()[:1, :1]  # [1, 1, T, S]
    if inputs.mask is None:
        return ~hidden
    return inputs.mask & ~hidden if inputs.mask.dtype == torch.bool else inputs.mask.masked_fill(hidden, -torch.inf)


FLAG = tuple(mask for mask in CAUSAL if mask.startswith("is_causal"))

PROPERTIES = (
    Property(law=the_future_does_not_change_the_past, where={"mask": CAUSAL}),
    Property(law=no_gradient_flows_from_hidden_keys, needs=("gradients",), where={"mask": HIDING}),
    Property(law=a_prefix_gives_the_first_rows, where={"mask": CAUSAL}),
    Property(law=the_flag_means_its_mask, needs=("says_causal_both_ways",), where={"mask": FLAG}),
)
