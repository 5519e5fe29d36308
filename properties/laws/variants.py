"""Laws of what a variant promises: a window, packed documents, a prefix, a soft cap, sinks, QK norm."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from properties.case import EXPLICIT, Case
from properties.compare import assert_all, assert_close
from properties.inputs import gradients
from properties.laws.algebra import SHIFT
from properties.laws.dependence import assert_changed
from properties.property import Property
from properties.rounding import gradient_bounds
from properties.subject import Subject


def the_window_ends_where_it_says(subject: Subject, case: Case) -> None:
    """A query sees the last token of its window, and not the one behind it: changing that one counts, changing this does not."""
    layer, inputs = subject.start(case)
    window = inputs.mechanisms.window
    if window is None:
        return
    visible, judged = inputs.visible().any(1), subject.judged(inputs)
    want, bound = layer(inputs).output, subject.rounding(case).output
    for s in range(case.T):
        changed = inputs.x.clone()
        changed[:, s] = -changed[:, s]
        other = inputs.with_keys(changed)
        got = layer(other).output
        if s + window < case.T:
            behind = slice(s + window, None)
            what = f"output, token {s} changed, from {window} tokens on,"
            assert_close(got[:, behind], want[:, behind], bound[:, behind], what, judged[:, behind, None])
        if (t := s + window - 1) < case.T and window > 1:
            rows = torch.zeros(case.batch, case.T, dtype=torch.bool)
            rows[:, t] = visible[:, t, s]
            assert_changed(subject, layer, inputs, [other], rows, f"another token {s}, the last in the window of query {t},")


def packed_documents_are_documents_alone(subject: Subject, case: Case) -> None:
    """Each document of a row gives the rows that it gives alone, and the gradients of its tokens are those it has alone."""
    layer, inputs = subject.start(case)
    if inputs.documents is None:
        return
    bound = subject.rounding(case).output
    judged = subject.judged(inputs)
    # Only the formula says how far a gradient may stray.
    differentiable = subject.supports.gradients and subject.supports.formula
    differentiable = differentiable and (bool(judged.all()) or subject.supports.finite_empty_rows)
    cotangent = torch.randn(inputs.x.shape, generator=case.generator("law"), dtype=torch.float64) * judged[..., None]
    leaves, named = inputs.leaves()
    together = layer(leaves, grad=differentiable).output
    both = gradients(together, cotangent, {"x": named["x"]})["x"]
    for b in range(case.batch):
        for document in inputs.documents[b].unique().tolist():
            tokens = (inputs.documents[b] == document).nonzero().flatten()
            alone, own = inputs.rows(torch.tensor([b])).take_tokens(tokens).leaves()
            output = layer(alone, grad=differentiable).output
            place = f"document {document} of sample {b}"
            own_rows = judged[b, tokens, None]
            assert_close(together[b, tokens], output[0], bound[b, tokens], f"output of {place} among others", own_rows)
            if differentiable:
                gradient = gradients(output, cotangent[b : b + 1, tokens], {"x": own["x"]})["x"]
                allowed = 2 * gradient_bounds(inputs, cotangent, subject.rounding(case))["x"]
                assert_close(both[b, tokens], gradient[0], allowed, f"gradient of the tokens of {place} among others")


def a_prefix_sees_itself_both_ways(subject: Subject, case: Case) -> None:
    """The first token of a prefix sees its last one; what comes after the prefix is seen by nothing before it."""
    layer, inputs = subject.start(case)
    if inputs.prefix is None:
        return
    visible, judged = inputs.visible().any(1), subject.judged(inputs)
    want, bound = layer(inputs).output, subject.rounding(case).output
    for s in range(case.T):
        changed = inputs.x.clone()
        changed[:, s] = -changed[:, s]
        other = inputs.with_keys(changed)
        inside = (s < inputs.prefix)[:, None]  # [B, 1]
        assert_changed(subject, layer, inputs, [other], inside & visible[..., s], f"another token {s}, in the prefix,")
        what = f"output, token {s} behind the prefix changed, before it,"
        before = (~inside & judged)[:, :s, None]
        assert_close(layer(other).output[:, :s], want[:, :s], bound[:, :s], what, before)


def the_soft_cap_bounds_the_odds(subject: Subject, case: Case) -> None:
    """No visible key weighs more than exp(2 cap) times another: a score is at most the cap, and at least its negative."""
    layer, inputs = subject.start(case)
    cap = inputs.mechanisms.soft_cap
    if cap is None:
        return
    context = None if inputs.context is None else 16 * inputs.context
    large = replace(inputs, x=16 * inputs.x, context=context)
    weights = layer(large).need_weights().to(torch.float64)
    visible = large.visible()
    what = f"with a soft cap of {cap}, the odds between two keys are at most e^{2 * cap}"
    _assert_odds(weights, visible, 2 * cap, subject.bounds(large).relative, what)


def sinks_take_their_share(subject: Subject, case: Case) -> None:
    """Where all keys score 0, the n that a query sees share n / (n + exp(sink)), and the sink has the rest."""
    layer, inputs = subject.start(case)
    w = inputs.weights
    if w.sinks is None:
        return
    inputs = inputs.with_weights(w_k=torch.zeros_like(w.w_k), b_k=None if w.b_k is None else torch.zeros_like(w.b_k))
    seen = inputs.visible().sum(-1)  # [B, h, T]
    want = seen / (seen + w.sinks.to(torch.float64).exp()[:, None])
    got = layer(inputs).need_weights().to(torch.float64).sum(-1)
    bound = subject.bounds(inputs).weights.sum(-1)
    assert_close(got, want, bound, "sum of the weights besides the sink's", seen > 0)


def a_sink_is_a_score_like_any_other(subject: Subject, case: Case) -> None:
    """One number added to the whole mask and to every sink changes nothing: it is what all scores of the softmax have in common.

    A sink that is not made ready as the scores are, in another base or with their maximum still on it, takes another share.
    """
    layer, inputs = subject.start(case)
    sinks = inputs.weights.sinks
    if sinks is None or inputs.mask is None:
        return
    shifted = replace(inputs, mask=inputs.mask + SHIFT).with_weights(sinks=sinks + SHIFT)
    bound = subject.bounds(inputs).output + subject.bounds(shifted).output
    want = layer(inputs).output
    got = layer(shifted).output
    assert_close(got, want, bound, f"output, {SHIFT} added to mask and sinks,", subject.judged(inputs)[..., None])


def qk_norm_bounds_the_scores(subject: Subject, case: Case) -> None:
    """However large queries and keys are, the odds between two keys stay below exp(2 sqrt(d_head) max|n_q| max|n_k|)."""
    layer, inputs = subject.start(case)
    w = inputs.weights
    if w.n_q is None or w.n_k is None:
        return
    large = inputs.with_weights(w_q=1024 * w.w_q, w_k=1024 * w.w_k)
    weights = layer(large).need_weights().to(torch.float64)
    visible = large.visible()
    score = math.sqrt(case.d_head) * float(w.n_q.abs().max() * w.n_k.abs().max())  # by Cauchy and Schwarz
    what = f"after a QK norm no score exceeds {score:.3g}, and the odds between two keys are at most e^{2 * score:.3g}"
    _assert_odds(weights, visible, min(700.0, 2 * score), subject.bounds(large).relative, what)


def _assert_odds(weights: Tensor, visible: Tensor, largest: float, relative: float, what: str) -> None:
    """Raise unless no visible key weighs more than e**largest times another."""
    odds = weights / weights.masked_fill(~visible, torch.inf).amin(-1, keepdim=True)
    assert_all((odds <= math.exp(largest) * (1 + 2 * relative)) | ~visible, odds, what)


# A finite bias, in the mask or for positions, would have its own say in the odds.
WITHOUT_BIAS = {"encoding": ("bool", "additive"), "placing": ("none", "rotary", "rotary_interleaved")}

PROPERTIES = (
    Property(law=the_window_ends_where_it_says, needs=("windowed",)),
    Property(law=packed_documents_are_documents_alone, where={"mask": ("documents", "documents+padding")}),
    Property(law=a_prefix_sees_itself_both_ways, where={"mask": ("prefix", "prefix+padding")}),
    Property(law=the_soft_cap_bounds_the_odds, needs=("capped", "weights"), where=WITHOUT_BIAS),
    Property(law=sinks_take_their_share, needs=("sinks", "loads_weights", "weights"), where=WITHOUT_BIAS),
    Property(
        law=a_sink_is_a_score_like_any_other,
        needs=("sinks", "loads_weights"),
        where={"mask": EXPLICIT, "encoding": ("bias",)},
    ),
    Property(law=qk_norm_bounds_the_scores, needs=("qk_norm", "loads_weights", "weights"), where=WITHOUT_BIAS),
)
