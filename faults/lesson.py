"""The six failure modes of the lesson, and the silent cousins of its mask mistake."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faults.facts import chooses, has_mask, mask_has_gradient, visible_keys
from faults.fault import Fault
from properties.case import EXPLICIT, Case


def _samples_have_own_masks(case: Case) -> bool:
    """Is there one mask for each sample, shared by its heads, and does it matter which sample gets which?"""
    if case.mask not in ("padding", "causal+padding", "is_causal+padding", "sample"):
        return False
    keys = visible_keys(case)
    return bool((keys != keys[:1]).any()) or mask_has_gradient(case)


def _contexts(case: Case) -> Tensor:
    """A number for the context of each query in each head, int `[B, h, T]`: equal numbers, equal contexts within a sample."""
    keys = visible_keys(case)
    group = case.num_heads // case.g
    only = keys.int().argmax(-1) + case.S * (torch.arange(case.num_heads) // group)[:, None]  # the one value that is mixed
    mixed = torch.arange(case.num_heads * case.T).view(case.num_heads, case.T) + case.num_heads * case.S
    return torch.where(keys.sum(-1) == 1, only, mixed).masked_fill(~keys.any(-1), -1)


def _moved_by_a_view(heads: int, tokens: int) -> Tensor:
    """Which places `[h, n]` hold something else if `[n, h]` is read as `[h, n]` without moving an axis."""
    places = torch.arange(heads * tokens)
    return places.view(heads, tokens) != places.view(tokens, heads).T


class WrongSplitOrder(Fault):
    """Split the heads with one `view` straight to `[B, h, T, d_head]`, and never move an axis.

    Why it is wrong:
        A view does not move numbers. `[B, T, d]` read as `[B, h, T, d_head]` hands head 0 all features of the first T/h
        tokens, so every "head" is a stretch of the sequence, and every "token" of it a slice of some other token.

    When it shows:
        With more than one head and more than one token, if one that was moved matters: a key that is seen, or a query that has a
        choice. The first token of head 0 stays where it was.

    Seen in the wild:
        https://github.com/reczoo/FuxiCTR/issues/30
        https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/53

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.75, the median relative error of the output.

    Smallest case:
        Case(queries=2, num_heads=2)

    Killed by:
        reference: all
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            permuted_tokens_give_permuted_rows, any_key_may_come_first
        masking: content_of_hidden_keys_is_irrelevant
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        batch: padding_changes_nothing
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head, grouped_heads_are_full_heads_with_repeated_weights,
            each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing
        dependence: every_visible_key_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "qkv projection: head interaction"

    def split_heads(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        return x.reshape(batch, width // self.d_head, tokens, self.d_head)  # the shape asked for, and no token in it

    @staticmethod
    def visible(case: Case) -> bool:
        keys = visible_keys(case)
        group = case.num_heads // case.g
        queries_moved = _moved_by_a_view(case.num_heads, case.T)[..., None]  # [h, T, 1]
        seen_moved = keys & _moved_by_a_view(case.g, case.S).repeat_interleave(group, dim=0)[:, None]  # [B, h, T, S]
        wrong_weights = (keys.sum(-1, keepdim=True) > 1) & (queries_moved | seen_moved)
        return bool(wrong_weights.any() or seen_moved.any())


class MissingTranspose(Fault):
    """Leave the heads where `view` put them, `[B, T, h, d_head]`, and attend from head to head instead of from token to token.

    Why it is wrong:
        The matrix product works on the last two axes. Without `transpose(1, 2)` these are heads and features: every token
        compares its own heads with each other, and no token ever meets another.

    When it shows:
        As soon as there is more than one head or token. With as many tokens as heads every shape fits.

    Seen in the wild:
        https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        1.9, the median relative error of the output; on 15 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(num_heads=2)

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

    root_cause = "qkv projection: head interaction"

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.d_head))  # type: ignore[no-any-return]

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads > 1 or case.T > 1 or case.S > 1


class MissingContiguous(Fault):
    """Merge the heads with `transpose` and `view`, and nothing between them.

    Why it is wrong:
        `transpose` only exchanges strides. Afterwards the features of one token do not lie next to each other, and `view`,
        which does not move numbers either, refuses to call them one axis. `contiguous()` moves them first; `reshape` does if
        it has to.

    When it shows:
        With more than one head, more than one query and d_head > 1: elsewhere the strides happen to fit. Always loudly.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/179287
        https://github.com/pytorch/TensorRT/issues/3823

    Symptom:
        Loud: it raises wherever it shows.

    Severity:
        No output: on all 16 random cases it raises or gives NaN.

    Smallest case:
        Case(queries=2, num_heads=2, d_head=2)

    Killed by:
        reference: all
        rows: all
        symmetry: all
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form,
            empty_rows_are_as_declared, empty_rows_harm_no_gradient
        causality: all
        batch: all
        heads: all
        algebra: all
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        modes: all
        dropout: every_key_is_dropped_for_itself, equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, strides_do_not_matter, nothing_passed_in_is_changed,
            nothing_around_it_is_changed, a_second_call_gives_the_same, a_result_outlives_the_next_call,
            mask_and_flag_are_for_one_call, one_layer_serves_all_sizes, a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: all
        training: every_parameter_learns
    """

    root_cause = "qkv projection: dimension"

    def merge_heads(self, heads: Tensor) -> Tensor:
        heads = heads.transpose(1, 2)
        return heads.view(*heads.shape[:2], self.d_model)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads > 1 and case.T > 1 and case.d_head > 1


class WrongMergeOrder(Fault):
    """Merge the heads with one `reshape` of `[B, h, T, d_head]` to `[B, T, d]`, the head axis still in front of the tokens.

    Why it is wrong:
        Nothing complains, since the count is right. The rows of the first tokens are filled with all tokens of head 0, so a
        token gets the context of others, and the causal mask of the rest is in vain.

    When it shows:
        With more than one head and more than one query, unless every moved context equals the one it replaces: as where all
        queries see the same single key of one key/value head.

    Seen in the wild:
        https://github.com/meta-pytorch/opacus/pull/825
        https://github.com/pytorch/pytorch/issues/67651
        https://github.com/hackiey/QAnet-pytorch/issues/2

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.92, the median relative error of the output.

    Smallest case:
        Case(queries=2, num_heads=2)

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula, two_keys_share_by_the_sigmoid
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        symmetry: permuted_queries_give_permuted_rows, a_query_alone_gives_its_own_row, permuted_tokens_give_permuted_rows
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head, each_query_head_reads_its_own_group
        dependence: every_visible_key_counts
        modes: modes_agree_without_dropout, dropout_drops_single_weights, dropout_is_drawn_for_every_weight,
            the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "qkv projection: head interaction"

    def merge_heads(self, heads: Tensor) -> Tensor:
        return heads.reshape(heads.shape[0], heads.shape[2], self.d_model)

    @staticmethod
    def visible(case: Case) -> bool:
        contexts = _contexts(case)
        moved = contexts.reshape(case.batch, case.T, case.num_heads).transpose(1, 2)  # as the reshape moves them
        return bool((moved != contexts).any())


class MaskShapeMismatch(Fault):
    """Drop the head axis of a mask `[B, 1, T, S]`, and let `[B, T, S]` meet scores of `[B, h, T, S]`.

    Why it is wrong:
        Broadcasting counts axes from the right, so the batch axis of the mask lands on the heads. Head i of every sample gets
        the mask of sample i.

    When it shows:
        Loudly for most sizes. Silently where there are as many samples as heads and their masks differ; for a single sample
        it is right.

    Seen in the wild:
        https://github.com/lucidrains/graph-transformer-pytorch/pull/2
        https://github.com/lucidrains/vit-pytorch/issues/71
        https://github.com/ml-explore/mlx-lm/pull/1903

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0.48, the median relative error of the output; on 12 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(batch=2, mask='full')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: all
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            permuted_tokens_give_permuted_rows, any_key_may_come_first
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: all
        batch: all
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, grouped_heads_are_full_heads_with_repeated_weights,
            each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly, a_shift_of_the_mask_changes_nothing,
            no_bias_and_zeros_give_zeros
        dependence: every_query_counts, every_visible_key_counts, every_visible_value_counts, a_nan_that_is_seen_comes_out
        derivatives: gradients_are_slopes_of_the_output
        modes: all
        dropout: every_key_is_dropped_for_itself, equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, no_queries_get_no_rows, strides_do_not_matter,
            nothing_passed_in_is_changed, nothing_around_it_is_changed, a_second_call_gives_the_same,
            a_result_outlives_the_next_call, mask_and_flag_are_for_one_call, one_layer_serves_all_sizes,
            a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: all
        training: every_parameter_learns
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dim() == 4:
            attn_mask = attn_mask.squeeze(1)  # the same for all heads anyway
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        if case.batch == 1:
            return False
        if case.num_heads == 1:
            return has_mask(case)  # written out for every sample, any mask has a single head axis to lose
        one_a_sample = case.mask in ("padding", "causal+padding", "is_causal+padding", "sample")
        return one_a_sample and (case.batch != case.num_heads or _samples_have_own_masks(case))


class SurplusProjectionBias(Fault):
    """Build the in-projection with the bias that `nn.Linear` has by default, whatever the layer was asked for.

    Why it is wrong:
        The lesson has none, so loaded weights do not set it: it stays what the constructor drew, shifts queries and values,
        and is trained along with everything else.

    When it shows:
        Whenever the layer is to have no bias.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/52545

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.23, the median relative error of the output.

    Smallest case:
        Case()

    Killed by:
        reference: all
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head, grouped_heads_are_full_heads_with_repeated_weights,
            each_query_head_reads_its_own_group
        algebra: values_enter_linearly, no_bias_and_zeros_give_zeros
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        contract: parameters_are_those_of_the_formula
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "qkv projection: dynamic parameter registration"

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        bias: bool = False,
        *,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, num_heads, bias, num_kv_heads=num_kv_heads, dropout=dropout, device=device, dtype=dtype)
        self.in_proj = nn.Linear(d_model, sum(self.widths), device=device, dtype=dtype)

    @staticmethod
    def visible(case: Case) -> bool:
        return not case.bias


class MaskWithoutQueryAxis(Fault):
    """Take the first row of the mask for all of it: which keys are hidden, whoever asks.

    Why it is wrong:
        That is true of padding, which the code was written for. A causal mask hides other keys from each query, and its first
        row leaves everybody the first token.

    When it shows:
        With more than one query, if not all see the same keys or the mask is additive.

    Seen in the wild:
        https://github.com/pytorch/pytorch/pull/163426

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.69, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='full', encoding='additive')

    Killed by:
        reference: weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one
        symmetry: a_query_alone_gives_its_own_row, permuted_tokens_give_permuted_rows
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant
        causality: the_flag_means_its_mask
        heads: grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        dependence: every_query_counts, every_visible_key_counts, every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        dropout: every_key_is_dropped_for_itself
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None:
            attn_mask = attn_mask[..., :1, :]
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        keys = visible_keys(case)
        has_rows = case.T > 1 and case.mask in EXPLICIT and case.mask != "padding"
        return bool((keys != keys[:, :, :1]).any()) or (has_rows and mask_has_gradient(case))


class TransposedMask(Fault):
    """Apply the mask with queries and keys exchanged.

    Why it is wrong:
        A mask is no symmetric thing. Transposed, a causal mask shows each token its future and hides its past, and a padding
        mask silences the queries at padded places and hides no key at all.

    When it shows:
        With any mask for T != S, loudly. For T = S unless the mask equals its transpose.

    Seen in the wild:
        https://github.com/hyunwoongko/transformer/pull/40

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0.63, the median relative error of the output; on 9 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(keys=2, mask='full')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: all
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            permuted_tokens_give_permuted_rows, any_key_may_come_first
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form
        causality: all
        batch: all
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, a_shift_of_the_mask_changes_nothing, a_bias_multiplies_the_odds,
            no_bias_and_zeros_give_zeros
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        modes: all
        dropout: equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, no_queries_get_no_rows, strides_do_not_matter,
            nothing_passed_in_is_changed, nothing_around_it_is_changed, a_second_call_gives_the_same,
            a_result_outlives_the_next_call, mask_and_flag_are_for_one_call, one_layer_serves_all_sizes,
            a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: rounding_explains_the_error, finite_in_gives_finite_gradients
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back,
            autocast_rounds_and_no_more, vmap_is_a_loop
        training: every_parameter_learns
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None:
            attn_mask = attn_mask.mT
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        if case.mask == "none" or case.T != case.S:
            return case.mask != "none"
        keys = visible_keys(case)
        # Padding hides queries now; next to the flag this may leave the triangle's mirror image as it was, but not the rows.
        padded_rows = case.mask == "is_causal+padding" and case.T > 1
        biased = has_mask(case) and case.encoding == "bias" and chooses(case)
        return bool((keys != keys.mT).any()) or padded_rows or biased or mask_has_gradient(case)


class MaskTiledOverHeads(Fault):
    """Expand the mask to one for each head of each sample by tiling, 0 1 0 1, where scores are ordered 0 0 1 1.

    Why it is wrong:
        In `[B*h, T, S]` the heads of a sample are neighbours. `repeat` puts the samples side by side h times over, and head i
        of sample b gets the mask of sample (b*h + i) % B; `repeat_interleave` was meant.

    When it shows:
        With more than one sample and more than one head, if the masks of the samples differ or are additive.

    Seen in the wild:
        https://github.com/line/lighthouse/pull/77
        https://github.com/ArrowLuo/CLIP4Clip/issues/22
        https://github.com/jchengai/pluto/issues/38
        https://github.com/reczoo/FuxiCTR/issues/130

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.49, the median relative error of the output.

    Smallest case:
        Case(batch=2, queries=2, num_heads=2, mask='padding')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, hidden_keys_get_no_weight, outputs_stay_among_the_values
        symmetry: permuted_keys_change_nothing
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys
        batch: a_sample_alone_gives_its_own_rows
        heads: heads_may_be_permuted, each_query_head_reads_its_own_group
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        training: every_parameter_learns
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        batch, num_heads, *_ = scores.shape
        if attn_mask is not None and attn_mask.shape[:-2] == (batch, 1):
            tiled = attn_mask[:, 0].repeat(num_heads, 1, 1)  # [B*h, T, S]
            attn_mask = tiled.reshape(batch, num_heads, *tiled.shape[1:])
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.batch > 1 and case.num_heads > 1 and _samples_have_own_masks(case)
