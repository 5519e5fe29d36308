"""Laws of training and evaluation: dropout drops single weights, in training only."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from properties.case import Case
from properties.compare import assert_close
from properties.inputs import Inputs, gradients, merge_heads, project, split_heads
from properties.oracle import attend, truth
from properties.property import Property
from properties.rounding import gradient_bounds
from properties.subject import Layer, Subject

WEIGHTS = 400  # looked at for their share, if DRAWS give so many
ROWS = 48  # looked at, at least: that a wrong row passes for a subset by chance is at most 3/4 likely for each
DRAWS = (
    100  # at most: that two weights drawn apart agree in all of them has probability (5/8)**100, 4e-21; most differ in the first
)


def evaluation_ignores_dropout(subject: Subject, case: Case) -> None:
    """In evaluation, a layer with dropout gives what it gives without, every time."""
    layer, inputs = subject.start(case)
    without = replace(inputs, dropout=0.0)
    bound = subject.rounding(case).output
    want = subject.layer(without)(without).output
    for call in ("first", "second"):
        got = layer(inputs).output
        assert_close(got, want, bound, f"output of the {call} call in evaluation", subject.judged(inputs)[..., None])


def modes_agree_without_dropout(subject: Subject, case: Case) -> None:
    """Training, evaluation, with and without gradients: without dropout they are the same function.

    Fast paths are taken in one of them only, and that is where they are wrong.
    """
    layer, inputs = subject.start(case)
    want, bound = layer(inputs), subject.rounding(case)
    modes = [(training, grad) for grad in (False, True) for training in (True, False) if subject.supports.gradients or not grad]
    for training, grad in modes:
        got = layer(inputs.leaves()[0] if grad else inputs, training=training, grad=grad)
        mode = f"{'training' if training else 'evaluation'} {'with' if grad else 'without'} gradients"
        assert_close(got.output, want.output, bound.output, f"output in {mode}", subject.judged(inputs)[..., None])
        if want.weights is not None and (subject.supports.training_weights or not training):
            some = inputs.visible().any(-1, keepdim=True)
            assert_close(got.need_weights(), want.weights, bound.weights, f"weights in {mode}", some)


def dropout_drops_single_weights(subject: Subject, case: Case) -> None:
    """In training, every head's row is the sum of some of its w_s * v_s, each kept one scaled up by 1 / (1 - p).

    Not of features, not of scores: the row is compared with every subset of its keys. At p = 1/2 the mean is right for many a
    wrong dropout; the subset is not.
    """
    layer, inputs = subject.start(case)
    some = inputs.visible().any(-1)  # [B, h, T]
    judged = subject.judged(inputs)[:, None].expand_as(some)  # also empty rows that should be zero: they fit nothing else
    dropped = _Dropped(subject, case, inputs)
    layer(inputs)  # an evaluation in between must not switch it off
    fewest = min((n for n in (int((judged & some).sum()), int((judged & ~some).sum())) if n > 0), default=ROWS)
    for _ in range(-(-ROWS // fewest)):  # ROWS of either kind
        wrong = judged & ~dropped.fits(layer)
        if wrong.any():
            b, i, t = (int(n) for n in wrong.nonzero()[0])
            raise AssertionError(f"row {t} of head {i} in sample {b} is the scaled sum of no subset of its weighted values")


def dropout_is_drawn_for_every_weight(subject: Subject, case: Case) -> None:
    """Which weights are dropped differs between samples, heads, queries and keys: each is drawn for itself."""
    layer, inputs = subject.start(case)
    dropped = _Dropped(subject, case, inputs)
    visible = inputs.visible() & subject.judged(inputs)[:, None, :, None] & dropped.clear()[..., None]
    pairs = [(axis, by) for axis, size in enumerate(visible.shape) for by in range(1, size)]
    same = {(axis, by): visible & visible.roll(by, axis) for axis, by in pairs}  # of these, nothing has told the two apart yet
    for _ in range(DRAWS):
        kept = dropped.kept(layer)
        same = {(axis, by): equal & (kept == kept.roll(by, axis)) for (axis, by), equal in same.items()}
        same = {pair: equal for pair, equal in same.items() if equal.any()}
        if not same:
            return
    (axis, by), equal = next(iter(same.items()))
    one = equal.nonzero()[0].tolist()
    other = [(n - by) % visible.shape[i] if i == axis else n for i, n in enumerate(one)]
    raise AssertionError(f"in {DRAWS} draws, weight {one} [b, h, t, s] was dropped exactly when {other} was")


def training_returns_the_weights_before_dropout(subject: Subject, case: Case) -> None:
    """The weights returned in training are those of evaluation, of the softmax: what is looked at does not depend on a draw."""
    layer, inputs = subject.start(case)
    want, bound = layer(inputs).need_weights(), subject.rounding(case)
    got = layer(inputs, training=True).need_weights()
    assert_close(got, want, bound.weights, "weights in training", inputs.visible().any(-1, keepdim=True))


def the_share_of_dropped_weights_is_p(subject: Subject, case: Case) -> None:
    """Of many weights, about as many are dropped as were asked for: within six standard deviations of p."""
    layer, inputs = subject.start(case)
    dropped = _Dropped(subject, case, inputs)
    clear = inputs.visible() & dropped.clear()[..., None] & subject.judged(inputs)[:, None, :, None]
    each = int(clear.sum())
    if each == 0:
        return
    draws = min(DRAWS, -(-WEIGHTS // each))
    gone = sum(int((clear & (dropped.kept(layer) == 0)).sum()) for _ in range(draws))
    share, p = gone / (draws * each), case.dropout
    allowed = 6 * (p * (1 - p) / (draws * each)) ** 0.5
    if abs(share - p) > allowed:
        raise AssertionError(f"of {draws * each} weights a share of {share:.3f} was dropped, should be {p} +- {allowed:.3f}")


def training_projects_out_as_well(subject: Subject, case: Case) -> None:
    """With weights dropped, too, the output is W_O times the merged heads, plus its bias."""
    layer, inputs = subject.start(case)
    merged = inputs.with_identity_out()
    state = torch.get_rng_state()
    heads = layer(merged, training=True).output
    its_own = torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(state)
    if its_own or not torch.equal(heads, layer(merged, training=True).output):
        return  # its random numbers are its own, and the same ones cannot be had again
    torch.set_rng_state(state)
    got = layer(inputs, training=True).output
    w = inputs.to(torch.float64).weights
    bound = 2 * subject.rounding(case).output / (1 - case.dropout)
    want = project(heads.to(torch.float64), w.w_o, w.b_o)
    assert_close(got, want, bound, "output in training", subject.judged(inputs)[..., None])


def the_gradient_is_that_of_the_kept_weights(subject: Subject, case: Case) -> None:
    """In training, the gradient is that of the formula with the same weights dropped."""
    layer, inputs = subject.start(case)
    judged = subject.judged(inputs)
    if not judged.all() and not subject.supports.finite_empty_rows:
        return
    dropped = _Dropped(subject, case, inputs)
    state = torch.get_rng_state()
    kept = dropped.kept(layer) * dropped.inputs.visible()
    its_own = torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(state)
    if its_own or not torch.equal(kept, dropped.kept(layer) * dropped.inputs.visible()):
        return  # its random numbers are its own, and the same ones cannot be had again
    torch.set_rng_state(state)
    cotangent = torch.randn(inputs.x.shape, generator=case.generator("law"), dtype=torch.float64) * judged[..., None]
    ours, our_leaves = dropped.inputs.leaves()
    theirs, their_leaves = dropped.inputs.to(torch.float64).leaves()
    true = attend(theirs)
    want = merge_heads((true.weights * kept / (1 - case.dropout)) @ true.values)
    names = ("x", "w_q", "w_k", "w_v")
    bound = gradient_bounds(dropped.inputs, cotangent, subject.rounding(case))
    got_gradients = gradients(layer(ours, training=True, grad=True).output, cotangent, {n: our_leaves[n] for n in names})
    want_gradients = gradients(want, cotangent, {n: their_leaves[n] for n in names})
    for name in names:
        allowed = bound[name] / (1 - case.dropout)
        assert_close(got_gradients[name], want_gradients[name], allowed, f"gradient of {name}, with weights dropped,")


class _Dropped:
    """Reads off the output, W_O being 1, which weights a layer in training has dropped."""

    def __init__(self, subject: Subject, case: Case, inputs: Inputs) -> None:
        self.inputs = inputs.with_identity_out()
        self.case, self.precision = case, subject.precision
        true = truth(case, subject.dtype)
        parts = true.weights[..., None] * true.values[:, :, None] / (1 - case.dropout)  # [B, h, T, S, d_head]
        self.subsets = (torch.arange(2**case.S)[:, None] >> torch.arange(case.S)) & 1  # [n, S]
        self.sums = torch.einsum("ns,bhtsf->bhtnf", self.subsets.to(torch.float64), parts)
        self.bound = subject.bounds(self.inputs).heads.amax(-1) / (1 - case.dropout)  # [B, h, T]

    def fits(self, layer: Layer) -> Tensor:
        """Does some subset give the row, bool [B, h, T]?"""
        return self._distances(layer).amin(-1) <= self.bound

    def clear(self) -> Tensor:
        """Are the sums of any two subsets of visible keys further apart than rounding could move them, bool [B, h, T]?"""
        if self.precision == torch.float64:
            return torch.ones(self.inputs.scores_shape[:3], dtype=torch.bool)  # by ten orders of magnitude
        visible = self.inputs.visible()[..., None, :]  # [B, h, T, 1, S]
        # Do they differ in a visible key at all, [B, h, T, n, n]?
        differ = ((self.subsets[:, None] != self.subsets) & visible[..., None, :]).any(-1)
        apart = (self.sums[..., :, None, :] - self.sums[..., None, :, :]).abs().amax(-1)
        return (apart > 2 * self.bound[..., None, None]).logical_or(~differ).all(-1).all(-1)

    def kept(self, layer: Layer) -> Tensor:
        """The subset that is nearest to the row, [B, h, T, S]."""
        return self.subsets[self._distances(layer).argmin(-1)]

    def _distances(self, layer: Layer) -> Tensor:
        output = layer(self.inputs, training=True).output.to(torch.float64)
        heads = split_heads(output, self.case.d_head)
        return (heads[..., None, :] - self.sums).abs().amax(-1)  # [B, h, T, n]


PROPERTIES = (
    Property(law=evaluation_ignores_dropout, needs=("loads_weights", "dropout"), where={"dropout": (0.5, 0.25)}),
    Property(law=modes_agree_without_dropout, where={"dropout": (0.0,)}),
    Property(law=dropout_drops_single_weights, needs=("formula", "dropout"), where={"dropout": (0.5, 0.25)}),
    Property(law=dropout_is_drawn_for_every_weight, needs=("formula", "dropout"), where={"dropout": (0.5, 0.25)}),
    Property(law=the_share_of_dropped_weights_is_p, needs=("formula", "dropout"), where={"dropout": (0.5, 0.25)}),
    Property(law=training_projects_out_as_well, needs=("loads_weights", "dropout"), where={"dropout": (0.5, 0.25)}),
    Property(
        law=the_gradient_is_that_of_the_kept_weights,
        needs=("formula", "dropout", "gradients"),
        where={"dropout": (0.5, 0.25)},
    ),
    Property(
        law=training_returns_the_weights_before_dropout,
        needs=("dropout", "weights", "training_weights"),
        where={"dropout": (0.5, 0.25)},
    ),
)
