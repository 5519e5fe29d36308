"""A soft cap: what is capped, in which order, and by what function."""

from __future__ import annotations

import math

from torch import Tensor

from attn import SoftCapAttention
from faults.facts import chooses, mask_has_gradient, visible_keys
from faults.fault import Fault
from properties.case import Case


class CapAfterTheMask(Fault, SoftCapAttention):
    """Add the mask first, and cap what comes out.

    Why it is wrong:
        tanh turns -inf into -1: a hidden key gets the score -cap, finite, and a share of the softmax. With a large cap the share
        is small, with a small one the future is simply visible. A bias is bent along with the rest.

    When it shows:
        If a query sees one key and not another, or an additive mask has a say in a choice.

    Seen in the wild:
        https://github.com/onnx/onnx/issues/7865
        https://github.com/flashinfer-ai/flashinfer/pull/350
        https://github.com/Dao-AILab/flash-attention/pull/1025

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.24, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='full', encoding='additive', soft_cap=2.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        symmetry: permuted_keys_change_nothing
        masking: content_of_hidden_keys_is_irrelevant
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        batch: padding_changes_nothing
        algebra: a_shift_of_the_mask_changes_nothing, a_bias_multiplies_the_odds
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "masking: mask application"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor]:
        k, v = self.expand_kv_heads(k), self.expand_kv_heads(v)
        scores = (q / math.sqrt(self.d_head)) @ k.mT
        scores, empty = self.mask(scores, attn_mask, is_causal)
        weights = self.softmax(self.cap(scores), empty)
        heads = self.combine(self.drop(weights), v)
        return self.project_out(self.merge_heads(heads)), weights

    @staticmethod
    def visible(case: Case) -> bool:
        keys = visible_keys(case)
        return bool((~keys & keys.any(-1, keepdim=True)).any()) or mask_has_gradient(case)


class CapNeverApplied(Fault, SoftCapAttention):
    """Accept a cap, keep it, and never use it.

    Why it is wrong:
        The cap changes every score, not only the large ones. A model that was trained with it gets sharper weights than it knows.

    When it shows:
        As soon as a query has a choice.

    Seen in the wild:
        https://github.com/ml-explore/mlx-swift-examples/pull/99
        https://github.com/vllm-project/vllm/pull/7022
        https://github.com/sgl-project/sgl-kernel-xpu/pull/491

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.13, the median relative error of the output.

    Smallest case:
        Case(queries=2, soft_cap=2.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        variants: the_soft_cap_bounds_the_odds
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "kernel: feature constraints"

    def cap(self, scores: Tensor) -> Tensor:
        return scores

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class CapLostInEvaluation(Fault, SoftCapAttention):
    """Cap the scores in training, and take a path without a cap in evaluation.

    Why it is wrong:
        The fast path has no place for a cap, and says nothing. So the model is not the one that was trained, in the one mode in
        which anybody looks at what it says.

    When it shows:
        In evaluation, as soon as a query has a choice.

    Seen in the wild:
        https://github.com/kekzl/imp/pull/688

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.13, the median relative error of the output.

    Smallest case:
        Case(queries=2, soft_cap=2.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        variants: the_soft_cap_bounds_the_odds
        modes: modes_agree_without_dropout, training_returns_the_weights_before_dropout
        precision: rounding_explains_the_error
    """

    root_cause = "kernel: silent fallback"

    def cap(self, scores: Tensor) -> Tensor:
        return super().cap(scores) if self.training else scores

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class CapTimesTheScore(Fault, SoftCapAttention):
    """Multiply the tanh by the score instead of the cap.

    Why it is wrong:
        Where the tanh is 1, s * tanh(s / cap) is s: what should be capped is left as it is. And it is even: a score of -3 counts
        as much as one of 3.

    When it shows:
        As soon as a query has a choice.

    Seen in the wild:
        https://github.com/unslothai/unsloth-zoo/pull/593

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.3, the median relative error of the output.

    Smallest case:
        Case(queries=2, soft_cap=2.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        variants: the_soft_cap_bounds_the_odds
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: implementation"

    def cap(self, scores: Tensor) -> Tensor:
        return scores * (scores / self.soft_cap).tanh()

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class CapOnlyBehindTheTanh(Fault, SoftCapAttention):
    """Multiply by the cap, and do not divide by it first.

    Why it is wrong:
        The bound is right, and everything below it is not: near zero the scores come out `cap` times too large, and above 2 they
        are all alike. Kernels divide in the scale, far away from the tanh, which makes this look like what was meant.

    When it shows:
        As soon as a query has a choice. A cap of 1 would hide it.

    Seen in the wild:
        https://github.com/Dao-AILab/flash-attention/issues/1181

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.031, the median relative error of the output.

    Smallest case:
        Case(queries=2, soft_cap=2.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: implementation"

    def cap(self, scores: Tensor) -> Tensor:
        return self.soft_cap * scores.tanh()

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class CapBeforeTheScale(Fault, SoftCapAttention):
    """Cap the bare products, and scale what is left.

    Why it is wrong:
        The cap is a bound for scores. Before the scale the products are sqrt(d_head) times as large, so it bends what it should
        leave alone; after it, nothing comes near the cap any more.

    When it shows:
        If a query has a choice, and d_head > 1.

    Seen in the wild:
        https://github.com/huggingface/trl/pull/5691

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.034, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=2, soft_cap=2.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: implementation"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.cap(q @ k.mT) / math.sqrt(self.d_head)

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case) and case.d_head > 1


class CapInBaseTwo(Fault, SoftCapAttention):
    """Cap the scores after they were made ready for `exp2`.

    Why it is wrong:
        Kernels fold log2(e) into the scale, for 2**x is faster than e**x. A linear factor comes out of the softmax again, but not
        out of a tanh: the cap bites at 0.69 of what it says.

    When it shows:
        As soon as a query has a choice.

    Seen in the wild:
        https://github.com/sgl-project/sgl-kernel-xpu/pull/491
        https://github.com/Dao-AILab/flash-attention/pull/1025

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.023, the median relative error of the output.

    Smallest case:
        Case(queries=2, soft_cap=2.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: implementation"

    def cap(self, scores: Tensor) -> Tensor:
        log2_e = 1 / math.log(2)
        return super().cap(scores * log2_e) / log2_e

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class CapTwice(Fault, SoftCapAttention):
    """Cap the scores, and cap them again.

    Why it is wrong:
        The layer caps, and so does the kernel that it calls, both by their documentation. A second cap at the same height is no
        idle gesture: tanh is below its argument everywhere, so it presses on.

    When it shows:
        As soon as a query has a choice.

    Seen in the wild:
        https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4645

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.019, the median relative error of the output.

    Smallest case:
        Case(queries=2, soft_cap=2.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: implementation"

    def cap(self, scores: Tensor) -> Tensor:
        return super().cap(super().cap(scores))

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)
