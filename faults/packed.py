"""Packed documents: which token is of which document, and what else is hidden."""

from __future__ import annotations

import torch
from torch import Tensor

from attn import PackedAttention, document_mask
from attn.masks import restrict
from faults.facts import keys_if, mask_counts, sees, visible_keys
from faults.fault import Fault
from properties.case import Case
from properties.inputs import make_inputs


def _documents(case: Case) -> Tensor:
    """The number of each token's document, `[B, T]`."""
    documents = make_inputs(case).documents
    if documents is None:
        raise ValueError(f"{case!r} has no documents")
    return documents


def _begun_late(documents: Tensor) -> Tensor:
    """Documents counted from the first on, each of them from its second token, `[B, T]`."""
    begins = (documents.diff(dim=1, prepend=documents[:, :1]) != 0).long()
    return begins.cumsum(1) - begins  # how many have begun before, and not with, the token


class DocumentsIgnored(Fault, PackedAttention):
    """Take the documents, check them, and attend with the causal flag alone.

    Why it is wrong:
        Causal is not enough: every document sees all that were packed in front of it. The loss goes down, perhaps faster, for the
        neighbours help; and one document's gradient runs through another's tokens.

    When it shows:
        As soon as a row holds two documents, and a real token of an earlier one.

    Seen in the wild:
        https://github.com/AI-Hypercomputer/maxtext/issues/4476
        https://github.com/NVIDIA/Megatron-LM/issues/415
        https://github.com/NVIDIA-NeMo/RL/issues/2105
        https://github.com/DeepOpt-com/WrinkleFree-Monorepo/issues/53

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.63, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='documents')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant
        causality: no_gradient_flows_from_hidden_keys
        algebra: values_enter_linearly
        variants: packed_documents_are_documents_alone
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        tools: autocast_rounds_and_no_more
    """

    root_cause = "kernel: feature constraints"

    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, *, documents: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self.project_in(x, None)
        return self.attend(self.split_heads(q), self.split_heads(k), self.split_heads(v), attn_mask, True)

    @staticmethod
    def visible(case: Case) -> bool:
        return not torch.equal(keys_if(case, documents=None), visible_keys(case))


class DocumentsComparedInOrder(Fault, PackedAttention):
    """Show a query the keys whose document number is not larger than its own.

    Why it is wrong:
        "Not larger" was meant to make it causal, between documents as within them. But it is exactly between documents that
        nothing may be seen; `==` is the whole rule.

    When it shows:
        If a real token of an earlier document has a smaller number than a later one: with documents counted 0, 1, 2, always.

    Seen in the wild:
        https://github.com/huggingface/nanoVLM/pull/204
        https://github.com/alex-hh/profam/issues/495

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.53, the median relative error of the output.

    Smallest case:
        Case(queries=3, mask='documents')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant
        causality: no_gradient_flows_from_hidden_keys
        algebra: values_enter_linearly
        variants: packed_documents_are_documents_alone
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        tools: given_parameters_are_used, autocast_rounds_and_no_more
    """

    root_cause = "masking: mask generation"

    def hide_others(self, attn_mask: Tensor | None, documents: Tensor) -> Tensor:
        return restrict(attn_mask, documents[:, None, :, None] >= documents[:, None, None, :])

    @staticmethod
    def visible(case: Case) -> bool:
        documents = _documents(case)
        seen = keys_if(case, documents=None) & (documents[:, None, :, None] >= documents[:, None, None, :])
        return not torch.equal(seen, visible_keys(case))


class DocumentsBeginOneTokenLate(Fault, PackedAttention):
    """Number the documents by how many have begun before a token, not counting one that begins with it.

    Why it is wrong:
        The first token of a document is given to the one before, whose end it sees, and its own document has to do without it.
        Cumulative lengths searched from the wrong side of an equal number say the same.

    When it shows:
        As soon as a row holds two documents: the first token of the later one changes sides. Padding next to it may hide that.

    Seen in the wild:
        https://github.com/NVIDIA/Megatron-LM/pull/5298

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.47, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='documents')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant
        causality: no_gradient_flows_from_hidden_keys
        heads: each_query_head_reads_its_own_group
        algebra: values_enter_linearly
        dependence: every_visible_key_counts
        variants: packed_documents_are_documents_alone
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        dropout: every_key_is_dropped_for_itself
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask generation"

    def hide_others(self, attn_mask: Tensor | None, documents: Tensor) -> Tensor:
        return restrict(attn_mask, document_mask(_begun_late(documents)))

    @staticmethod
    def visible(case: Case) -> bool:
        return not torch.equal(keys_if(case, documents=_begun_late(_documents(case))), visible_keys(case))


class DocumentsOfTheFirstSample(Fault, PackedAttention):
    """Build the mask from the first row of the batch, and use it for all of them.

    Why it is wrong:
        Every row is packed otherwise. The mask broadcasts, so nothing complains, and with a batch of one, which is what packing
        is usually tested with, nothing is wrong.

    When it shows:
        In a batch whose rows hold documents of other lengths, where it matters to a token that is not padding.

    Seen in the wild:
        https://github.com/facebookresearch/xformers/issues/760

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.35, the median relative error of the output.

    Smallest case:
        Case(batch=2, queries=3, mask='documents')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant
        batch: a_sample_alone_gives_its_own_rows
        heads: each_query_head_reads_its_own_group
        dependence: every_visible_key_counts, every_parameter_counts
        variants: packed_documents_are_documents_alone
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        training: every_parameter_learns
    """

    root_cause = "masking: dynamic mask"

    def hide_others(self, attn_mask: Tensor | None, documents: Tensor) -> Tensor:
        return restrict(attn_mask, document_mask(documents[:1]))

    @staticmethod
    def visible(case: Case) -> bool:
        documents = _documents(case)
        return not torch.equal(keys_if(case, documents=documents[:1].expand_as(documents)), visible_keys(case))


class DocumentZeroTakenForPadding(Fault, PackedAttention):
    """Hide the tokens of document 0, whose number means padding elsewhere.

    Why it is wrong:
        In many data pipelines segments count from 1, and 0 is what is left over at the end of the row. Fed with documents that
        count from 0, the layer takes the first of them for padding, and its tokens attend to nothing.

    When it shows:
        If there is a document 0 and one of its tokens is not padding.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/47525
        https://github.com/dhlee347/pytorchic-bert/issues/10

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.62, the median relative error of the output.

    Smallest case:
        Case(mask='documents')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, constant_values_come_back, outputs_stay_among_the_values
        heads: each_query_head_reads_its_own_group
        dependence: every_visible_key_counts, every_visible_value_counts, every_parameter_counts
        modes: dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p
        dropout: one_key_is_dropped_or_scaled_up, no_draw_is_the_evaluation, every_head_drops_for_itself,
            every_key_is_dropped_for_itself
        tools: autocast_rounds_and_no_more
        training: every_parameter_learns
    """

    root_cause = "masking: mask generation"

    def hide_others(self, attn_mask: Tensor | None, documents: Tensor) -> Tensor:
        real = (documents > 0)[:, None, None, :]
        return restrict(attn_mask, document_mask(documents) & real)

    @staticmethod
    def visible(case: Case) -> bool:
        zero = _documents(case) == 0
        # Of dropout the first token alone is asked, without a mask.
        first = case.dropout > 0 and bool(zero[0, 0]) and sees(case)
        return first or bool((visible_keys(case) & zero[:, None, None, :]).any())


class DocumentsReplaceTheMask(Fault, PackedAttention):
    """Build the mask of the documents, and forget the one that was passed in.

    Why it is wrong:
        Rows that are packed are seldom packed to the brim. What fills them up is hidden by the caller's mask, and by nothing else
        if it has the number of a document.

    When it shows:
        With a mask that hides a token of the query's own document, or biases a choice.

    Seen in the wild:
        https://github.com/NVIDIA/Megatron-LM/issues/7039

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.76, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='documents+padding')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights
        algebra: values_enter_linearly
        variants: packed_documents_are_documents_alone
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        contract: a_state_dict_carries_everything
        tools: given_parameters_are_used, autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def hide_others(self, attn_mask: Tensor | None, documents: Tensor) -> Tensor:
        return document_mask(documents)

    @staticmethod
    def visible(case: Case) -> bool:
        return mask_counts(case)


class MaskReplacesTheDocuments(Fault, PackedAttention):
    """Look at the documents only if no mask is passed in.

    Why it is wrong:
        Training code likes to pass a mask of ones, to be on the safe side. It hides nothing, and switches off the one thing that
        kept the documents apart.

    When it shows:
        With a mask, whatever it says, if a row holds two documents and a real token of an earlier one.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/46634
        https://github.com/fla-org/flash-linear-attention/pull/842

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.76, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='documents+padding')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head
        algebra: values_enter_linearly
        variants: packed_documents_are_documents_alone
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        tools: given_parameters_are_used, autocast_rounds_and_no_more
    """

    root_cause = "variant: dynamic dispatch"

    def hide_others(self, attn_mask: Tensor | None, documents: Tensor) -> Tensor:
        return document_mask(documents) if attn_mask is None else attn_mask

    @staticmethod
    def visible(case: Case) -> bool:
        return case.mask == "documents+padding" and not torch.equal(keys_if(case, documents=None), visible_keys(case))


class CausalLostInDocuments(Fault, PackedAttention):
    """Hide the other documents, and drop the causal flag, since there is a mask now.

    Why it is wrong:
        A block-diagonal mask says nothing of time. Each document sees its own future, the answers to what it is asked: the loss
        is too good, and what is learned is to copy.

    When it shows:
        As soon as a document has two tokens and the later one is not padding.

    Seen in the wild:
        https://github.com/huggingface/candle/pull/3632
        https://github.com/huggingface/transformers/pull/41966

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.16, the median relative error of the output.

    Smallest case:
        Case(queries=3, mask='documents')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: the_future_does_not_change_the_past, a_prefix_gives_the_first_rows
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, *, documents: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self.project_in(x, None)
        attn_mask = self.hide_others(attn_mask, documents)
        return self.attend(self.split_heads(q), self.split_heads(k), self.split_heads(v), attn_mask, is_causal=False)

    @staticmethod
    def visible(case: Case) -> bool:
        return not torch.equal(keys_if(case, is_causal=False), visible_keys(case))
