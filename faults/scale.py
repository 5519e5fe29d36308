"""Scores that are compared rightly and scaled wrongly: every symmetry holds, only numbers tell."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from faults.facts import chooses, has_mask, visible_keys
from faults.fault import Fault
from properties.case import Case


class ScaleByDModel(Fault):
    """Divide the scores by sqrt(d_model) instead of sqrt(d_head).

    Why it is wrong:
        The scale undoes the growth of a dot product with the number of its terms, and a head sums d_head terms, not d_model.
        The scores come out too small by sqrt(h), the weights too even, and the more heads the less attention.

    When it shows:
        With more than one head, for a query that sees two keys or more.

    Seen in the wild:
        https://github.com/lucidrains/vit-pytorch/issues/65
        https://github.com/sooftware/conformer/pull/55
        https://github.com/juho-lee/set_transformer/issues/18
        https://github.com/FareedKhan-dev/train-llm-from-scratch/pull/3

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.086, the median relative error of the output.

    Smallest case:
        Case(queries=2, num_heads=2)

    Killed by:
        reference: all
        heads: a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: normalization"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q / math.sqrt(self.d_model)) @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads > 1 and chooses(case)


class MissingScale(Fault):
    """Compare queries and keys, and do not scale.

    Why it is wrong:
        The variance of a dot product grows with d_head. Unscaled, the softmax of wide heads is nearly one-hot: it attends to
        one key and passes hardly any gradient to the others.

    When it shows:
        For d_head > 1 (the square root of 1 is honest), for a query that sees two keys or more.

    Seen in the wild:
        https://github.com/Project-MONAI/GenerativeModels/issues/146
        https://github.com/OpenNMT/CTranslate2/pull/123

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.11, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=2)

    Killed by:
        reference: all
        heads: a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: normalization"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head > 1 and chooses(case)


class InvertedScale(Fault):
    """Divide by the scale that should be multiplied with: the scores grow by sqrt(d_head) instead of shrinking.

    Why it is wrong:
        `scale = d_head ** -0.5` is already the reciprocal. Dividing by it is a second one, and the scores are too large by a
        factor of d_head: worse than no scale at all.

    When it shows:
        For d_head > 1, for a query that sees two keys or more.

    Seen in the wild:
        https://github.com/esceptico/perceiver-io/issues/9

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.24, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=2)

    Killed by:
        reference: all
        heads: a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: normalization"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scale: float = self.d_head**-0.5
        return (q / scale) @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head > 1 and chooses(case)


class DoubleScale(Fault):
    """Scale the queries, and then scale the scores as well.

    Why it is wrong:
        Either is right, and both together divide by d_head: two authors, or a module and the kernel it calls, each did the
        right thing and did not look at the other.

    When it shows:
        For d_head > 1, for a query that sees two keys or more.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/38290

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.095, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=2)

    Killed by:
        reference: all
        heads: a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: normalization"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        q = q / math.sqrt(self.d_head)
        return (q @ k.mT) / math.sqrt(self.d_head)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head > 1 and chooses(case)


class ScaleWithoutRoot(Fault):
    """Divide the scores by d_head, and forget the square root.

    Why it is wrong:
        The standard deviation of a sum of d_head terms grows with sqrt(d_head), its variance with d_head. Dividing by the
        variance leaves scores that shrink as heads get wider, until every key gets the same weight.

    When it shows:
        For d_head > 1, for a query that sees two keys or more.

    Seen in the wild:
        https://github.com/delzac/cntkx/issues/10

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.095, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=2)

    Killed by:
        reference: all
        heads: a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: normalization"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q / self.d_head) @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head > 1 and chooses(case)


class HardCodedScale(Fault):
    """Divide the scores by 8, which is sqrt(d_head) for the one width that was ever tried.

    Why it is wrong:
        8 is the square root of 64. Heads of any other width get the scale of somebody else's model.

    When it shows:
        For d_head other than 64, for a query that sees two keys or more.

    Seen in the wild:
        https://github.com/pytorch/pytorch/pull/72375
        https://github.com/triton-lang/triton/issues/621

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.18, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        heads: a_head_is_a_layer_of_one_head
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: normalization"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q / 8.0) @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head != 64 and chooses(case)


class ScaleFromPackedWidth(Fault):
    """Work out the width of a head from the packed projection, which holds queries, keys and values.

    Why it is wrong:
        The output of `in_proj` is three heads' worth wide for every head (less, with grouped heads). What is divided by is
        the root of all that, so the scores are too small by a factor that depends on how heads are grouped.

    When it shows:
        For a query that sees two keys or more.

    Seen in the wild:
        https://github.com/ROCm/hip-ep/pull/621

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.061, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        heads: a_head_is_a_layer_of_one_head, grouped_heads_are_full_heads_with_repeated_weights
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: normalization"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q / math.sqrt(self.in_proj.out_features / self.num_heads)) @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class ZeroScale(Fault):
    """Take the default scale of 0, which was to mean "choose one", at its word.

    Why it is wrong:
        A default that stands for something else has to be replaced by it somewhere. Here nobody does, every score is 0, and
        every query gets the plain average of the values it sees.

    When it shows:
        For a query that sees two keys or more.

    Seen in the wild:
        https://github.com/SKaiNET-developers/SKaiNET/issues/860

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.27, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        heads: every_head_chooses_for_itself
        dependence: every_query_counts, every_visible_key_counts, every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        training: every_parameter_learns
    """

    root_cause = "score: normalization"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scale = 0.0  # 0: 1 / sqrt(d_head)
        return (q * scale) @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class ScaledMask(Fault):
    """Add the mask to the raw scores and scale the sum, so that the mask is scaled too.

    Why it is wrong:
        An additive mask is a bias on the logits: what is added is meant as it is. Scaled along, a bias loses a factor of
        sqrt(d_head). A mask of zeros and infinities does not mind, and its gradient does.

    When it shows:
        With an additive mask and d_head > 1, for a query that sees two keys or more. If the mask holds nothing but 0 and
        -inf, only the gradient of the mask is wrong.

    Seen in the wild:
        https://github.com/tenstorrent/tt-metal/issues/55337
        https://github.com/NVIDIA/OpenSeq2Seq/pull/76
        https://github.com/braindecode/braindecode/pull/902

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.053, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=2, mask='full', encoding='additive')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        heads: a_head_is_a_layer_of_one_head
        algebra: a_bias_multiplies_the_odds
        modes: dropout_drops_single_weights, the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "score: implementation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask / math.sqrt(self.d_head)  # (q @ k.mT + mask) / sqrt(d_head), multiplied out
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        if case.d_head == 1 or not has_mask(case) or case.encoding == "bool":
            return False
        keys = visible_keys(case).sum(-1)  # [B, h, T]
        # The gradient is taken for rows that see a key in every head, the weights are compared for each head by itself.
        whole_rows = (keys > 0).all(1, keepdim=True)
        return chooses(case) if case.encoding == "bias" else bool(((keys > 1) & whole_rows).any())
