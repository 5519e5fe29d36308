"""A sliding window: how wide it is, where it stands, and what becomes of the masks beside it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attn import WindowAttention, window_mask
from attn.masks import boolean_to_additive, restrict
from attn.multihead import MultiHeadAttention
from attn.relative import distances
from faults.facts import keys_if, mask_counts, visible_keys
from faults.fault import Fault
from properties.case import Case
from properties.inputs import make_inputs

# Facts.


def _without_window(case: Case) -> Tensor:
    """Which keys would be visible if there were no window, bool `[B, h, T, S]`."""
    return keys_if(case, mechanisms=replace(make_inputs(case).mechanisms, window=None))


def _at(keys: Tensor, distance: int) -> bool:
    """Is any of these keys so far before its query?"""
    return bool(keys.diagonal(-distance, -2, -1).any())


def _in_window(case: Case, window: int) -> Tensor:
    """Which keys are at most so many tokens before their query, itself counted, whatever comes after it, bool `[T, S]`."""
    return distances(case.T, case.S) < window


# Faults: how wide it is.


class WindowOneTooWide(Fault, WindowAttention):
    """Let a query see `window` tokens before itself, and itself.

    Why it is wrong:
        A window of W is W tokens, the query among them. Kernels take how far to look back instead, which is W - 1; hand them W,
        and every query sees one token that the model was never trained to see there.

    When it shows:
        For sequences longer than the window, if the key at that distance is not padding.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/39408
        https://github.com/huggingface/transformers/issues/29623
        https://github.com/apple/axlearn/pull/1009

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.52, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal', window=1)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys
        heads: a_head_is_a_layer_of_one_head
        variants: the_window_ends_where_it_says
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "masking: mask generation"

    def hide_distant(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        if self.window is None:
            return attn_mask
        return restrict(attn_mask, window_mask(self.window + 1, *scores.shape[-2:], device=scores.device))

    @staticmethod
    def visible(case: Case) -> bool:
        return case.window is not None and _at(_without_window(case), case.window)


class WindowOneTooNarrow(Fault, WindowAttention):
    """Keep the keys whose distance is below `window - 1`.

    Why it is wrong:
        The correction of a window one too wide, made twice: once by the caller and once where the mask is built. The oldest key
        of every window is lost, and of a window of one, everything.

    When it shows:
        As soon as a query sees the last key of its window.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/29623
        https://github.com/ml-explore/mlx-lm/pull/390

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.84, the median relative error of the output.

    Smallest case:
        Case(mask='is_causal', window=1)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, constant_values_come_back, outputs_stay_among_the_values
        heads: each_query_head_reads_its_own_group
        dependence: every_visible_value_counts, every_parameter_counts
        variants: the_window_ends_where_it_says
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        dropout: one_key_is_dropped_or_scaled_up, no_draw_is_the_evaluation, every_head_drops_for_itself,
            every_key_is_dropped_for_itself
        precision: rounding_explains_the_error
        training: every_parameter_learns
    """

    root_cause = "masking: mask generation"

    def hide_distant(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        if self.window is None:
            return attn_mask
        return restrict(attn_mask, distances(*scores.shape[-2:], device=scores.device) < self.window - 1)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.window is not None and _at(visible_keys(case), case.window - 1)


class WindowCentredOnTheQuery(Fault, WindowAttention):
    """Give half of the window to what comes before the query and half to what comes after, and then hide what comes after.

    Why it is wrong:
        An encoder looks both ways, and its window of W reaches W/2 to either side. Under a causal mask the second half is thrown
        away, and the query is left with about half of the tokens that it is said to see.

    When it shows:
        For windows of three tokens or more: half of two is one, which reaches as far as it should.

    Seen in the wild:
        https://github.com/Dao-AILab/flash-attention/issues/576
        https://github.com/keras-team/keras/pull/22814

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.38, the median relative error of the output.

    Smallest case:
        Case(queries=3, mask='is_causal', window=3)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, constant_values_come_back
        dependence: every_visible_key_counts, every_visible_value_counts, every_parameter_counts
        variants: the_window_ends_where_it_says
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "variant: variant configuration"

    def hide_distant(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        if self.window is None:
            return attn_mask
        return restrict(attn_mask, distances(*scores.shape[-2:], device=scores.device).abs() <= self.window // 2)

    @staticmethod
    def visible(case: Case) -> bool:
        if case.window is None:
            return False
        return any(_at(visible_keys(case), distance) for distance in range(case.window // 2 + 1, case.window))


class WindowOfOneTakenForNone(Fault, WindowAttention):
    """Turn the window into how far it reaches, and ask `if not reach` for whether there is one.

    Why it is wrong:
        A window of one token reaches 0 tokens back, and 0 is false. The narrowest window there is becomes the widest: the query
        that was to see itself alone sees all that came before.

    When it shows:
        With a window of one, from the second token on.

    Seen in the wild:
        https://github.com/Dao-AILab/flash-attention/issues/2574
        https://github.com/unslothai/unsloth/pull/8253

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.65, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal', window=1)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys
        heads: the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights
        algebra: values_enter_linearly
        variants: the_window_ends_where_it_says
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "variant: dynamic dispatch"

    def hide_distant(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        reach = None if self.window is None else self.window - 1
        if not reach:
            return attn_mask
        return restrict(attn_mask, distances(*scores.shape[-2:], device=scores.device) <= reach)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.window == 1 and not torch.equal(_without_window(case), visible_keys(case))


class WindowOpenToTheRight(Fault, WindowAttention):
    """Tell the mask where the window begins, and take for granted that it ends at the query.

    Why it is wrong:
        A window has two ends. The causal flag was dropped because the window says as much, and the window was given its left end
        only: between them, nobody hides the future.

    When it shows:
        With a window, as soon as a token that is not padding comes after another.

    Seen in the wild:
        https://github.com/jax-ml/jax/pull/39576

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.55, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal', window=1)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: the_future_does_not_change_the_past, no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        heads: a_head_is_a_layer_of_one_head
        algebra: values_enter_linearly
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if self.window is None:
            return super().mask(scores, attn_mask, is_causal)
        near = distances(*scores.shape[-2:], device=scores.device) < self.window
        return MultiHeadAttention.mask(self, scores, restrict(attn_mask, near), False)

    @staticmethod
    def visible(case: Case) -> bool:
        if case.window is None:
            return False
        anywhere = keys_if(case, mechanisms=replace(make_inputs(case).mechanisms, window=None), is_causal=False)
        return not torch.equal(anywhere & _in_window(case, case.window), visible_keys(case))


# Faults: the masks beside it.


class WindowReplacesTheMask(Fault, WindowAttention):
    """Build the mask of the window, and forget the one that was passed in.

    Why it is wrong:
        Both have something to hide. Of a padding mask nothing is left in the layers that have a window, while those without one
        go on obeying it.

    When it shows:
        With a window and a mask, if the mask hides anything the window does not, or biases a choice.

    Seen in the wild:
        https://github.com/NVIDIA/Megatron-LM/issues/7039

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.56, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal+padding', window=1)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: empty_rows_are_as_declared
        causality: a_prefix_gives_the_first_rows
        heads: the_output_is_the_sum_of_its_heads, grouped_heads_are_full_heads_with_repeated_weights
        algebra: values_enter_linearly
        positions: left_padding_changes_nothing
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "masking: mask application"

    def hide_distant(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        if self.window is None:
            return attn_mask
        return window_mask(self.window, *scores.shape[-2:], device=scores.device)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.window is not None and mask_counts(case)


class WindowOnlyWithAMask(Fault, WindowAttention):
    """Return early if there is no mask: the window is cut into the mask, so without one there is nothing to cut into.

    Why it is wrong:
        The way out was written for attention that hides nothing. The causal flag is thought of, the window is not, and the layer
        sees everything from the first token on.

    When it shows:
        Without a mask, for sequences longer than the window. With a mask it is right, even with one that hides nothing.

    Seen in the wild:
        https://github.com/jax-ml/jax/issues/32300
        https://github.com/huggingface/transformers/pull/35691

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.5, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal', window=1)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant
        variants: the_window_ends_where_it_says
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "variant: dynamic dispatch"

    def hide_distant(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        if self.window is None or attn_mask is None:
            return attn_mask
        return restrict(attn_mask, window_mask(self.window, *scores.shape[-2:], device=scores.device))

    @staticmethod
    def visible(case: Case) -> bool:
        return case.window is not None and case.window < case.T and case.mask == "is_causal"


class WindowOrTheMask(Fault, WindowAttention):
    """Join the window and the mask by "or", for an additive mask by the maximum: what either shows is visible.

    Why it is wrong:
        Hiding adds up: a key is visible if nobody hides it. Joined by "or", the window shows padding that is near, and the mask
        shows every real token, however far; an additive mask has its negative biases cut off besides.

    When it shows:
        With a window and a mask, unless the two agree on every token of the past.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/46850

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.72, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal+padding', window=1)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        heads: the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights
        algebra: values_enter_linearly
        positions: left_padding_changes_nothing
        variants: the_window_ends_where_it_says
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "masking: mask application"

    def hide_distant(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        if self.window is None:
            return attn_mask
        near = window_mask(self.window, *scores.shape[-2:], device=scores.device)
        if attn_mask is None:
            return near
        return (
            attn_mask | near if attn_mask.dtype == torch.bool else attn_mask.maximum(boolean_to_additive(near, attn_mask.dtype))
        )

    @staticmethod
    def visible(case: Case) -> bool:
        mask = make_inputs(case).mask
        if case.window is None or mask is None:
            return False
        keys = visible_keys(case)
        either = _without_window(case) | keys_if(case, mask=None)
        choosing = keys & (keys.sum(-1, keepdim=True) > 1)
        # Of two equal numbers each gets half of the gradient of their maximum.
        cut = bool((choosing & (mask <= 0)).any()) if mask.is_floating_point() else False
        return not torch.equal(either, keys) or cut


class WindowLostInTraining(Fault, WindowAttention):
    """Apply the window in evaluation only: training takes the fast path, which knows the causal flag and nothing else.

    Why it is wrong:
        The model learns to use tokens that it will never see again, and nothing in training looks wrong, neither the loss nor the
        speed.

    When it shows:
        In training, for sequences longer than the window.

    Seen in the wild:
        https://github.com/unslothai/unsloth/pull/8253

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the weights returned in training, the output in training.

    Smallest case:
        Case(queries=2, mask='is_causal', window=1)

    Killed by:
        modes: modes_agree_without_dropout, dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights,
            training_returns_the_weights_before_dropout
        precision: rounding_explains_the_error
    """

    root_cause = "kernel: silent fallback"

    def hide_distant(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        if self.window is None or self.training:
            return attn_mask
        return restrict(attn_mask, window_mask(self.window, *scores.shape[-2:], device=scores.device))

    @staticmethod
    def visible(case: Case) -> bool:
        return not torch.equal(_without_window(case), visible_keys(case))
