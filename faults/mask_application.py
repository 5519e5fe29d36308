"""Where and how a mask is applied: after the softmax, as a factor, with the wrong fill, in some modes only, or not at all."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn.masks import causal_mask
from faults.facts import (
    boolean_mask_hides,
    has_empty_rows,
    has_mask,
    hidden_by_the_tensor,
    hides,
    mask_has_gradient,
    sees,
    sways,
    visible_keys,
    written_as_boolean,
)
from faults.fault import Fault
from faults.pieces import whole_bias
from properties.case import Case

# Facts.


def _of_another_token(case: Case, hidden: Tensor) -> bool:
    """Is one of these keys hidden from all heads of a query that is another token? Then its content can be anything.

    Queries that see no key at all are left out, here as in the law about contents.
    """
    hidden = hidden.all(1, keepdim=True)
    if case.keys is None:
        hidden = hidden & ~torch.eye(case.T, dtype=torch.bool)
    return bool((hidden & visible_keys(case).any(-1, keepdim=True)).any())


# Faults: the order of mask and softmax.


class MaskAfterSoftmax(Fault):
    """Mask the weights instead of the scores: softmax over all keys, then zero those that are hidden.

    Why it is wrong:
        The hidden keys have taken their share before they are removed. What is left sums to less than 1, so every output
        shrinks by an amount that depends on tokens nobody may see.

    When it shows:
        Whenever a query sees some keys and not others. An empty row comes out right.

    Seen in the wild:
        https://github.com/huggingface/pytorch-image-models/pull/2236
        https://github.com/lucidrains/memory-compressed-attention/issues/2

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.46, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, constant_values_come_back, outputs_stay_among_the_values
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        batch: padding_changes_nothing
        heads: each_query_head_reads_its_own_group
        algebra: a_shift_of_the_mask_changes_nothing, a_bias_multiplies_the_odds
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        bias = whole_bias(scores, attn_mask, is_causal)
        hidden = bias == -math.inf
        return scores + bias.masked_fill(hidden, 0.0), hidden  # `softmax` zeroes what it is handed, afterwards

    @staticmethod
    def visible(case: Case) -> bool:
        visible = visible_keys(case)
        return bool((~visible & visible.any(-1, keepdim=True)).any())


class MaskAfterSoftmaxRenormalised(Fault):
    """Softmax over all keys, zero the hidden ones, and divide by what is left.

    Why it is wrong:
        On paper the division mends everything: the hidden share cancels. In numbers, a hidden key with a large score drives the
        visible weights to 0 first, and 0 / 0 is no weight.

    When it shows:
        When a hidden key scores far above the visible ones, which only the contents of the hidden key decide; and in every
        empty row.

    Seen in the wild:
        https://github.com/abisee/pointer-generator/issues/88

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        On 8 of 16 random cases it raises or gives NaN; on the others 0: the output of a first call in evaluation is right; wrong:
            the output in a coarser dtype or for large scores.

    Smallest case:
        Case(queries=2, mask='causal')

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared, empty_rows_harm_no_gradient
        causality: no_gradient_flows_from_hidden_keys
        derivatives: gradients_are_slopes_of_the_output
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: all
        tools: autocast_rounds_and_no_more
    """

    root_cause = "score: normalization"

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self.project_in(x, context)
        q, k, v = self.split_heads(q), self.split_heads(k), self.split_heads(v)
        k, v = self.expand_kv_heads(k), self.expand_kv_heads(v)
        scores = self.score(q, k)
        bias = whole_bias(scores, attn_mask, is_causal)
        hidden = bias == -math.inf
        weights = self.softmax(scores + bias.masked_fill(hidden, 0.0), hidden)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        heads = self.combine(self.drop(weights), v)
        return self.project_out(self.merge_heads(heads)), weights

    @staticmethod
    def visible(case: Case) -> bool:
        return has_empty_rows(case) or _of_another_token(case, ~visible_keys(case))


class MaskMultipliedBeforeSoftmax(Fault):
    """Multiply the scores by the boolean mask, so that a hidden key scores 0.

    Why it is wrong:
        A factor of 0 hides a weight, not a score: exp(0) is 1. A hidden key gets the weight of a middling visible one, and
        beats all whose score is negative.

    When it shows:
        Whenever a boolean mask hides a key.

    Seen in the wild:
        https://github.com/georg-wolflein/good-features/pull/1
        https://github.com/abisee/pointer-generator/issues/88

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0 in the median, 1.3 at most, the relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula
        symmetry: permuted_tokens_give_permuted_rows
        masking: a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: padding_changes_nothing
        heads: a_head_is_a_layer_of_one_head
        algebra: a_shift_of_all_keys_changes_nothing
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight
        precision: rounding_explains_the_error
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores, attn_mask = scores * attn_mask, None
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return boolean_mask_hides(case)


# Faults: the fill.


class FiniteFill(Fault):
    """Add -1e9 to the score of a hidden key instead of -inf.

    Why it is wrong:
        A penalty is not a mask. A score large enough outweighs any finite number, and training finds such scores: a model that
        profits from the future learns to reach it. In an empty row all keys pay the same penalty, so none is hidden.

    When it shows:
        When a boolean mask hides a key whose content is large enough, and in every row that such a mask leaves empty.

    Seen in the wild:
        https://github.com/karpathy/minGPT/issues/75
        https://github.com/huggingface/transformers/issues/17121
        https://github.com/TransformerLensOrg/TransformerLens/pull/366

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0 in the median, 1.3 at most, the relative error of the output.

    Smallest case:
        Case(queries=2, mask='causal')

    Killed by:
        reference: gradients_are_those_of_the_formula
        symmetry: permuted_tokens_give_permuted_rows
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: the_flag_means_its_mask
        heads: a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights
        precision: rounding_explains_the_error
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = (1.0 - attn_mask.to(scores.dtype)) * -1e9
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        if written_as_boolean(case) and has_empty_rows(case):
            return True
        return has_mask(case) and case.encoding == "bool" and _of_another_token(case, hidden_by_the_tensor(case))


class FillOverflowInHalf(Fault):
    """Fill hidden scores with -1e9 whatever their dtype; half precision ends at -65504.

    Why it is wrong:
        A number that float32 takes for granted does not exist in float16. Depending on the operation the fill raises or becomes
        -inf; here, `masked_fill` refuses. Nobody notices before the first run in half precision.

    When it shows:
        On every boolean mask in float16, hiding or not. In bfloat16, with its range of float32, all is well.

    Seen in the wild:
        https://github.com/google/flax/issues/982
        https://github.com/huggingface/transformers/pull/17306

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output in a coarser dtype or for large scores.

    Smallest case:
        Case(mask='full')

    Killed by:
        contract: nothing_passed_in_is_changed
        precision: finite_in_gives_finite_out
    """

    root_cause = "kernel: numerical precision"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is None or attn_mask.dtype != torch.bool:
            return super().mask(scores, attn_mask, is_causal)
        if is_causal:
            attn_mask = attn_mask & causal_mask(*scores.shape[-2:], device=scores.device)
        return scores.masked_fill(~attn_mask, -1e9), ~attn_mask.any(dim=-1, keepdim=True)

    @staticmethod
    def visible(case: Case) -> bool:
        return has_mask(case) and case.encoding == "bool"


class ZeroTimesInfinity(Fault):
    """Make a boolean mask additive by the formula `(1 - mask) * -inf`.

    Why it is wrong:
        For a hidden key this is -inf, as meant. For a visible one it is 0 * -inf, which is NaN, and one NaN is enough for a
        row.

    When it shows:
        At once, for every query that sees a key under a boolean mask.

    Seen in the wild:
        https://github.com/cerebroai/reformers/issues/3

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        On 9 of 16 random cases it raises or gives NaN; on the others 0: the output of a first call in evaluation is right.

    Smallest case:
        Case(mask='full')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: no_weight_is_negative
        masking: a_mask_may_be_written_in_any_form
        causality: no_gradient_flows_from_hidden_keys, the_flag_means_its_mask
        heads: each_query_head_reads_its_own_group
        algebra: no_bias_and_zeros_give_zeros
        derivatives: gradients_are_slopes_of_the_output
        modes: dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights
        dropout: every_key_is_dropped_for_itself
        precision: all
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = (1.0 - attn_mask.to(scores.dtype)) * -math.inf
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return written_as_boolean(case) and sees(case)


class InfinityOfTheWrongSign(Fault):
    """Fill hidden scores with +inf, a minus sign short of a mask.

    Why it is wrong:
        The softmax subtracts the largest score of a row, and inf - inf is NaN. A softmax that did not would give the hidden key
        all of the weight, which is no better.

    When it shows:
        Whenever a boolean mask hides a key.

    Seen in the wild:
        https://github.com/lucidrains/memory-compressed-attention/issues/2

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        On 7 of 16 random cases it raises or gives NaN; on the others 0: the output of a first call in evaluation is right.

    Smallest case:
        Case(queries=2, mask='is_causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula
        rows: no_weight_is_negative
        masking: a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: padding_changes_nothing
        heads: each_query_head_reads_its_own_group
        algebra: no_bias_and_zeros_give_zeros
        derivatives: gradients_are_slopes_of_the_output
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p
        precision: all
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores, attn_mask = scores.masked_fill(~attn_mask, math.inf), None
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return boolean_mask_hides(case)


# Faults: a mask that does not arrive.


class MaskNeverUsed(Fault):
    """Accept a mask, and use only the causal flag.

    Why it is wrong:
        The argument is in the signature, is checked, is passed along, and nothing reads it. Padding takes its share of every
        softmax, and what a sample gets depends on how far its batch was padded.

    When it shows:
        When a mask tensor hides anything, or carries a bias that sways a choice. Equal lengths show nothing.

    Seen in the wild:
        https://github.com/huggingface/diffusers/issues/12294
        https://github.com/lucidrains/audiolm-pytorch/pull/69
        https://github.com/ByteDance-Seed/VeOmni/pull/1051

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.64, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='full', encoding='additive')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        symmetry: permuted_keys_change_nothing, permuted_tokens_give_permuted_rows
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: all
        batch: padding_changes_nothing
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, None, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return hides(case) or mask_has_gradient(case)


class MaskDroppedInTraining(Fault):
    """Apply the mask in evaluation only; the path for training builds none.

    Why it is wrong:
        Two paths through one layer are two layers. The model learns to attend to padding, and is judged without it.

    When it shows:
        In training mode, when a mask tensor hides a key from a query that sees another, or carries a bias that sways a choice.

    Seen in the wild:
        https://github.com/unslothai/unsloth/pull/8253
        https://github.com/AI-Hypercomputer/maxtext/issues/4476

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the weights returned in training, the output in training.

    Smallest case:
        Case(queries=2, mask='causal')

    Killed by:
        modes: modes_agree_without_dropout, dropout_drops_single_weights, dropout_is_drawn_for_every_weight,
            the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights,
            training_returns_the_weights_before_dropout
        precision: rounding_explains_the_error
    """

    root_cause = "variant: dynamic dispatch"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, None if self.training else attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return sways(case) or bool(hidden_by_the_tensor(case).any())


class MaskDroppedWithoutGradients(Fault):
    """Take a fast path where no gradient is wanted, and leave the mask behind.

    Why it is wrong:
        Training and its loss are right, for they need gradients. What the finished model answers is not: it attends to padding.

    When it shows:
        Under `no_grad`, when a mask tensor hides anything, or carries a bias that sways a choice.

    Seen in the wild:
        https://github.com/AI4Bharat/IndicBERT/issues/20

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.64, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        symmetry: permuted_keys_change_nothing, permuted_tokens_give_permuted_rows
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: the_future_does_not_change_the_past, a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: padding_changes_nothing
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head
        modes: modes_agree_without_dropout, dropout_drops_single_weights, dropout_is_drawn_for_every_weight,
            the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
    """

    root_cause = "variant: dynamic dispatch"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, attn_mask if torch.is_grad_enabled() else None, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return sways(case) or hides(case)


class MaskDroppedInCrossAttention(Fault):
    """Pass the mask on in self-attention only.

    Why it is wrong:
        The mask of the source is easily forgotten on its way through the decoder: a decoder thinks of its own mask first. Its
        queries then attend to the padding of the source.

    When it shows:
        In cross-attention, when a mask tensor hides anything, or carries a bias that sways a choice.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/36293

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.65, the median relative error of the output.

    Smallest case:
        Case(keys=2, mask='full', encoding='additive')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        symmetry: permuted_keys_change_nothing
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: all
        batch: padding_changes_nothing
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        return super().forward(x, attn_mask if context is None else None, context=context, is_causal=is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys is not None and (hides(case) or mask_has_gradient(case))
