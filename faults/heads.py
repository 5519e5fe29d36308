"""Heads that read the wrong key/value head, share their weights, or are put together from the wrong pieces."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from faults.facts import chooses, grouped, sees, visible_keys
from faults.fault import Fault
from properties.case import Case


class TiledKvHeads(Fault):
    """Repeat the key/value heads as a block, 0 1 0 1, instead of each for its group, 0 0 1 1.

    Why it is wrong:
        `repeat` tiles, `repeat_interleave` repeats in place. Query head i then reads key/value head i % g where i // (h // g)
        is meant; every shape fits, and weights trained under the other order are read by the wrong heads.

    When it shows:
        With grouped heads, unless all share one key/value head.

    Seen in the wild:
        https://github.com/onnx/onnx/pull/7274
        https://github.com/apple/axlearn/pull/842

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.73, the median relative error of the output.

    Smallest case:
        Case(num_heads=4, num_kv_heads=2)

    Killed by:
        reference: all
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        heads: a_head_is_a_layer_of_one_head, grouped_heads_are_full_heads_with_repeated_weights,
            each_query_head_reads_its_own_group
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "variant: variant configuration"

    def expand_kv_heads(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)

    @staticmethod
    def visible(case: Case) -> bool:
        head = torch.arange(case.num_heads)
        misread = head % case.g != head // (case.num_heads // case.g)
        return bool(visible_keys(case)[:, misread].any())


class UnexpandedKvHeads(Fault):
    """Leave the key/value heads as few as they are, and let the matrix product see to it.

    Why it is wrong:
        One key/value head broadcasts over all query heads, so that case works. Any other number fits no broadcast.

    When it shows:
        With grouped heads, unless all share one key/value head; always loudly.

    Seen in the wild:
        https://github.com/paiml/aprender/pull/2010
        https://github.com/EricLBuehler/candle-vllm/pull/52

    Symptom:
        Loud: it raises wherever it shows.

    Severity:
        No output: on all 16 random cases it raises or gives NaN.

    Smallest case:
        Case(num_heads=4, num_kv_heads=2)

    Killed by:
        reference: all
        rows: all
        symmetry: all
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form,
            empty_rows_are_as_declared, empty_rows_harm_no_gradient
        causality: all
        batch: all
        heads: the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head, every_head_chooses_for_itself,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: all
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        modes: all
        dropout: no_draw_is_the_evaluation, one_key_is_dropped_by_whole_heads, every_head_drops_for_itself,
            every_key_is_dropped_for_itself, equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, one_query_and_one_key_work, a_batch_of_none_works,
            strides_do_not_matter, nothing_passed_in_is_changed, nothing_around_it_is_changed, a_second_call_gives_the_same,
            a_result_outlives_the_next_call, mask_and_flag_are_for_one_call, one_layer_serves_all_sizes,
            a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: all
        training: every_parameter_learns
    """

    root_cause = "variant: variant configuration"

    def expand_kv_heads(self, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def visible(case: Case) -> bool:
        return grouped(case) and case.g > 1


class TokensRepeatedForKvHeads(Fault):
    """Repeat the key/value heads along the axis of the tokens.

    Why it is wrong:
        The helper was written for `[B, T, h, d_head]`, and here it meets `[B, h, T, d_head]`, or the other way round: the
        axis it expands is the sequence. There are now several copies of every key, and still too few heads.

    When it shows:
        With grouped heads.

    Seen in the wild:
        https://github.com/ByteDance-Seed/VeOmni/pull/162
        https://github.com/PrimeIntellect-ai/prime-rl/pull/2681

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        On 12 of 16 random cases it raises or gives NaN; on the others 0: the output of a first call in evaluation is right;
            wrong: the returned weights, the output in training.

    Smallest case:
        Case(num_heads=2, num_kv_heads=1)

    Killed by:
        reference: all
        rows: all
        symmetry: all
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form,
            empty_rows_are_as_declared, empty_rows_harm_no_gradient
        causality: all
        batch: all
        heads: the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head, every_head_chooses_for_itself,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: all
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        modes: all
        dropout: no_draw_is_the_evaluation, one_key_is_dropped_by_whole_heads, every_head_drops_for_itself,
            every_key_is_dropped_for_itself, equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, one_query_and_one_key_work, a_batch_of_none_works,
            no_queries_get_no_rows, strides_do_not_matter, nothing_passed_in_is_changed, nothing_around_it_is_changed,
            a_second_call_gives_the_same, a_result_outlives_the_next_call, mask_and_flag_are_for_one_call,
            one_layer_serves_all_sizes, a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: all
        training: every_parameter_learns
    """

    root_cause = "variant: variant configuration"

    def expand_kv_heads(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.num_heads // self.num_kv_heads, dim=2)

    @staticmethod
    def visible(case: Case) -> bool:
        return grouped(case)


class ElementwiseScores(Fault):
    """Multiply queries and keys element by element and sum the features, instead of comparing each query with each key.

    Why it is wrong:
        Token t is compared with itself, and every query is handed the same row of these scores. It is a softmax over how much
        each token resembles itself.

    When it shows:
        With more than one query: for T != S it raises, else it shows for a query that sees two keys or more. For a single
        query the product broadcasts, and is right.

    Seen in the wild:
        https://github.com/heykeetae/Self-Attention-GAN/issues/7

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0.19, the median relative error of the output; on 10 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        rows: no_weight_is_negative, hidden_keys_get_no_weight, weights_explain_the_output, constant_values_come_back,
            outputs_stay_among_the_values
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            any_key_may_come_first
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form,
            empty_rows_are_as_declared
        causality: all
        batch: all
        heads: all
        algebra: all
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        modes: all
        dropout: equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, a_batch_of_none_works, no_queries_get_no_rows, strides_do_not_matter,
            nothing_passed_in_is_changed, nothing_around_it_is_changed, a_second_call_gives_the_same,
            a_result_outlives_the_next_call, mask_and_flag_are_for_one_call, one_layer_serves_all_sizes,
            a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back,
            autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "score: implementation"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = (q * k).sum(dim=-1) / math.sqrt(self.d_head)  # [B, h, T], or [B, h, S] for T = 1
        return scores[:, :, None].repeat(1, 1, q.shape[2], 1)  # [B, h, T, S]

    @staticmethod
    def visible(case: Case) -> bool:
        return case.T > 1 and (case.T != case.S or chooses(case))


class AveragedHeads(Fault):
    """Average the weights over the heads, and let every head use the average.

    Why it is wrong:
        Heads exist to attend to different things. With one set of weights for all of them, h heads are one head of mixed
        opinions.

    When it shows:
        Wherever two heads would attend differently: for a query that sees two keys or more, or not the same ones in every
        head.

    Seen in the wild:
        https://github.com/awf/functional-transformer/issues/8

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.23, the median relative error of the output.

    Smallest case:
        Case(queries=2, num_heads=2)

    Killed by:
        reference: all
        rows: rows_sum_to_one
        masking: empty_rows_are_as_declared
        heads: a_head_is_a_layer_of_one_head, every_head_chooses_for_itself
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "qkv projection: head interaction"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = super().softmax(scores, empty)
        return weights.mean(dim=1, keepdim=True).expand_as(weights)

    @staticmethod
    def visible(case: Case) -> bool:
        keys = visible_keys(case)
        return case.num_heads > 1 and bool(chooses(case) or (keys != keys[:, :1]).any())


class OnlyTheReturnedWeightsAveraged(Fault):
    """Compute the output from the weights of each head, and return their average over the heads.

    Why it is wrong:
        The weights are asked for to see what each head attends to. The average has another shape, `[B, T, S]`, and may show a
        pattern that no head has. The output is right, so nobody looks.

    When it shows:
        Always: even of a single head, the axis is missing.

    Seen in the wild:
        https://github.com/facebookresearch/fairseq/issues/3365

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the returned weights.

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
        tools: all
        training: every_parameter_learns
    """

    root_cause = "qkv projection: head interaction"

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        output, weights = super().forward(x, attn_mask, context=context, is_causal=is_causal)
        return output, weights.mean(dim=1)

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class WeightsTimesQueries(Fault):
    """Mix the queries by the weights, instead of the values.

    Why it is wrong:
        The weights say how much of each key's value to take. Multiplied with the queries they mix whatever happens to have
        the same index; the values are computed and dropped.

    When it shows:
        Whenever a query sees a key; for T != S and for grouped heads it raises.

    Seen in the wild:
        https://github.com/kvfrans/notes/issues/4

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        1.1, the median relative error of the output; on 13 of 16 random cases it raises or gives NaN.

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
        dropout: no_draw_is_the_evaluation, one_key_is_dropped_by_whole_heads, every_head_drops_for_itself,
            equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, one_query_and_one_key_work, a_batch_of_none_works,
            no_queries_get_no_rows, strides_do_not_matter, nothing_passed_in_is_changed, nothing_around_it_is_changed,
            a_second_call_gives_the_same, a_result_outlives_the_next_call, mask_and_flag_are_for_one_call,
            one_layer_serves_all_sizes, a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: all
        training: every_parameter_learns
    """

    root_cause = "score: implementation"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().project_in(x, context)
        return q, k, q

    @staticmethod
    def visible(case: Case) -> bool:
        return case.T != case.S or grouped(case) or sees(case)


class TransposedWeights(Fault):
    """Multiply the values by the transposed weights.

    Why it is wrong:
        The softmax made rows that sum to 1, one for each query, and the sum is taken along the columns. A query gets what
        others give to the key of its index, in shares that sum to anything.

    When it shows:
        For T != S it raises. Else it shows unless all weights equal their mirror images, as where every query sees itself
        alone.

    Seen in the wild:
        https://github.com/ok1zjf/VASNet/issues/25

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0.7, the median relative error of the output; on 9 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        rows: no_weight_is_negative, hidden_keys_get_no_weight, weights_explain_the_output, constant_values_come_back,
            outputs_stay_among_the_values
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            permuted_tokens_give_permuted_rows, any_key_may_come_first
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: all
        batch: all
        heads: all
        algebra: all
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        modes: all
        dropout: equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, a_batch_of_none_works, no_queries_get_no_rows, strides_do_not_matter,
            nothing_passed_in_is_changed, nothing_around_it_is_changed, a_second_call_gives_the_same,
            a_result_outlives_the_next_call, mask_and_flag_are_for_one_call, one_layer_serves_all_sizes,
            a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back,
            autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "score: implementation"

    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights.mT @ v

    @staticmethod
    def visible(case: Case) -> bool:
        if case.T != case.S:
            return True
        keys = visible_keys(case)
        alone = keys & (keys.sum(-1, keepdim=True) == 1)  # weight 1, whatever the scores
        unequal = (keys | keys.mT) & ~(alone & alone.mT)  # one of the two weights is a number that the other cannot be
        return bool(unequal.any())


class BatchAndTimeExchanged(Fault):
    """Take `[B, T, d]` for `[T, B, d]`, as a layer that wants the sequence first does with a batch that comes first.

    Why it is wrong:
        Every token attends to the tokens at its own position in the other samples, and never to its own sequence. Where the
        sizes agree every shape fits, and a batch of one looks like attention that has given up.

    When it shows:
        Always: where batch, queries and keys are all one, the weights of an empty batch still have the wrong shape.

    Seen in the wild:
        https://github.com/aipixel/AEMatter/issues/3
        https://github.com/IBM/TabFormer/pull/14
        https://github.com/om-ai-lab/OmDet/issues/19
        https://github.com/kyegomez/movie-gen/issues/8

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        1.1, the median relative error of the output; on 11 of 16 random cases it raises or gives NaN.

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
        tools: all
        training: every_parameter_learns
    """

    root_cause = "qkv projection: dimension"

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        context = None if context is None else context.transpose(0, 1)
        output, weights = super().forward(x.transpose(0, 1), attn_mask, context=context, is_causal=is_causal)
        return output.transpose(0, 1), weights

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class BatchAndHeadsExchanged(Fault):
    """Merge the heads as if they stood in front of the batch, `[h, B, T, d_head]`.

    Why it is wrong:
        `[B, h, ...]` and `[h, B, ...]` hold the same numbers in other places. The rows of a sample are put together from
        heads of several samples.

    When it shows:
        With more than one sample and more than one head.

    Seen in the wild:
        https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1
        https://github.com/hackiey/QAnet-pytorch/issues/2

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        1.1, the median relative error of the output.

    Smallest case:
        Case(batch=2, num_heads=2)

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula, two_keys_share_by_the_sigmoid
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys
        batch: a_sample_alone_gives_its_own_rows
        heads: heads_may_be_permuted, each_query_head_reads_its_own_group
        algebra: a_bias_multiplies_the_odds
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "qkv projection: head interaction"

    def merge_heads(self, heads: Tensor) -> Tensor:
        batch, num_heads, queries, _ = heads.shape
        heads = heads.reshape(num_heads, batch, queries, self.d_head)
        return heads.permute(1, 2, 0, 3).reshape(batch, queries, self.d_model)

    @staticmethod
    def visible(case: Case) -> bool:
        if case.batch == 1 or case.num_heads == 1:
            return False
        order = torch.arange(case.batch * case.num_heads).view(case.batch, case.num_heads)
        moved = order != order.view(case.num_heads, case.batch).T  # [B, h]
        some = visible_keys(case).any(-1)  # [B, h, T]
        return bool(some[moved].any())
