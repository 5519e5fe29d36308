"""The causal flag: its triangle, where it is aligned, and how it gets on with a mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn.masks import causal_mask
from faults.facts import has_flag, hidden_by_the_tensor, mask_has_gradient
from faults.fault import Fault
from properties.case import Case
from properties.inputs import make_inputs


def _both(attn_mask: Tensor | None, causal: Tensor) -> Tensor:
    """Mask and triangle in one, as the clean step does it."""
    if attn_mask is None:
        return causal
    return attn_mask & causal if attn_mask.dtype == torch.bool else attn_mask.masked_fill(~causal, -math.inf)


def _ones(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)


# Facts.


def _another_triangle_shows(case: Case, triangle: Tensor) -> bool:
    """Does this triangle `[T, S]` differ from the right one on a key that the mask next to the flag leaves visible?"""
    if not has_flag(case):
        return False
    mask = make_inputs(case).mask
    left = torch.ones(1, dtype=torch.bool) if mask is None else mask if mask.dtype == torch.bool else mask > -math.inf
    return bool((left & (triangle ^ causal_mask(case.T, case.S))).any())


# Faults: the triangle.


class CausalOffByOne(Fault):
    """Draw the triangle one diagonal too far, so that every query sees its successor.

    Why it is wrong:
        Position t is asked to predict token t + 1, and is shown it. The loss falls to nearly nothing, and generation, which has
        no next token to look at, falls apart.

    When it shows:
        With the flag and at least two queries, if the mask beside it leaves the successor of any query visible. The last has
        none.

    Seen in the wild:
        https://github.com/RVC-Boss/GPT-SoVITS/issues/965
        https://github.com/huggingface/transformers/issues/39408

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.57, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: all
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head
        modes: modes_agree_without_dropout, dropout_drops_single_weights, dropout_is_drawn_for_every_weight,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            *_, queries, keys = scores.shape
            attn_mask = _both(attn_mask, _ones(scores).tril(keys - queries + 1))
        return super().mask(scores, attn_mask, False)

    @staticmethod
    def visible(case: Case) -> bool:
        return _another_triangle_shows(case, torch.ones(case.T, case.S, dtype=torch.bool).tril(case.S - case.T + 1))


class CausalWithoutItself(Fault):
    """Draw the triangle without its diagonal, so that no query sees its own token.

    Why it is wrong:
        Hiding the future starts after the present. The first query is left with nothing to attend to, and every other one has
        to do without the token that it stands on.

    When it shows:
        With the flag, if the mask beside it leaves any query the sight of its own position.

    Seen in the wild:
        https://github.com/pbloem/former/issues/10
        https://github.com/huggingface/transformers/issues/29623

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.64, the median relative error of the output.

    Smallest case:
        Case(mask='is_causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, constant_values_come_back, outputs_stay_among_the_values
        causality: the_flag_means_its_mask
        heads: each_query_head_reads_its_own_group
        dependence: every_query_counts, every_visible_key_counts, every_visible_value_counts, every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        dropout: every_key_is_dropped_for_itself
        precision: rounding_explains_the_error
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            *_, queries, keys = scores.shape
            attn_mask = _both(attn_mask, _ones(scores).tril(keys - queries - 1))
        return super().mask(scores, attn_mask, False)

    @staticmethod
    def visible(case: Case) -> bool:
        return _another_triangle_shows(case, torch.ones(case.T, case.S, dtype=torch.bool).tril(case.S - case.T - 1))


class CausalReversed(Fault):
    """Draw the other triangle: every query sees itself and the future, and none of the past.

    Why it is wrong:
        `triu` is right for a mask that says what to hide, `tril` for one that says what to show. Taken for the other, it
        predicts the past from the future, which a copy of the input solves.

    When it shows:
        With the flag, wherever past and future are not both empty or hidden by the mask beside it: never with a single token.

    Seen in the wild:
        https://github.com/marin-community/levanter/pull/102
        https://github.com/rasbt/LLMs-from-scratch/issues/1061

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.8, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, weights_explain_the_output, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: all
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head
        dependence: all
        modes: modes_agree_without_dropout, dropout_drops_single_weights, dropout_is_drawn_for_every_weight,
            the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights
        dropout: every_key_is_dropped_for_itself, equal_rows_are_dropped_apart
        precision: rounding_explains_the_error
        training: every_parameter_learns
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            *_, queries, keys = scores.shape
            attn_mask = _both(attn_mask, _ones(scores).triu(keys - queries))
        return super().mask(scores, attn_mask, False)

    @staticmethod
    def visible(case: Case) -> bool:
        return _another_triangle_shows(case, torch.ones(case.T, case.S, dtype=torch.bool).triu(case.S - case.T))


class CausalTopLeft(Fault):
    """Align the triangle at the first query and the first key instead of at the last of both.

    Why it is wrong:
        Both alignments are in use and agree on squares. With a cache there are more keys than queries: aligned at the top left,
        a new token sees the beginning of the text, and neither its own position nor what was just said.

    When it shows:
        With the flag and T != S, if the mask beside it leaves any of the keys visible on which the alignments differ.

    Seen in the wild:
        https://github.com/lucidrains/x-transformers/issues/187
        https://github.com/google/flax/issues/5591
        https://github.com/ml-explore/mlx/issues/2835
        https://github.com/Dao-AILab/flash-attention/issues/282

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.8, the median relative error of the output.

    Smallest case:
        Case(keys=2, mask='is_causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: all
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head
        dependence: all
        modes: modes_agree_without_dropout, dropout_drops_single_weights, dropout_is_drawn_for_every_weight,
            the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights
        dropout: every_key_is_dropped_for_itself
        precision: rounding_explains_the_error
        tools: vmap_is_a_loop
        training: every_parameter_learns
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            attn_mask = _both(attn_mask, _ones(scores).tril())
        return super().mask(scores, attn_mask, False)

    @staticmethod
    def visible(case: Case) -> bool:
        return _another_triangle_shows(case, torch.ones(case.T, case.S, dtype=torch.bool).tril())


class SquareCausalMask(Fault):
    """Build the causal mask from the number of queries alone, `[T, T]`.

    Why it is wrong:
        The scores are `[T, S]`. A square fits them while every token is both query and key; with a cache, or another sequence
        to attend to, it does not. For a single query it is one True, which broadcasts, and happens to be right.

    When it shows:
        It raises with the flag, T != S and more than one query.

    Seen in the wild:
        https://github.com/meta-llama/llama/issues/899

    Symptom:
        Loud: it raises wherever it shows.

    Severity:
        No output: on all 13 random cases it raises or gives NaN.

    Smallest case:
        Case(queries=2, keys=1, mask='is_causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: all
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared, empty_rows_harm_no_gradient
        causality: all
        batch: a_sample_alone_gives_its_own_rows
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly, no_bias_and_zeros_give_zeros
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        modes: all
        dropout: every_key_is_dropped_for_itself, equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, a_batch_of_none_works, strides_do_not_matter,
            nothing_passed_in_is_changed, nothing_around_it_is_changed, a_second_call_gives_the_same,
            a_result_outlives_the_next_call, mask_and_flag_are_for_one_call, one_layer_serves_all_sizes,
            a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back,
            autocast_rounds_and_no_more, vmap_is_a_loop
        training: every_parameter_learns
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            attn_mask = _both(attn_mask, causal_mask(scores.shape[-2], device=scores.device))
        return super().mask(scores, attn_mask, False)

    @staticmethod
    def visible(case: Case) -> bool:
        return has_flag(case) and case.T != case.S and case.T > 1


# Faults: the flag and the mask.


class CausalFlagDroppedWithMask(Fault):
    """Obey the causal flag only if no mask is given.

    Why it is wrong:
        A padding mask says nothing about time. Whoever passes one next to the flag means both; here padding is hidden and the
        future is not, so the leak begins with the first batch of unequal lengths.

    When it shows:
        With the flag and a mask together, if the mask leaves a key visible that the flag should hide.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/41966
        https://github.com/huggingface/candle/pull/3632
        https://github.com/huggingface/transformers/pull/30123

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.63, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal+padding')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: all
        batch: a_sample_alone_gives_its_own_rows
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights
        modes: modes_agree_without_dropout, dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, attn_mask, is_causal and attn_mask is None)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.mask == "is_causal+padding" and _another_triangle_shows(case, torch.ones(case.T, case.S, dtype=torch.bool))


class MaskDroppedWithCausalFlag(Fault):
    """Let the causal flag replace the mask instead of joining it.

    Why it is wrong:
        The flag promises a triangle, and the fast path that serves it takes no other mask. The padding of a batch becomes
        visible, and a bias is lost, without a word.

    When it shows:
        With the flag and a mask together, if the mask hides a key from a query that comes after it, or sways a choice between
        two.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/96941
        https://github.com/AI-Hypercomputer/maxtext/issues/878
        https://github.com/NVIDIA/Megatron-LM/issues/7039

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.43, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal+padding')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys, the_flag_means_its_mask
        batch: a_sample_alone_gives_its_own_rows
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, None if is_causal else attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        if case.mask != "is_causal+padding":
            return False
        hidden = bool(hidden_by_the_tensor(case).any())
        return hidden or mask_has_gradient(case)


class CausalFlagDroppedWithDropout(Fault):
    """Obey the causal flag on the fused path only, which a layer with dropout does not take.

    Why it is wrong:
        The fused kernel makes its own triangle, so none is built; where the kernel is not used, there is none. The option that
        decides it has nothing to do with time, and nobody tests the two together.

    When it shows:
        With the flag and a dropout rate above 0, if a key is visible but for the flag. In evaluation too, for the rate is still
        set.

    Seen in the wild:
        https://github.com/keras-team/keras/issues/23038
        https://github.com/keras-team/keras/pull/23040

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.58, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal', dropout=0.5)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant
        causality: all
        batch: a_sample_alone_gives_its_own_rows
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head
        modes: evaluation_ignores_dropout, dropout_drops_single_weights, dropout_is_drawn_for_every_weight,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "variant: dynamic dispatch"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, attn_mask, is_causal and self.dropout == 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and _another_triangle_shows(case, torch.ones(case.T, case.S, dtype=torch.bool))


class NoMaskMeansCausal(Fault):
    """Take the absence of a mask for a wish to be causal.

    Why it is wrong:
        In a decoder it saves building a mask. In an encoder, where no padding means no mask, the batch without padding is
        suddenly attended to from left to right.

    When it shows:
        Without mask and flag, with more than one query.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/42820

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.66, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        rows: constant_values_come_back
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            permuted_tokens_give_permuted_rows, any_key_may_come_first
        heads: each_query_head_reads_its_own_group
        dependence: every_visible_key_counts, every_visible_value_counts, every_parameter_counts, a_nan_that_is_seen_comes_out
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "variant: variant configuration"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, attn_mask, is_causal or attn_mask is None)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.mask == "none" and case.T > 1
