"""Queries that see no key: a softmax over nothing, and what people make of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from faults.facts import has_empty_rows
from faults.fault import Fault
from faults.pieces import whole_bias
from properties.case import Case


class EmptyRowsNan(Fault):
    """Add the mask, take the softmax, and give no thought to a row in which everything is hidden.

    Why it is wrong:
        The softmax of nothing but -inf is 0 / 0. The NaN goes from that query into its output, into the next layer as a key
        that everybody sees, and into the loss.

    When it shows:
        In every empty row: a sample of length 0, left padding under a causal mask, more queries than keys.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/81077
        https://github.com/patrick-kidger/equinox/pull/274
        https://github.com/ml-explore/mlx/pull/2406
        https://github.com/huggingface/transformers/pull/47678

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        No output: on all 16 random cases it raises or gives NaN.

    Smallest case:
        Case(queries=2, mask='causal+padding')

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula
        masking: empty_rows_are_as_declared, empty_rows_harm_no_gradient
        causality: no_gradient_flows_from_hidden_keys
        algebra: no_bias_and_zeros_give_zeros
        derivatives: gradients_are_slopes_of_the_output
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: all
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return scores + whole_bias(scores, attn_mask, is_causal), None

    @staticmethod
    def visible(case: Case) -> bool:
        return has_empty_rows(case)


class EmptyRowsUniform(Fault):
    """Fill hidden scores with the smallest number of the dtype, so that an empty row has equal scores, and averages all values.

    Why it is wrong:
        The fill avoids the NaN, and hides a key as long as another one is visible. Where none is, the fill is all there is: it
        cancels, and the query gets the mean of exactly the values it must not see.

    When it shows:
        In every empty row; in no other.

    Seen in the wild:
        https://github.com/NVIDIA/apex/issues/1390

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.62, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='causal+padding')

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula
        rows: weights_explain_the_output
        symmetry: permuted_queries_give_permuted_rows, permuted_tokens_give_permuted_rows
        masking: empty_rows_are_as_declared
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        batch: all
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head, grouped_heads_are_full_heads_with_repeated_weights
        algebra: values_enter_linearly
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        bias = whole_bias(scores, attn_mask, is_causal)
        return (scores + bias).masked_fill(bias == -math.inf, torch.finfo(scores.dtype).min), None

    @staticmethod
    def visible(case: Case) -> bool:
        return has_empty_rows(case)


class EmptyRowsUnmasked(Fault):
    """Lift the mask from an empty row to keep its softmax finite, and forget to throw the row away afterwards.

    Why it is wrong:
        Half of the remedy is a leak. The scores of the row were left unmasked so that nothing becomes NaN; taken for real, they
        attend to padding and future by merit.

    When it shows:
        In every empty row; in no other.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/47678

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.66, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='causal+padding')

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula
        rows: weights_explain_the_output
        symmetry: permuted_queries_give_permuted_rows, permuted_tokens_give_permuted_rows
        masking: empty_rows_are_as_declared
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        batch: all
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head, grouped_heads_are_full_heads_with_repeated_weights
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly
        modes: modes_agree_without_dropout, dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        return scores.softmax(dim=-1)

    @staticmethod
    def visible(case: Case) -> bool:
        return has_empty_rows(case)


class EmptyRowsNanInTheGradient(Fault):
    """Let the softmax of an empty row become NaN, and overwrite the NaN with 0 afterwards.

    Why it is wrong:
        The values are right, the backward pass is not: the gradient that arrives at the softmax is 0, the softmax multiplies it
        by its own NaN, and from there every weight of the projections is NaN. The loss stays finite until the first step of the
        optimiser.

    When it shows:
        In the gradients, as soon as there is an empty row anywhere in the batch, even if its output is thrown away.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/41508
        https://github.com/pytorch/pytorch/pull/42323
        https://github.com/pytorch/pytorch/pull/196170

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient.

    Smallest case:
        Case(queries=2, mask='causal+padding')

    Killed by:
        reference: gradients_are_those_of_the_formula
        masking: empty_rows_harm_no_gradient
        causality: no_gradient_flows_from_hidden_keys
        derivatives: gradients_are_slopes_of_the_output
        modes: the_gradient_is_that_of_the_kept_weights
        precision: finite_in_gives_finite_gradients
    """

    root_cause = "score: normalization"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        bias = whole_bias(scores, attn_mask, is_causal)
        return scores + bias, (bias == -math.inf).all(
            dim=-1, keepdim=True
        )  # as in the clean step, but for `masked_fill(empty, 0)`

    @staticmethod
    def visible(case: Case) -> bool:
        return has_empty_rows(case)
