"""What the values of a mask mean: mistaken polarity, and one encoding taken for another."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from faults.facts import boolean_mask_hides, chooses, hides, mask_has_gradient, written_as_additive, written_as_boolean
from faults.fault import Fault
from properties.case import Case


class InvertedPolarity(Fault):
    """Read True as "hide this key" instead of "may attend".

    Why it is wrong:
        Two conventions live in one library: `nn.MultiheadAttention` hides where the mask is True,
        `scaled_dot_product_attention` shows. A mask made for the one and given to the other shows exactly what it should hide.

    When it shows:
        On every boolean mask, even one that hides nothing: then every row is empty. Additive masks are read correctly.

    Seen in the wild:
        https://github.com/rasbt/LLMs-from-scratch/issues/1061
        https://github.com/lucidrains/halonet-pytorch/issues/4
        https://github.com/InseeFrLab/torchTextClassifiers/pull/92

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.57, the median relative error of the output.

    Smallest case:
        Case(mask='full')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        symmetry: permuted_tokens_give_permuted_rows
        masking: a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: padding_changes_nothing
        heads: a_head_is_a_layer_of_one_head, each_query_head_reads_its_own_group
        dependence: every_query_counts, every_visible_value_counts, every_parameter_counts
        modes: dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p
        dropout: every_key_is_dropped_for_itself
        precision: rounding_explains_the_error
        training: every_parameter_learns
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = ~attn_mask
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return written_as_boolean(case)


class BooleanMaskAdded(Fault):
    """Add the boolean mask to the scores as if it were an additive one, so that True counts as 1 and False as 0.

    Why it is wrong:
        The addition is accepted, for a bool is promoted to a number. Visible keys gain a factor e over hidden ones, and nothing
        is hidden. Any test that asks only whether the mask changes the output is content.

    When it shows:
        Whenever a boolean mask hides a key; one that hides nothing adds 1 to every score of a row, which the softmax does not
        see.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/41443
        https://github.com/huggingface/diffusers/issues/14342
        https://github.com/huggingface/pytorch-image-models/pull/2674

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
        modes: dropout_drops_single_weights
        precision: rounding_explains_the_error
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores, attn_mask = scores + attn_mask, None
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return boolean_mask_hides(case)


class ZeroOneMaskAdded(Fault):
    """Turn a boolean mask into floats with 1 for a hidden key, and add these without the large negative factor.

    Why it is wrong:
        `(1 - mask) * -10000` is half a mask as long as the second factor is missing. A hidden key then gains 1 on its score: it
        is not hidden, it is preferred.

    When it shows:
        Whenever a boolean mask hides a key. In a row that hides all of them, every score gains the same, and no key is hidden.

    Seen in the wild:
        https://github.com/Comfy-Org/ComfyUI/pull/13471
        https://github.com/HKUSTDial/flash-sparse-attention/issues/146
        https://github.com/timeseriesAI/tsai/issues/171

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0 in the median, 1.4 at most, the relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula
        symmetry: permuted_tokens_give_permuted_rows
        masking: a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: padding_changes_nothing
        heads: a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight
        precision: rounding_explains_the_error
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = 1.0 - attn_mask.to(scores.dtype)  # now 1 = hidden, as the next line would have needed, had there been one
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return boolean_mask_hides(case)


class FloatMaskReadAsBoolean(Fault):
    """Cast an additive mask with `.bool()`, so that 0 (leave the score alone) becomes False (hide the key).

    Why it is wrong:
        In an additive mask 0 means visible and -inf hidden; as booleans 0 is False and -inf is True. The cast inverts the mask,
        and of a mask that carries a bias it shows every key and forgets the bias.

    When it shows:
        On every additive mask of zeros and -inf. With a bias, when it hides a key, or when a query has a choice that the bias
        sways.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/38094

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.61, the median relative error of the output.

    Smallest case:
        Case(mask='full')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: all
        batch: padding_changes_nothing
        dependence: every_visible_key_counts, every_visible_value_counts, every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
        training: every_parameter_learns
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, None if attn_mask is None else attn_mask.bool(), is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return written_as_additive(case) and (case.encoding != "bias" or chooses(case) or hides(case))


class BiasLost(Fault):
    """Keep of an additive mask only where it is -inf, and forget the finite numbers in it.

    Why it is wrong:
        An additive mask can carry distances, relative positions, a learned preference. Reduced to visible and hidden it still
        masks perfectly, so every test of masking passes; what the model knew of positions is gone, and a learned bias gets no
        gradient.

    When it shows:
        When a query sees at least two keys under a bias. Where all that is finite is 0, only the gradient of the mask is
        missing.

    Seen in the wild:
        https://github.com/keras-team/keras-hub/pull/2977

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.082, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='full', encoding='additive')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        algebra: a_bias_multiplies_the_odds
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask > -math.inf
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return mask_has_gradient(case)
