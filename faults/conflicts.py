"""Mask and flag, mask and scores, queries and keys: mistakes between two things that are each right by themselves."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attn.masks import causal_mask
from faults.facts import has_flag, has_mask, visible_keys
from faults.fault import Fault
from properties.case import Case
from properties.inputs import make_inputs

# Faults: the mask and the flag.


class TwoFillsAdded(Fault):
    """Hide keys with the smallest finite number, once for the mask and once for the flag, and add the two.

    Why it is wrong:
        Twice that number is -inf. A row is taken for an empty one if it holds nothing but the fill; where a key is hidden by
        both it does not, and the row averages the keys that only one of them hides, or is NaN.

    When it shows:
        With the flag and a mask, if a query sees no key, and one is hidden from it twice over.

    Seen in the wild:
        https://github.com/NVIDIA-NeMo/Automodel/pull/2658
        https://github.com/PaddlePaddle/PaddleNLP/pull/7501

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.45, the median relative error of the output.

    Smallest case:
        Case(queries=4, mask='is_causal+padding')

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula
        rows: weights_explain_the_output
        masking: empty_rows_are_as_declared
        causality: all
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights
        algebra: values_enter_linearly
        derivatives: gradients_are_slopes_of_the_output
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error, finite_in_gives_finite_out
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        lowest = torch.finfo(scores.dtype).min
        bias = scores.new_zeros(scores.shape[-2:])
        if attn_mask is not None:
            boolean = attn_mask.dtype == torch.bool
            bias = bias.masked_fill(~attn_mask, lowest) if boolean else attn_mask.clamp(min=lowest)
        if is_causal:
            causal = causal_mask(*scores.shape[-2:], device=scores.device)
            bias = bias + scores.new_zeros(scores.shape[-2:]).masked_fill(~causal, lowest)
        empty = (bias == lowest).all(dim=-1, keepdim=True)
        return scores + bias.masked_fill(empty, 0.0), empty

    @staticmethod
    def visible(case: Case) -> bool:
        if case.mask != "is_causal+padding":
            return False
        tensor, triangle = _left_by_the_tensor(case), causal_mask(case.T, case.S)
        empty = ~(tensor & triangle).any(-1)
        twice = (~tensor & ~triangle).any(-1)
        return bool((empty & twice).any())


class MaskOrFlag(Fault):
    """Join mask and triangle with "or", so that a query sees what either of them lets it see.

    Why it is wrong:
        Both say what is hidden, and what one hides stays hidden: padding is seen by all that come after it, and the future
        wherever it is no padding.

    When it shows:
        With the flag and a boolean mask, unless they hide the same keys.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/46850

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.64, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal+padding')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: all
        batch: a_sample_alone_gives_its_own_rows
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights
        algebra: a_shift_of_all_keys_changes_nothing
        modes: modes_agree_without_dropout, dropout_drops_single_weights, dropout_is_drawn_for_every_weight,
            the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = attn_mask | causal_mask(*scores.shape[-2:], device=scores.device)
            is_causal = False
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        if case.mask != "is_causal+padding" or case.encoding != "bool":
            return False
        return bool((_left_by_the_tensor(case) ^ causal_mask(case.T, case.S)).any())


class CausalFlagSticks(Fault):
    """Remember the causal flag, and be causal from then on.

    Why it is wrong:
        The flag belongs to a call, and is kept by the layer. The call that sets it is right; the next, without it, is one that
        sees no future, though nobody asked for that.

    When it shows:
        In a call without the flag, after one with it, for more than one query. A single call, and the same call twice, are
        right: only the law that takes mask and flag away again sees it.

    Seen in the wild:
        https://github.com/time-series-foundation-models/lag-llama/issues/81
        https://github.com/huggingface/transformers/pull/42820

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(queries=2, mask='is_causal')

    Killed by:
        contract: mask_and_flag_are_for_one_call
    """

    root_cause = "masking: dynamic mask"

    causal = False

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        self.causal = self.causal or is_causal
        return super().mask(scores, attn_mask, self.causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return has_flag(case) and case.T > 1


# Faults: shapes and dtypes.


class PaddingTakenForAPrefix(Fault):
    """Count the keys that a padding mask leaves, and keep as many from the beginning.

    Why it is wrong:
        The number says which keys they are only if all padding stands at the right. Padding at the left, or in between, comes to
        be seen, and as many tokens at the end are lost.

    When it shows:
        With a boolean mask that is the same for all queries, more than one, and does not leave the first keys and no others.

    Seen in the wild:
        https://github.com/huggingface/diffusers/issues/14139

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0 in the median, 2.3 at most, the relative error of the output.

    Smallest case:
        Case(queries=2, mask='padding')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight
        symmetry: a_query_alone_gives_its_own_row
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: padding_changes_nothing
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool and attn_mask.shape[-2] != scores.shape[-2]:
            lengths = attn_mask.sum(dim=-1, keepdim=True)  # [B, 1, 1, 1]
            attn_mask = torch.arange(scores.shape[-1], device=scores.device) < lengths
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        if case.mask not in ("padding", "is_causal+padding") or case.T == 1 or case.encoding == "bias":
            return False
        keys = _left_by_the_tensor(case)
        prefix = torch.arange(case.S) < keys.sum(-1, keepdim=True)
        if has_flag(case):
            return case.encoding == "bool" and bool(((keys ^ prefix) & causal_mask(case.T, case.S)).any())
        # Laws turn the keys of a boolean mask until some padding stands at the left; an additive one they make boolean as it is.
        turned = case.encoding == "bool" and (case.keys is None or case.T != case.S) and bool((~keys).any())
        return turned or bool((keys ^ prefix).any())


class MaskIndexedByHead(Fault):
    """Look up the mask of each head by its number, whether there is one for each or one for all.

    Why it is wrong:
        An axis of size 1 is there to be repeated, and only broadcasting knows that. Looked up by number, it has a first entry
        and no second. Here that raises; a kernel reads what lies behind it in memory.

    When it shows:
        With more than one head, and a mask of four axes that all heads share.

    Seen in the wild:
        https://github.com/ooples/AiDotNet.Tensors/pull/947
        https://github.com/pytorch/pytorch/pull/184180

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        On 12 of 16 random cases it raises or gives NaN; on the others 0: the output of a first call in evaluation is right.

    Smallest case:
        Case(num_heads=2, mask='causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: all
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            permuted_tokens_give_permuted_rows, any_key_may_come_first
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form,
            empty_rows_are_as_declared
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, the_flag_means_its_mask
        batch: all
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly, a_shift_of_the_mask_changes_nothing,
            no_bias_and_zeros_give_zeros
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        modes: all
        dropout: every_key_is_dropped_for_itself, equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, no_queries_get_no_rows, strides_do_not_matter,
            nothing_passed_in_is_changed, nothing_around_it_is_changed, a_second_call_gives_the_same,
            mask_and_flag_are_for_one_call, one_layer_serves_all_sizes, a_state_dict_carries_everything
        precision: all
        tools: all
        training: every_parameter_learns
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dim() == 4:
            attn_mask = torch.stack([attn_mask[:, head] for head in range(self.num_heads)], dim=1)
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads > 1 and case.mask not in ("none", "full", "head", "empty")  # the last three have one for each head


class MaskInTheDefaultDtype(Fault):
    """Make a boolean mask additive in torch's default dtype, whatever that of the scores is.

    Why it is wrong:
        The sum of float16 and float32 is float32: the weights are wider than the values they are to be multiplied by, and the
        product is refused. In float32 and float64 the sum has the dtype of the scores, and all is well.

    When it shows:
        With a boolean mask, or the flag, in half precision.

    Seen in the wild:
        https://github.com/kohya-ss/musubi-tuner/pull/1037
        https://github.com/tensorflow/tensorflow/issues/46064
        https://github.com/tensorflow/addons/pull/2253

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the output in a coarser dtype or for large scores.

    Smallest case:
        Case(mask='full')

    Killed by:
        contract: nothing_passed_in_is_changed
        precision: all
    """

    root_cause = "score: precision handling"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            causal = causal_mask(*scores.shape[-2:], device=scores.device)
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
            bias = torch.zeros(attn_mask.shape, device=scores.device).masked_fill(~attn_mask, -math.inf)
        empty = (bias == -math.inf).all(dim=-1, keepdim=True)
        return scores + bias.masked_fill(empty, 0.0), empty

    @staticmethod
    def visible(case: Case) -> bool:
        return case.mask == "is_causal" or (has_mask(case) and case.encoding == "bool")


class KeysViewedAtQueryLength(Fault):
    """Project all tokens as one long matrix, and give queries, keys and values the shape of the queries again.

    Why it is wrong:
        Keys and values are as many as the context has tokens. In self-attention that is the same number.

    When it shows:
        Loudly, for T != S. In self-attention only to a hook on the in-projection, which is not called.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/48356
        https://github.com/mead-ml/mead-baseline/pull/759

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        On 14 of 16 random cases it raises or gives NaN; on the others 0: the output of a first call in evaluation is right.

    Smallest case:
        Case()

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
        tools: all
    """

    root_cause = "qkv projection: dimension"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        batch, queries, _ = x.shape
        weights = self.in_proj.weight.split(self.widths)
        biases = [None] * 3 if self.in_proj.bias is None else self.in_proj.bias.split(self.widths)
        keys = x if context is None else context
        rows = [tokens.flatten(0, 1) for tokens in (x, keys, keys)]  # [B*T, d] or [B*S, d]
        q, k, v = (
            F.linear(tokens, weight, bias).view(batch, queries, len(weight))
            for tokens, weight, bias in zip(rows, weights, biases, strict=True)
        )
        return q, k, v

    @staticmethod
    def visible(case: Case) -> bool:
        return case.T != case.S or case.keys is None


# Facts.


def _left_by_the_tensor(case: Case) -> Tensor:
    """Which keys the mask itself leaves, whatever the flag says, bool, of the mask's own shape."""
    mask = make_inputs(case).mask
    if mask is None:
        return visible_keys(case)
    return mask if mask.dtype == torch.bool else mask > -math.inf
