"""Mistakes with memory: what belongs to the caller, what is kept between calls, and how tensors lie in it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn.masks import boolean_to_additive, causal_mask, possibly_any
from faults.facts import chooses, has_empty_rows, hidden_by_the_tensor, sees, sways, visible_keys
from faults.fault import Fault
from properties.case import EXPLICIT, Case
from properties.inputs import make_inputs


class InputChangedInPlace(Fault):
    """Write the queries into the memory of `x`, which has the right shape and "is not needed any more".

    Why it is wrong:
        It is the caller's. The residual connection around the layer adds it to the output a moment later, and what it adds are
        queries.

    When it shows:
        Always, but not in the output of the first call; with gradients autograd refuses.

    Seen in the wild:
        https://github.com/Shujun-He/RibonanzaNet/issues/7

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient, what was passed in.

    Smallest case:
        Case()

    Killed by:
        reference: gradients_are_those_of_the_formula
        symmetry: permuted_queries_give_permuted_rows, permuted_tokens_give_permuted_rows, any_key_may_come_first,
            self_attention_is_attention_to_oneself
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_harm_no_gradient
        causality: no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: all
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly, a_shift_of_the_mask_changes_nothing,
            a_bias_multiplies_the_odds
        derivatives: gradients_are_slopes_of_the_output
        modes: evaluation_ignores_dropout, modes_agree_without_dropout, dropout_drops_single_weights,
            dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights,
            training_returns_the_weights_before_dropout
        contract: nothing_passed_in_is_changed, a_second_call_gives_the_same, mask_and_flag_are_for_one_call,
            one_layer_serves_all_sizes, a_state_dict_carries_everything
        precision: rounding_explains_the_error, finite_in_gives_finite_gradients
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back,
            autocast_rounds_and_no_more
        training: every_parameter_learns
    """

    root_cause = "kernel: kernel memory"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project_in(x, context)
        return x.copy_(q), k, v  # [B, T, d]

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class MaskChangedInPlace(Fault):
    """Clear the empty rows in the mask that was passed in, not in a copy of it: one underscore too many.

    Why it is wrong:
        The layer returns the right thing and leaves behind a mask that hides nothing from these queries. The next layer of the
        stack, or the next call, believes it.

    When it shows:
        With an additive mask that has empty rows, from the second use of the mask on. A boolean mask is turned into a new
        additive one, and with the causal flag a new one is made too; those may be changed.

    Seen in the wild:
        https://github.com/Shujun-He/RibonanzaNet/issues/7

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient, what was passed in.

    Smallest case:
        Case(queries=2, mask='causal+padding', encoding='additive')

    Killed by:
        reference: gradients_are_those_of_the_formula
        rows: rows_sum_to_one, constant_values_come_back, outputs_stay_among_the_values
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, permuted_tokens_give_permuted_rows
        masking: a_mask_may_be_written_in_any_form, empty_rows_harm_no_gradient
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        batch: a_sample_alone_gives_its_own_rows
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly
        derivatives: gradients_are_slopes_of_the_output
        modes: evaluation_ignores_dropout, modes_agree_without_dropout, dropout_drops_single_weights,
            the_gradient_is_that_of_the_kept_weights, training_returns_the_weights_before_dropout
        contract: strides_do_not_matter, nothing_passed_in_is_changed, a_second_call_gives_the_same
        precision: rounding_explains_the_error, finite_in_gives_finite_gradients
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back,
            autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "masking: dynamic mask"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            *_, queries, keys = scores.shape
            causal = causal_mask(queries, keys, device=scores.device)
            if attn_mask is None:
                attn_mask = causal
            elif attn_mask.dtype == torch.bool:
                attn_mask = attn_mask & causal
            else:
                attn_mask = attn_mask.masked_fill(~causal, -math.inf)
        if attn_mask is None:
            return scores, None
        bias = boolean_to_additive(attn_mask, scores.dtype) if attn_mask.dtype == torch.bool else attn_mask
        empty = (bias == -math.inf).all(dim=-1, keepdim=True)
        if not possibly_any(empty):
            return scores.add_(bias), None
        return scores.add_(bias.masked_fill_(empty, 0.0)), empty

    @staticmethod
    def visible(case: Case) -> bool:
        return case.encoding != "bool" and case.mask in EXPLICIT and has_empty_rows(case)


class MaskInvertedInPlace(Fault):
    """Turn "may attend" into "is hidden" with `logical_not_()`, in the mask that was passed in.

    Why it is wrong:
        The first layer gets it right. The second finds the mask inverted, inverts it back, and hides what should be seen; the
        third is right again.

    When it shows:
        With a boolean mask, from its second use on. With the causal flag a new mask is made, which may be changed.

    Seen in the wild:
        https://github.com/Shujun-He/RibonanzaNet/issues/7

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what was passed in.

    Smallest case:
        Case(mask='full')

    Killed by:
        rows: rows_sum_to_one, constant_values_come_back, outputs_stay_among_the_values
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, permuted_tokens_give_permuted_rows
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form
        causality: the_future_does_not_change_the_past, a_prefix_gives_the_first_rows
        batch: a_sample_alone_gives_its_own_rows
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly
        derivatives: gradients_are_slopes_of_the_output
        modes: evaluation_ignores_dropout, modes_agree_without_dropout, dropout_drops_single_weights,
            the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights,
            training_returns_the_weights_before_dropout
        contract: strides_do_not_matter, nothing_passed_in_is_changed, a_second_call_gives_the_same, one_layer_serves_all_sizes,
            a_state_dict_carries_everything
        precision: rounding_explains_the_error
        tools: given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back, vmap_is_a_loop
    """

    root_cause = "masking: dynamic mask"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            *_, queries, keys = scores.shape
            causal = causal_mask(queries, keys, device=scores.device)
            if attn_mask is None:
                attn_mask = causal
            elif attn_mask.dtype == torch.bool:
                attn_mask = attn_mask & causal
            else:
                attn_mask = attn_mask.masked_fill(~causal, -math.inf)
        if attn_mask is None:
            return scores, None
        bias = attn_mask
        if attn_mask.dtype == torch.bool:
            bias = torch.zeros_like(attn_mask, dtype=scores.dtype).masked_fill_(attn_mask.logical_not_(), -math.inf)
        empty = (bias == -math.inf).all(dim=-1, keepdim=True)
        if not possibly_any(empty):
            return scores.add_(bias), None
        return scores.add_(bias.masked_fill(empty, 0.0)), empty

    @staticmethod
    def visible(case: Case) -> bool:
        return case.encoding == "bool" and case.mask in EXPLICIT


class ScaleAccumulates(Fault):
    """Keep the scale in the layer, and divide it by the root of d_head on every call.

    Why it is wrong:
        The first call is right. With each further one the scores shrink by the same factor again, until every query takes the
        plain mean of its values.

    When it shows:
        From the second call on, if a query has a choice between keys and a head is wider than one feature.

    Seen in the wild:
        https://github.com/flashinfer-ai/flashinfer/pull/2084
        https://github.com/flagos-ai/FlagGems/pull/424

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output of a later call.

    Smallest case:
        Case(queries=2, d_head=2)

    Killed by:
        symmetry: all
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form
        causality: the_future_does_not_change_the_past, a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: all
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly, a_shift_of_the_mask_changes_nothing,
            a_bias_multiplies_the_odds
        derivatives: gradients_are_slopes_of_the_output
        modes: evaluation_ignores_dropout, modes_agree_without_dropout, dropout_drops_single_weights,
            dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights,
            training_returns_the_weights_before_dropout
        contract: strides_do_not_matter, a_second_call_gives_the_same, one_layer_serves_all_sizes, a_state_dict_carries_everything
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back,
            vmap_is_a_loop
    """

    root_cause = "score: implementation"

    scale = 1.0

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        self.scale /= math.sqrt(self.d_head)
        return (q * self.scale) @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head > 1 and chooses(case)


class MaskRemembered(Fault):
    """Keep the first mask, and take a new one only when its shape is another.

    Why it is wrong:
        A causal mask follows from its shape; a padding mask does not. Every batch after the first is padded like the first.

    When it shows:
        From the second mask of a shape on, if the two do not say the same.

    Seen in the wild:
        https://github.com/time-series-foundation-models/lag-llama/issues/81
        https://github.com/facebookresearch/fairseq/issues/3732

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output of a later call.

    Smallest case:
        Case(queries=2, mask='causal')

    Killed by:
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            permuted_tokens_give_permuted_rows, any_key_may_come_first
        batch: a_sample_alone_gives_its_own_rows
        heads: a_head_is_a_layer_of_one_head
        derivatives: gradients_are_slopes_of_the_output
        contract: a_second_call_gives_the_same
    """

    root_cause = "masking: dynamic mask"

    remembered: Tensor | None = None

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None:
            if self.remembered is None or self.remembered.shape != attn_mask.shape:
                self.remembered = attn_mask
            attn_mask = self.remembered
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return sways(case) or bool(hidden_by_the_tensor(case).any())


class KeysRemembered(Fault):
    """Keep the keys and values of the first context, as a decoder does for its encoder, and use them for every other.

    Why it is wrong:
        Within one sequence it saves work. With the next sequence the queries are new and what they attend to is not.

    When it shows:
        In cross-attention, from the second context on.

    Seen in the wild:
        https://github.com/facebookresearch/fairseq/issues/3732

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output of a later call.

    Smallest case:
        Case(keys=1)

    Killed by:
        symmetry: permuted_keys_change_nothing, any_key_may_come_first
        causality: a_prefix_gives_the_first_rows
        batch: all
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head
        algebra: values_enter_linearly
        dependence: every_visible_key_counts, every_visible_value_counts, every_parameter_counts, a_nan_that_is_seen_comes_out
        derivatives: gradients_are_slopes_of_the_output
        modes: the_gradient_is_that_of_the_kept_weights
        tools: given_parameters_are_used
    """

    root_cause = "kv cache: invalidation"

    remembered: tuple[Tensor, Tensor] | None = None

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project_in(x, context)
        if context is not None:
            if self.remembered is None:
                self.remembered = k, v
            k, v = self.remembered
        return q, k, v

    @staticmethod
    def visible(case: Case) -> bool:
        # Another batch size does not fit what was kept, whether anybody sees it or not.
        return case.keys is not None and (sees(case) or case.batch > 1)


class StridesIgnored(Fault):
    """Read the tokens from their address on, row after row, as if they were contiguous.

    Why it is wrong:
        Every transpose, slice and expand is a view with other strides. A kernel that gets a bare pointer reads the right memory
        in the wrong order, and the gaps with it.

    When it shows:
        With tokens that are not contiguous, and only if one that is read wrongly matters.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/163597
        https://github.com/pytorch/pytorch/pull/187506
        https://github.com/pytorch/pytorch/issues/191937

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.99, the median relative error of the output.

    Smallest case:
        Case(d_head=2, layout='strided')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: weights_explain_the_output, outputs_stay_among_the_values
        symmetry: permuted_keys_change_nothing, a_query_alone_gives_its_own_row, permuted_tokens_give_permuted_rows,
            any_key_may_come_first, self_attention_is_attention_to_oneself
        masking: content_of_hidden_keys_is_irrelevant
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        batch: all
        dependence: every_visible_key_counts, a_nan_that_is_seen_comes_out
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "kernel: kernel memory"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        return super().project_in(_from_its_pointer(x), None if context is None else _from_its_pointer(context))

    @staticmethod
    def visible(case: Case) -> bool:
        inputs, seen = make_inputs(case), visible_keys(case)
        wrong_x, wrong_keys = _misread(inputs.x), _misread(inputs.keys)  # [B, T], [B, S]
        asked_wrongly = wrong_x[:, None, :] & (seen.sum(-1) > 1)  # what is asked matters to who has a choice
        answered_wrongly = wrong_keys[:, None, None] & seen
        return bool(asked_wrongly.any() or answered_wrongly.any())


def _from_its_pointer(tokens: Tensor) -> Tensor:
    _, length, width = tokens.shape
    return tokens.as_strided(tokens.shape, (length * width, width, 1))


def _misread(tokens: Tensor) -> Tensor:
    """Which tokens that way of reading gets wrong, bool [B, tokens]."""
    return (_from_its_pointer(tokens) != tokens).any(-1)
