"""Laws of what must count: every query, visible key, value and parameter. What ignores one passes every symmetry in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import Inputs
from properties.oracle import attend
from properties.property import Property
from properties.subject import Layer, Subject


def every_query_counts(subject: Subject, case: Case) -> None:
    """Another query that has a choice between keys gets another row."""
    layer, inputs = subject.start(case)
    rows = _choosing(inputs).any(1)
    assert_changed(subject, layer, inputs, (replace(inputs, x=n) for n in _noises(case, inputs.x)), rows, "another query")


def every_visible_key_counts(subject: Subject, case: Case) -> None:
    """Another key, its value unchanged, changes the row of a query that has a choice between it and others.

    Half of the features make keys, the other half make values; only the first are changed.
    """
    layer, inputs = subject.start(case)
    if case.d_model == 1:
        return
    w_k, w_v = inputs.weights.w_k.clone(), inputs.weights.w_v.clone()
    w_k[:, 1::2], w_v[:, ::2] = 0, 0
    inputs = inputs.with_weights(w_k=w_k, w_v=w_v)
    s = int(torch.randint(case.S, (), generator=case.generator("law")))
    rows = (_choosing(inputs) & inputs.visible()[..., s]).any(1)
    assert_changed(subject, layer, inputs, _with_other_token(case, inputs, s, slice(0, None, 2)), rows, f"another key {s}")


def every_visible_value_counts(subject: Subject, case: Case) -> None:
    """Another value changes the row of every query that sees it. All keys are alike here, so each gets its share."""
    layer, inputs = subject.start(case)
    inputs = inputs.with_weights(w_k=torch.zeros_like(inputs.weights.w_k))
    s = int(torch.randint(case.S, (), generator=case.generator("law")))
    rows = inputs.visible()[..., s].any(1)
    assert_changed(subject, layer, inputs, _with_other_token(case, inputs, s, slice(None)), rows, f"another value {s}")


def every_parameter_counts(subject: Subject, case: Case) -> None:
    """Another value of any weight or bias changes the output; all but the bias of the keys, which the softmax does not see."""
    layer, inputs = subject.start(case)
    for name, weight in inputs.weights.items():
        rows = (_choosing(inputs) if name in {"w_q", "w_k", "b_q", "n_q", "n_k"} else inputs.visible().any(-1)).any(1)
        if name not in {"b_k", "table"}:  # nor does it see a table that is read at one distance only
            others = (inputs.with_weights(**{name: noise}) for noise in _noises(case, weight))
            assert_changed(subject, layer, inputs, others, rows, f"another {name}")


def a_nan_that_is_seen_comes_out(subject: Subject, case: Case) -> None:
    """NaN in a token makes the rows of all queries that see it NaN, and of its own query if that has a choice between keys.

    A softmax that takes NaN for an empty row, and zeroes it, hides what went wrong before it from everybody who looks for NaN.
    Fused kernels do so, PyTorch's for the CPU among them; hence it is declared.
    """
    layer, inputs = subject.start(case)
    choosing = _choosing(inputs).any(1)  # [B, T]
    seen = inputs.visible().any(1)  # [B, T, S]
    if case.keys is not None:
        output = layer(replace(inputs, x=torch.full_like(inputs.x, torch.nan))).output
        _assert_nan(output, choosing & subject.judged(inputs), "with NaN in every query")
    for s in range(case.S):
        keys = inputs.keys.clone()
        keys[:, s] = torch.nan
        rows = seen[..., s]
        if case.keys is None:
            rows = rows | (choosing & (torch.arange(case.T) == s))
        _assert_nan(layer(inputs.with_keys(keys)).output, rows & subject.judged(inputs), f"with NaN in token {s}")


def _assert_nan(output: Tensor, rows: Tensor, when: str) -> None:
    wrong = rows & ~output.isnan().all(-1)
    if wrong.any():
        b, t = (int(i) for i in wrong.nonzero()[0])
        raise AssertionError(f"{when}, output[{b}, {t}] must be NaN, but is {output[b, t].tolist()}")


def _choosing(inputs: Inputs) -> Tensor:
    """Which queries see at least two keys, [B, h, T]: where there is one, its weight is 1 whatever the scores."""
    return inputs.visible().sum(-1) > 1


def _noises(case: Case, like: Tensor) -> Iterator[Tensor]:
    """Other tensors of this shape, each larger than the one before: after a change too small for the dtype comes a larger one."""
    random = case.generator("law")
    for size in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        yield (size * torch.randn(like.shape, generator=random, dtype=torch.float64)).to(like.dtype)


def _with_other_token(case: Case, inputs: Inputs, s: int, features: slice) -> Iterator[Inputs]:
    for noise in _noises(case, inputs.keys):
        keys = inputs.keys.clone()
        keys[:, s, features] = noise[:, s, features]
        yield inputs.with_keys(keys)


def assert_changed(
    subject: Subject,
    layer: Layer,
    inputs: Inputs,
    others: Iterable[Inputs],
    rows: Tensor,
    what: str,
    *,
    in_formula: bool = True,
) -> None:
    """Raise unless each of the `rows`, bool [B, T], is another for one of the other inputs. What is not read changes no digit.

    Which change is too small for the dtype, the formula says, if there is one and what is changed is in it.
    """
    still = rows & subject.judged(inputs)
    want = layer(inputs).output
    tried = []
    for other in others:
        if not still.any():
            return
        still = still & (layer(other).output == want).all(-1)
        tried.append(other)
    if subject.supports.formula and in_formula and still.any():
        still = still & _far_apart(subject, inputs, tried)
    elif torch.finfo(subject.precision).eps > 1e-4:
        return  # so coarse a number can hide any change, and there is no formula to say whether it does
    if still.any():
        b, t = (int(i) for i in still.nonzero()[0])
        raise AssertionError(f"{what} leaves output[{b}, {t}] as it was")


def _far_apart(subject: Subject, inputs: Inputs, others: Iterable[Inputs]) -> Tensor:
    """Which rows of the formula, bool [B, T], some of the others change by more than rounding can hide: in bfloat16 not all."""
    want, bound = attend(inputs).output, subject.bounds(inputs).output
    far = [((attend(other).output - want).abs() > bound + subject.bounds(other).output).any(-1) for other in others]
    return torch.stack(far).any(0)


PROPERTIES = (
    Property(law=every_query_counts),
    Property(law=every_visible_key_counts, needs=("loads_weights",)),
    Property(law=every_visible_value_counts, needs=("loads_weights",)),
    Property(law=every_parameter_counts, needs=("loads_weights",)),
    Property(law=a_nan_that_is_seen_comes_out, needs=("nan_comes_out",)),
)
