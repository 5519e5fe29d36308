"""Mistakes in the softmax: over the wrong axis, and in the wrong precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attn import MultiHeadAttention
from faults.facts import chooses, sees, visible_keys
from faults.fault import Fault
from faults.subject import subject
from properties.case import DTYPES, Case
from properties.inputs import Inputs, make_inputs
from properties.laws.precision import SHARED, fitting
from properties.oracle import attend
from properties.rounding import bounds


class SoftmaxOverQueries(Fault):
    """Normalise each column of the scores instead of each row: the queries compete for a key.

    Why it is wrong:
        The weights of one query have to sum to 1 over its keys. With `dim=-2` those of one key sum to 1 over the queries, so
        every row depends on which other queries are in the batch, and a key that nobody may see divides 0 by 0.

    When it shows:
        With more than one query or more than one key. Often written as `dim=2`, from the time when scores had three axes.

    Seen in the wild:
        https://github.com/FudanNLP/fastNLP/issues/254
        https://github.com/nerdai/llms-from-scratch-rs/pull/30

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.58, the median relative error of the output; on 4 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        rows: rows_sum_to_one, hidden_keys_get_no_weight, constant_values_come_back, outputs_stay_among_the_values
        symmetry: a_query_alone_gives_its_own_row
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        batch: padding_changes_nothing
        heads: every_head_chooses_for_itself, each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, a_shift_of_the_mask_changes_nothing, a_bias_multiplies_the_odds,
            no_bias_and_zeros_give_zeros
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "score: normalization"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = scores.softmax(dim=-2)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        keys = visible_keys(case)
        taking_part = keys | ~keys.any(-1, keepdim=True)  # the scores of an empty row are left finite
        alone = (keys.sum(-1, keepdim=True) == 1) & (taking_part.sum(-2, keepdim=True) == 1)  # weight 1 either way
        nan = ~taking_part.any(-2)  # a column of nothing but -inf
        return bool((keys & ~alone).any() or nan.any())


class SoftmaxOverHeads(Fault):
    """Normalise over axis 1, where the heads are: they share out each pair of query and key among themselves.

    Why it is wrong:
        Heads are independent; here one head looks away because another looks. It is also what `F.softmax` without `dim` picks
        for four axes, with nothing but a warning.

    When it shows:
        With more than one head, or with one head as soon as there is a second key: then every weight is 1.

    Seen in the wild:
        https://github.com/FudanNLP/fastNLP/issues/254
        https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/52

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.63, the median relative error of the output; on 10 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(num_heads=2)

    Killed by:
        reference: all
        rows: rows_sum_to_one, no_weight_is_negative, hidden_keys_get_no_weight, constant_values_come_back,
            outputs_stay_among_the_values
        masking: empty_rows_harm_no_gradient
        causality: no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        batch: padding_changes_nothing
        heads: a_head_is_a_layer_of_one_head, each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, a_bias_multiplies_the_odds, no_bias_and_zeros_give_zeros
        dependence: every_visible_key_counts
        derivatives: gradients_are_slopes_of_the_output
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        dropout: every_key_is_dropped_for_itself
        precision: rounding_explains_the_error, finite_in_gives_finite_gradients
        tools: autocast_rounds_and_no_more
    """

    root_cause = "score: normalization"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = scores.softmax(dim=1)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case) and (case.num_heads > 1 or case.S > 1)


class SoftmaxOverTheBatch(Fault):
    """Normalise over axis 0: the samples of the batch share out each weight among themselves.

    Why it is wrong:
        A sample must not know of its neighbours in the batch. With a batch of one every weight is 1, and attention is a plain
        sum.

    When it shows:
        With more than one sample, or with one sample as soon as there is a second key.

    Seen in the wild:
        https://github.com/PetrochukM/PyTorch-NLP/issues/2

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.57, the median relative error of the output; on 9 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        rows: rows_sum_to_one, no_weight_is_negative, hidden_keys_get_no_weight, constant_values_come_back,
            outputs_stay_among_the_values
        masking: empty_rows_harm_no_gradient
        causality: no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        batch: all
        heads: every_head_chooses_for_itself, each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, a_bias_multiplies_the_odds
        derivatives: gradients_are_slopes_of_the_output
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: all
        tools: autocast_rounds_and_no_more
        training: every_parameter_learns
    """

    root_cause = "score: normalization"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = scores.softmax(dim=0)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case) and (case.batch > 1 or case.S > 1)


class SoftmaxWithoutMaximum(Fault):
    """Compute exp(score) / sum of exp(score) as it stands in the formula, without first subtracting the largest score of the row.

    Why it is wrong:
        On paper the maximum cancels. In float32 exp overflows at 89 and the row becomes NaN, in float16 it does at 12; and a
        row of very negative scores divides 0 by 0.

    When it shows:
        With scores so large, or all so negative, that exp leaves the range of the dtype. Where they are of about unit size,
        every digit is right.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/60939
        https://github.com/huggingface/transformers/pull/17437

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output in a coarser dtype or for large scores.

    Smallest case:
        Case(score_scale=30.0)

    Killed by:
        precision: all
    """

    root_cause = "kernel: numerical precision"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        exponentials = scores.exp()
        weights = exponentials / exponentials.sum(dim=-1, keepdim=True)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        if case.mask not in SHARED:
            return False
        # Scores of about unit size end at about 20, from where float16 is the only one that exp leaves.
        others = DTYPES if case.score_scale > 1 else ("float16",)
        return any(_weights_by_exp(case, dtype, strictly=dtype == case.dtype) for dtype in {*others, case.dtype})


class HalfPrecisionSoftmax(Fault):
    """Cast the scores to float16 for the softmax, and the weights back afterwards.

    Why it is wrong:
        The result has the dtype that was asked for and three digits of it. Scores beyond 65504 become infinite on the way.

    When it shows:
        In any wider dtype, as soon as a query has a choice: a weight of 1 survives rounding.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/60939
        https://github.com/tinygrad/tinygrad/pull/4985

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        below 0.001, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        rows: rows_sum_to_one, constant_values_come_back, outputs_stay_among_the_values
        heads: each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, a_shift_of_the_mask_changes_nothing, a_bias_multiplies_the_odds
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: precision handling"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = scores.half().softmax(dim=-1).to(scores.dtype)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        if chooses(case):
            return True
        return any(_overflows_in_half(case, dtype) for dtype in DTYPES)


class SinglePrecisionSoftmax(Fault):
    """Compute the softmax in float32 whatever the dtype of the scores, and cast the weights back.

    Why it is wrong:
        Meant as a promotion, for half precision, where it is right. For float64 it is a demotion: half of the digits are lost,
        and every comparison with a float64 reference, gradcheck first, fails for no visible reason.

    When it shows:
        In float64, as soon as a query has a choice between keys.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/48459

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        below 1e-7, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        rows: rows_sum_to_one, constant_values_come_back
        symmetry: permuted_keys_change_nothing, permuted_tokens_give_permuted_rows
        heads: each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, a_shift_of_the_mask_changes_nothing, a_bias_multiplies_the_odds
        derivatives: gradients_are_slopes_of_the_output
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: precision handling"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class SoftmaxNotCastBack(Fault):
    """Compute the softmax in float32 and forget to cast the weights back to the dtype of the values.

    Why it is wrong:
        The matrix product takes two operands of one dtype and raises. Only where everything is float32, as in most tests, is
        there nothing to cast back.

    When it shows:
        Always, in every dtype but float32.

    Seen in the wild:
        https://github.com/tensorflow/tensorflow/issues/46064
        https://github.com/kohya-ss/musubi-tuner/pull/1037

    Symptom:
        Loud: it raises wherever it shows.

    Severity:
        No output: on all 16 random cases it raises or gives NaN.

    Smallest case:
        Case()

    Killed by:
        reference: all
        rows: all
        symmetry: all
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared,
            empty_rows_harm_no_gradient
        causality: all
        batch: all
        heads: all
        algebra: all
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        modes: all
        dropout: one_key_is_dropped_or_scaled_up, no_draw_is_the_evaluation, one_key_is_dropped_by_whole_heads,
            every_head_drops_for_itself, equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, one_query_and_one_key_work, a_batch_of_none_works,
            no_queries_get_no_rows, strides_do_not_matter, nothing_passed_in_is_changed, nothing_around_it_is_changed,
            a_second_call_gives_the_same, a_result_outlives_the_next_call, mask_and_flag_are_for_one_call,
            one_layer_serves_all_sizes, a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back,
            every_submodule_is_called, vmap_is_a_loop
        training: every_parameter_learns
    """

    root_cause = "score: precision handling"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = F.softmax(scores, dim=-1, dtype=torch.float32)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return True


def _overflows_in_half(case: Case, dtype: str) -> bool:
    """Does a visible score that is finite in this dtype become infinite in float16?"""
    scores = _scores(make_inputs(case, getattr(torch, dtype), case.score_scale))
    return bool((scores.isfinite() & scores.half().isinf() & visible_keys(case)).any())


def _weights_by_exp(case: Case, dtype: str, strictly: bool) -> bool:
    """Are the weights in this dtype wrong if exp is taken of the scores as they are: not finite, or, strictly, off at all?

    Underflow sets in gradually, and rounding excuses some of it: only the scores themselves can say when it is too much.
    """
    inputs = fitting(case, dtype)
    if inputs is None:
        return False
    exponentials = _scores(inputs).exp()
    weights = exponentials / exponentials.sum(dim=-1, keepdim=True)
    right = weights.isfinite()
    some = visible_keys(case).any(-1, keepdim=True)
    # What an empty row holds is overwritten, but not before it has spoilt the gradient, which float16 is not asked for.
    empty_spoils = strictly and dtype != "float16" and bool((~right & ~some).any())
    if strictly:
        right = (weights.to(torch.float64) - attend(inputs).weights).abs() <= bounds(inputs, inputs.x.dtype).weights
    return empty_spoils or bool((~right & some).any())


def _scores(inputs: Inputs) -> Tensor:
    """What the clean attention hands to its softmax, `[B, h, T, S]`, in the dtype of the inputs."""
    caught: list[Tensor] = []

    class Watched(MultiHeadAttention):
        def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
            caught.append(scores)
            return super().softmax(scores, empty)

    subject(Watched).layer(inputs)(inputs)
    return caught[0]
