"""Laws of what must count: every query, visible key, value and parameter. What ignores one passes every symmetry in it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import Inputs
from properties.property import Property
from properties.rounding import rounding
from properties.subject import Layer, Subject


def every_query_counts(subject: Subject, case: Case) -> None:
    """Another query that has a choice between keys gets another row."""
    layer, inputs = subject.start(case)
    moved = replace(inputs, x=_noise(case, inputs.x))
    _assert_changed(subject, case, layer, inputs, moved, _choosing(inputs).any(1), "another query")


def every_visible_key_counts(subject: Subject, case: Case) -> None:
    """Another key, its value unchanged, changes the row of a query that has a choice between it and others.

    Half of the features make keys, the other half make values; only the first are changed.
    """
    layer, inputs = subject.start(case)
    if case.d_model == 1:
        return
    w_k, w_v, w_q = inputs.weights.w_k.clone(), inputs.weights.w_v.clone(), inputs.weights.w_q
    w_k[:, 1::2], w_v[:, ::2] = 0, 0
    inputs = inputs.with_weights(w_k=w_k, w_v=w_v, w_q=w_q)
    s = int(torch.randint(case.S, (), generator=case.generator("law")))
    keys = inputs.keys.clone()
    keys[:, s, ::2] = _noise(case, keys)[:, s, ::2]
    rows = (_choosing(inputs) & inputs.visible()[..., s]).any(1)
    _assert_changed(subject, case, layer, inputs, inputs.with_keys(keys), rows, f"another key {s}, its value unchanged")


def every_visible_value_counts(subject: Subject, case: Case) -> None:
    """Another value changes the row of every query that sees it. All keys are alike here, so each gets its share."""
    layer, inputs = subject.start(case)
    inputs = inputs.with_weights(w_k=torch.zeros_like(inputs.weights.w_k))
    s = int(torch.randint(case.S, (), generator=case.generator("law")))
    keys = inputs.keys.clone()
    keys[:, s] = _noise(case, keys)[:, s]
    rows = inputs.visible()[..., s].any(1)
    _assert_changed(subject, case, layer, inputs, inputs.with_keys(keys), rows, f"another value {s}")


def every_parameter_counts(subject: Subject, case: Case) -> None:
    """Another value of any weight or bias changes the output; all but the bias of the keys, which the softmax does not see."""
    layer, inputs = subject.start(case)
    for name, weight in inputs.weights.items():
        needs = _choosing(inputs) if name in {"w_q", "w_k", "b_q"} else inputs.visible().any(-1)
        if name != "b_k":
            moved = inputs.with_weights(**{name: _noise(case, weight)})
            _assert_changed(subject, case, layer, inputs, moved, needs.any(1), f"another {name}")


def _choosing(inputs: Inputs) -> Tensor:
    """Which queries see at least two keys, [B, h, T]: where there is one, its weight is 1 whatever the scores."""
    return inputs.visible().sum(-1) > 1


def _noise(case: Case, like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=case.generator("law"), dtype=torch.float64).to(like.dtype)


def _assert_changed(subject: Subject, case: Case, layer: Layer, before: Inputs, after: Inputs, rows: Tensor, what: str) -> None:
    """Raise unless each of the `rows`, bool [B, T], differs by more than rounding explains."""
    rows = rows & subject.judged(before)
    bound = rounding(case, subject.dtype).output
    change = (layer(after).output - layer(before).output).abs().to(torch.float64)
    still = rows & ~(change > bound).any(-1)
    if still.any():
        b, t = (int(i) for i in still.nonzero()[0])
        raise AssertionError(f"{what} leaves output[{b}, {t}] as it was")


PROPERTIES = (
    Property(law=every_query_counts),
    Property(law=every_visible_key_counts),
    Property(law=every_visible_value_counts),
    Property(law=every_parameter_counts),
)
