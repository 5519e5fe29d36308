"""Kernels: fast paths and what they fall back to, widths they were not made for, devices, and the memory they keep."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from faults.facts import chooses, has_flag, hides, mask_has_gradient, visible_keys
from faults.fault import Fault
from properties.case import Case

# Faults: what is lost in a fallback.


class ScaleLostInTheFallback(Fault):
    """Try to write the scores into a buffer, and where torch refuses, compute them the plain way, and do not scale.

    Why it is wrong:
        Functions with `out=` have no backward pass, so it is in training that the buffer is refused. The layer then learns with
        one attention, and is evaluated with a sharper one. The exception would have said so; it was caught.

    When it shows:
        Where gradients are recorded, for d_head > 1, if some query has a choice between keys. Called without gradients every
        value is right: only the laws about gradients see it, and the one that compares modes.

    Seen in the wild:
        https://github.com/OpenNMT/CTranslate2/pull/123
        https://github.com/huggingface/transformers/pull/44397

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient.

    Smallest case:
        Case(queries=2, d_head=2)

    Killed by:
        reference: gradients_are_those_of_the_formula
        modes: modes_agree_without_dropout, the_gradient_is_that_of_the_kept_weights
        tools: vmap_is_a_loop
    """

    root_cause = "kernel: silent fallback"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q.new_empty(*q.shape[:3], k.shape[2])
        try:
            return torch.matmul(q / math.sqrt(self.d_head), k.mT, out=scores)
        except RuntimeError:
            return q @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head > 1 and chooses(case)


class MaskForgottenByTheFallback(Fault):
    """Take the fused kernel where the width of a head is a multiple of 4, and elsewhere a plain way that takes the flag alone.

    Why it is wrong:
        Both compute the same attention, as long as there is no mask; only one of them was ever handed it. Which one runs is
        decided by a size that nobody thinks of as having to do with masks.

    When it shows:
        With any mask that hides a key, or adds to its score, for widths that are no multiple of 4. The usual ones all are.

    Seen in the wild:
        https://github.com/ByteDance-Seed/VeOmni/pull/1051
        https://github.com/AI-Hypercomputer/maxtext/issues/878
        https://github.com/AI4Bharat/IndicBERT/issues/20

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.57, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='full', encoding='additive')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        symmetry: permuted_keys_change_nothing, permuted_tokens_give_permuted_rows
        masking: hidden_keys_can_be_deleted, content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: all
        batch: padding_changes_nothing
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head, grouped_heads_are_full_heads_with_repeated_weights
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "kernel: silent fallback"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        fused = self.d_head % 4 == 0
        return super().mask(scores, attn_mask if fused else None, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head % 4 != 0 and (hides(case) or mask_has_gradient(case))


class MergeByTheAdviceOfTheError(Fault):
    """Merge the heads with a `view`, and where that raises do what the message says: use `reshape`. On the wrong tensor.

    Why it is wrong:
        The view fails on the transposed heads, and it is these that `reshape` would have copied. Asked of the heads as they
        were, it succeeds, and lays tokens side by side where heads should be.

    When it shows:
        With more than one head, query, and feature in a head, where the view must fail, unless every moved context equals the
        one it replaces. With one of anything the view succeeds and all is right; but a layer that is traced raises, whatever the
        sizes, since nothing is caught in a graph.

    Seen in the wild:
        https://github.com/meta-pytorch/opacus/pull/825
        https://github.com/pytorch/pytorch/issues/67651

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.66, the median relative error of the output.

    Smallest case:
        Case()

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula, two_keys_share_by_the_sigmoid
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        symmetry: permuted_queries_give_permuted_rows, a_query_alone_gives_its_own_row, permuted_tokens_give_permuted_rows
        masking: content_of_hidden_keys_is_irrelevant, empty_rows_are_as_declared
        causality: the_future_does_not_change_the_past, a_prefix_gives_the_first_rows
        heads: a_head_is_a_layer_of_one_head, each_query_head_reads_its_own_group
        dependence: every_visible_key_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        contract: strides_do_not_matter
        graphs: all
    """

    root_cause = "kernel: silent fallback"

    def merge_heads(self, heads: Tensor) -> Tensor:
        batch, _, queries, _ = heads.shape
        try:
            return heads.transpose(1, 2).view(batch, queries, self.d_model)
        except RuntimeError:  # "view size is not compatible [...] Use .reshape(...) instead."
            return heads.reshape(batch, queries, self.d_model)

    @staticmethod
    def visible(case: Case) -> bool:
        return True


# Faults: what a kernel was not made for.


class ScaleByThePaddedWidth(Fault):
    """Pad queries and keys with zeros to the next multiple of 8, as the kernel wants them, and scale by the padded width.

    Why it is wrong:
        Zeros add nothing to a product, so the padding is harmless. The scale stands for the number of features that are summed,
        and the zeros are none.

    When it shows:
        For every width of a head that is no multiple of 8, if some query has a choice between keys.

    Seen in the wild:
        https://github.com/ROCm/hip-ep/pull/621

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.056, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        heads: a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "kernel: feature constraints"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        padding = (0, -self.d_head % 8)
        q, k = F.pad(q, padding), F.pad(k, padding)
        return (q / math.sqrt(q.shape[-1])) @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head % 8 != 0 and chooses(case)


class OddWidthsInHalf(Fault):
    """In evaluation, send heads whose width is no multiple of 8 through an old routine that compares them in float16.

    Why it is wrong:
        It has eleven bits, and ends at 65504. Training takes another way, so nothing is noticed before the model is put to use,
        and not then by those who have the usual widths.

    When it shows:
        In evaluation, for every width that is no multiple of 8: if some query has a choice between keys, by the digits that are
        missing; or if a key is hidden, since its score may be infinite in half precision, or not a number, which no mask hides.

    Seen in the wild:
        https://github.com/pytorch/pytorch/pull/176559

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        below 1e-4, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        masking: content_of_hidden_keys_is_irrelevant
        heads: a_head_is_a_layer_of_one_head
        algebra: a_shift_of_all_keys_changes_nothing
        modes: modes_agree_without_dropout, training_returns_the_weights_before_dropout
        precision: rounding_explains_the_error
    """

    root_cause = "kernel: feature constraints"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if self.training or self.d_head % 8 == 0:
            return super().score(q, k)
        return (q.half() @ k.half().mT).to(q.dtype) / math.sqrt(self.d_head)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head % 8 != 0 and (chooses(case) or _hides_what_may_be_anything(case))


class TailOfTheWidthLeftOut(Fault):
    """Compare queries and keys two features at a time, for as long as there are two left.

    Why it is wrong:
        d_head // 2 blocks of two features are not d_head features if the width is odd. The last one is never read, and a head
        of one feature compares nothing at all: every key scores 0.

    When it shows:
        For odd widths of a head, if some query has a choice between keys.

    Seen in the wild:
        https://github.com/pytorch/pytorch/pull/169222
        https://github.com/flagos-ai/FlagGems/pull/898

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.22, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        heads: a_head_is_a_layer_of_one_head, every_head_chooses_for_itself
        dependence: every_parameter_counts, a_nan_that_is_seen_comes_out
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        training: every_parameter_learns
    """

    root_cause = "kernel: feature constraints"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q.new_zeros(*q.shape[:3], k.shape[2])
        for block in range(self.d_head // 2):
            features = slice(2 * block, 2 * block + 2)
            scores = scores + q[..., features] @ k[..., features].mT
        return scores / math.sqrt(self.d_head)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head % 2 == 1 and chooses(case)


class MaskOnTheDefaultDevice(Fault):
    """Make the causal mask without saying on which device.

    Why it is wrong:
        It comes to lie on the default one, as a rule the CPU. There it meets scores on a GPU, and the call raises. On the
        machine it was written on there is but one device, and every test passes.

    When it shows:
        With the causal flag, on any device but the default one. Where there is only one, no number is wrong and one law sees
        it: the one that watches where tensors are made.

    Seen in the wild:
        https://github.com/mlverse/torch/pull/1473

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(mask='is_causal')

    Killed by:
        devices: what_is_made_is_made_where_x_is
    """

    root_cause = "kernel: hardware incompatibility"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            *_, queries, keys = scores.shape
            causal = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
            if attn_mask is None:
                attn_mask = causal
            elif attn_mask.dtype == torch.bool:
                attn_mask = attn_mask & causal
            else:
                attn_mask = attn_mask.masked_fill(~causal, -math.inf)
        return super().mask(scores, attn_mask, False)

    @staticmethod
    def visible(case: Case) -> bool:
        return has_flag(case)


# Faults: memory that is kept.


class ResultInKeptMemory(Fault):
    """Write every output of one shape into the same memory, and return that.

    Why it is wrong:
        The next call overwrites the result of the last one in the hands of whoever has kept it. What is compared with it later
        is compared with itself.

    When it shows:
        With two calls of the same sizes whose outputs differ. A layer is right if it is called once, or if every result is used
        up before the next call. Laws that expect two calls to agree are blind to it, and to whatever else is wrong: they
        compare one memory with itself. In `vmap`, which cannot write into one memory for many, it raises always.

    Seen in the wild:
        https://github.com/Blaizzy/mlx-vlm/pull/1143
        https://github.com/ml-explore/mlx-lm/issues/1699

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case()

    Killed by:
        heads: the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head, every_head_chooses_for_itself
        algebra: values_enter_linearly
        dependence: every_query_counts, every_visible_key_counts, every_visible_value_counts, every_parameter_counts
        modes: training_projects_out_as_well
        dropout: one_key_is_dropped_or_scaled_up, no_draw_is_the_evaluation, every_head_drops_for_itself
        contract: a_result_outlives_the_next_call
        tools: vmap_is_a_loop
    """

    root_cause = "kernel: kernel memory"

    kept: Tensor | None = None

    def project_out(self, merged: Tensor) -> Tensor:
        output = super().project_out(merged)
        if self.kept is None or self.kept.shape != output.shape:
            self.kept = torch.empty_like(output.detach())
        return self.kept.detach().copy_(output)

    @staticmethod
    def visible(case: Case) -> bool:
        return True


# Facts.


def _hides_what_may_be_anything(case: Case) -> bool:
    """Is a key hidden from all heads of a query that is another token, and sees some key?"""
    visible = visible_keys(case)
    hidden = (~visible).all(1, keepdim=True)
    if case.keys is None:
        hidden = hidden & ~torch.eye(case.T, dtype=torch.bool)
    return bool((hidden & visible.any(-1, keepdim=True)).any())


class NothingForNoTokens(Fault):
    """Give back a sequence without tokens as it came, before a kernel can be started on nothing, and no weights with it.

    Why it is wrong:
        There is nothing to compute, but there is a result: weights without rows. Whoever stacks them, or looks at their shape,
        has None in hands, for the one empty sequence of a long night.

    When it shows:
        For a sequence without tokens, which is no case of its own: it is asked to attend to the context of any, and only the law
        that does so sees it.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/188765
        https://github.com/pytorch/pytorch/pull/195812

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(queries=2, keys=1)

    Killed by:
        contract: no_queries_get_no_rows
    """

    root_cause = "kernel: feature constraints"

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        if x.shape[1] == 0:
            return x, None  # type: ignore[return-value]
        return super().forward(x, attn_mask, context=context, is_causal=is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys is not None and 1 < case.T != case.S and not has_flag(case)
