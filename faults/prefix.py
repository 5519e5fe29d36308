"""A prefix that sees itself both ways: how far it goes, who sees it, and what else is opened."""

from __future__ import annotations

import torch
from torch import Tensor

from attn import PrefixAttention, causal_mask, prefix_mask
from attn.masks import restrict
from faults.facts import chooses, keys_if, mask_counts, visible_keys
from faults.fault import Fault
from properties.case import Case
from properties.inputs import make_inputs


def _prefix(case: Case) -> Tensor:
    """How long the prefix of each sample is, `[B]`."""
    prefix = make_inputs(case).prefix
    if prefix is None:
        raise ValueError(f"{case!r} has no prefix")
    return prefix


def _in_prefix(case: Case) -> Tensor:
    """Which tokens are in the prefix of their sample, bool `[B, T]`."""
    return torch.arange(case.T) < _prefix(case)[:, None]


class PrefixUnderTheCausalFlag(Fault, PrefixAttention):
    """Open the prefix in the mask, and pass the causal flag along with it.

    Why it is wrong:
        The flag hides the future once more, in the prefix too. The mask may be as open as it likes: what is left is a plain
        causal model, which reads an image, or a question, from left to right.

    When it shows:
        With a prefix of two tokens or more, if a later one of them is not padding.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/39389
        https://github.com/huggingface/transformers/pull/42820

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.38, the median relative error of the output.

    Smallest case:
        Case(batch=2, queries=3, mask='prefix')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, outputs_stay_among_the_values
        heads: each_query_head_reads_its_own_group
        dependence: every_visible_key_counts, every_visible_value_counts, every_parameter_counts
        variants: a_prefix_sees_itself_both_ways
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        dropout: every_key_is_dropped_for_itself
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, *, prefix: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self.project_in(x, None)
        attn_mask = self.open_prefix(attn_mask, prefix, x.shape[1])
        return self.attend(self.split_heads(q), self.split_heads(k), self.split_heads(v), attn_mask, is_causal=True)

    @staticmethod
    def visible(case: Case) -> bool:
        return not torch.equal(keys_if(case, prefix=None, is_causal=True), visible_keys(case))


class PrefixSeesWhatFollows(Fault, PrefixAttention):
    """Open the rows of the prefix instead of its columns: its queries see everything.

    Why it is wrong:
        To be seen by all and to see all are two things, and only a transposition apart. The tokens of the prefix see the text
        that is to be predicted, and hand it on to whoever reads them in the next layer.

    When it shows:
        If there is a prefix, and something after it that is not padding.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/38080

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.38, the median relative error of the output.

    Smallest case:
        Case(queries=4, mask='prefix')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        batch: a_sample_alone_gives_its_own_rows
        variants: a_prefix_sees_itself_both_ways
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "masking: mask generation"

    def open_prefix(self, attn_mask: Tensor | None, prefix: Tensor, tokens: int) -> Tensor:
        in_prefix = torch.arange(tokens, device=prefix.device) < prefix[:, None]  # [B, T]
        return restrict(attn_mask, causal_mask(tokens, device=prefix.device) | in_prefix[:, None, :, None])

    @staticmethod
    def visible(case: Case) -> bool:
        everything = keys_if(case, prefix=None)
        seen = everything & (causal_mask(case.T) | _in_prefix(case)[:, None, :, None])
        return not torch.equal(seen, visible_keys(case))


class PrefixOneTokenTooLong(Fault, PrefixAttention):
    """Count the token at position `prefix` in, with `<=`.

    Why it is wrong:
        A prefix of n tokens ends at position n - 1. The token at n is the first that is to be predicted, and every token of the
        prefix is shown it.

    When it shows:
        If the sequence goes on after the prefix, which is not empty, and goes on with a token that is not padding.

    Seen in the wild:
        https://github.com/bigscience-workshop/Megatron-DeepSpeed/pull/167

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.28, the median relative error of the output.

    Smallest case:
        Case(queries=4, mask='prefix')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        variants: a_prefix_sees_itself_both_ways
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "masking: mask generation"

    def open_prefix(self, attn_mask: Tensor | None, prefix: Tensor, tokens: int) -> Tensor:
        in_prefix = torch.arange(tokens, device=prefix.device) <= prefix[:, None]  # [B, T]
        return restrict(attn_mask, causal_mask(tokens, device=prefix.device) | in_prefix[:, None, None, :])

    @staticmethod
    def visible(case: Case) -> bool:
        return not torch.equal(keys_if(case, prefix=_prefix(case) + 1), visible_keys(case))


class PrefixOfTheFirstSample(Fault, PrefixAttention):
    """Build the mask for the prefix of the first sample, and use it for the whole batch.

    Why it is wrong:
        Prompts have lengths of their own. With a shorter prefix than its own a sample reads part of its prompt from left to
        right, with a longer one it sees part of its answer.

    When it shows:
        In a batch with prefixes of different lengths, where it matters to a token that is not padding.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/38080

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.33, the median relative error of the output.

    Smallest case:
        Case(batch=2, queries=3, mask='prefix')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, hidden_keys_get_no_weight, outputs_stay_among_the_values
        batch: a_sample_alone_gives_its_own_rows
        heads: each_query_head_reads_its_own_group
        dependence: every_visible_value_counts, every_parameter_counts
        variants: a_prefix_sees_itself_both_ways
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        dropout: every_key_is_dropped_for_itself
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: dynamic mask"

    def open_prefix(self, attn_mask: Tensor | None, prefix: Tensor, tokens: int) -> Tensor:
        return restrict(attn_mask, prefix_mask(prefix[:1], tokens))

    @staticmethod
    def visible(case: Case) -> bool:
        prefix = _prefix(case)
        return not torch.equal(keys_if(case, prefix=prefix[:1].expand_as(prefix)), visible_keys(case))


class PrefixOpensTheWholeSequence(Fault, PrefixAttention):
    """Ask only whether a sample has a prefix, and let it see everything if so.

    Why it is wrong:
        That is the mask of an encoder. It is right while the prompt is read, where all is prefix, and wrong in training, where
        the answer stands behind it.

    When it shows:
        If a sample has a prefix, and after its first token something that is neither prefix nor padding.

    Seen in the wild:
        https://github.com/unslothai/unsloth-zoo/pull/963

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.42, the median relative error of the output.

    Smallest case:
        Case(queries=4, mask='prefix')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        batch: a_sample_alone_gives_its_own_rows
        variants: a_prefix_sees_itself_both_ways
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "masking: mask generation"

    def open_prefix(self, attn_mask: Tensor | None, prefix: Tensor, tokens: int) -> Tensor:
        bidirectional = (prefix > 0)[:, None, None, None]
        return restrict(attn_mask, causal_mask(tokens, device=prefix.device) | bidirectional)

    @staticmethod
    def visible(case: Case) -> bool:
        whole = torch.where(_prefix(case) > 0, case.T, 0)
        return not torch.equal(keys_if(case, prefix=whole), visible_keys(case))


class PrefixReplacesTheMask(Fault, PrefixAttention):
    """Build the mask of the prefix, and forget the one that was passed in.

    Why it is wrong:
        The padding that the caller hid is visible again: to all, if it lies in the prefix, and to what comes after it otherwise.

    When it shows:
        With a mask that hides a token which the prefix and the past show, or biases a choice.

    Seen in the wild:
        https://github.com/NVIDIA/Megatron-LM/issues/7039

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.69, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='prefix+padding')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def open_prefix(self, attn_mask: Tensor | None, prefix: Tensor, tokens: int) -> Tensor:
        return prefix_mask(prefix, tokens)

    @staticmethod
    def visible(case: Case) -> bool:
        return mask_counts(case)


class PrefixOpensItsPadding(Fault, PrefixAttention):
    """Join the causal mask and the padding first, and open the prefix in what comes out.

    Why it is wrong:
        Opening undoes hiding. Done last, it undoes that of the padding as well: a prompt that is padded, as prompts in a batch
        are, reads its padding. So does any bias on it get lost.

    When it shows:
        With a mask that hides, or biases, a token of the prefix.

    Seen in the wild:
        https://github.com/WhereIsAI/BiLLM/issues/6
        https://github.com/huggingface/transformers/pull/46850

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.55, the median relative error of the output.

    Smallest case:
        Case(batch=2, queries=3, mask='prefix+padding')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys
        heads: a_head_is_a_layer_of_one_head, grouped_heads_are_full_heads_with_repeated_weights
        algebra: a_shift_of_all_keys_changes_nothing
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def open_prefix(self, attn_mask: Tensor | None, prefix: Tensor, tokens: int) -> Tensor:
        in_prefix = (torch.arange(tokens, device=prefix.device) < prefix[:, None])[:, None, None, :]  # [B, 1, 1, T]
        mask = restrict(attn_mask, causal_mask(tokens, device=prefix.device))
        return mask | in_prefix if mask.dtype == torch.bool else mask.masked_fill(in_prefix, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        in_prefix = _in_prefix(case)[:, None, None, :]
        keys = visible_keys(case)
        seen = keys | in_prefix
        # An additive mask loses its gradient there, and a bias itself.
        choosing = keys & (keys.sum(-1, keepdim=True) > 1)
        lost = case.mask == "prefix+padding" and case.encoding != "bool" and chooses(case) and bool((choosing & in_prefix).any())
        return not torch.equal(seen, keys) or lost
