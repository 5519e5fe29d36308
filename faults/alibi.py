"""ALiBi: what a distance costs, in which head, and what becomes of the mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn import AlibiAttention, alibi_slopes
from attn.multihead import MultiHeadAttention
from attn.relative import distances
from faults.facts import visible_keys
from faults.fault import Fault
from properties.case import Case


def _tells_far_from_near(case: Case) -> Tensor:
    """In which heads some query sees keys at different distances, bool `[h]`. What costs all keys the same costs nothing."""
    return _differ(case, distances(case.T, case.S).abs())


def _differ(case: Case, numbers: Tensor) -> Tensor:
    """In which heads some query sees keys with different ones of these numbers `[T, S]`, bool `[h]`."""
    keys = visible_keys(case)
    numbers = numbers.to(torch.float64)
    most = numbers.where(keys, -math.inf).amax(-1)
    least = numbers.where(keys, math.inf).amin(-1)
    return (most > least).any(0).any(-1)


class OneSeriesOfSlopes(Fault, AlibiAttention):
    """Take one geometric series of slopes for every number of heads.

    Why it is wrong:
        The series is defined for powers of two. For what lies between, the slopes of the next lower power are kept, so that a
        model can be widened, and the missing ones come from the next higher.

    When it shows:
        With 3 or 6 heads, or any number that is no power of two, as soon as a query sees keys at different distances.

    Seen in the wild:
        https://github.com/ml-explore/mlx/pull/3071

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.056, the median relative error of the output.

    Smallest case:
        Case(queries=2, num_heads=3, placing='alibi')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: equal_tokens_are_told_apart_by_their_distance
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "positional encoding: relative position"

    def slopes(self, device: torch.device) -> Tensor:
        return 2.0 ** (-8 * torch.arange(1, self.num_heads + 1, dtype=torch.float64, device=device) / self.num_heads)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads in (3, 6) and bool(_tells_far_from_near(case).any())


class SlopesOfTheNextPowerOfTwo(Fault, AlibiAttention):
    """Make slopes for the next higher power of two, and cut off those that are too many.

    Why it is wrong:
        The series of the higher power has to be taken apart first, every other slope of it after the rest. Cut as it is, it
        lacks its gentlest slopes: no head is left that looks far back.

    When it shows:
        With 3 or 6 heads, or any number that is no power of two, as soon as a query sees keys at different distances.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/28380

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.062, the median relative error of the output.

    Smallest case:
        Case(queries=2, num_heads=3, placing='alibi')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: equal_tokens_are_told_apart_by_their_distance
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "positional encoding: relative position"

    def slopes(self, device: torch.device) -> Tensor:
        padded = 2 ** math.ceil(math.log2(self.num_heads))
        return alibi_slopes(padded, device=device)[: self.num_heads]

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads in (3, 6) and bool(_tells_far_from_near(case).any())


class SlopesOfALocalHead(Fault, AlibiAttention):
    """Count the heads from 0 on each of two devices that share them, and take the slopes by these numbers.

    Why it is wrong:
        The slope belongs to the number that a head has in the layer. The second device hands out those of the first once more.

    When it shows:
        With an even number of heads, if a query of the second half sees keys at different distances.

    Seen in the wild:
        https://github.com/flashinfer-ai/flashinfer/issues/1606

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.017, the median relative error of the output.

    Smallest case:
        Case(queries=2, num_heads=2, placing='alibi')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: equal_tokens_are_told_apart_by_their_distance
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: indexing"

    def slopes(self, device: torch.device) -> Tensor:
        devices = 2 if self.num_heads % 2 == 0 else 1
        return super().slopes(device)[: self.num_heads // devices].repeat(devices)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads % 2 == 0 and bool(_tells_far_from_near(case)[case.num_heads // 2 :].any())


class FarCostsLess(Fault, AlibiAttention):
    """Add what a distance costs, where it is to be taken off.

    Why it is wrong:
        Slopes are positive, and so are distances. The further a key is away, the more it is now worth, and a token that just
        went by is the last to be asked.

    When it shows:
        As soon as a query sees keys at different distances.

    Seen in the wild:
        https://github.com/meta-pytorch/attention-gym/pull/86

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.043, the median relative error of the output.

    Smallest case:
        Case(queries=2, placing='alibi')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: equal_tokens_are_told_apart_by_their_distance
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: relative position"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = MultiHeadAttention.score(self, q, k)
        cost = self.slopes(q.device)[:, None, None] * distances(*scores.shape[-2:], device=q.device).abs()
        return scores + cost.to(scores.dtype)

    @staticmethod
    def visible(case: Case) -> bool:
        return bool(_tells_far_from_near(case).any())


class FutureIsRewarded(Fault, AlibiAttention):
    """Leave out the absolute value: behind the query, distances are negative.

    Why it is wrong:
        In a causal model nobody looks there, and many implementations spare it. An encoder that borrows one has the future cost
        less than nothing, the more so the further it is away.

    When it shows:
        If a query sees another key besides one that lies ahead of it.

    Seen in the wild:
        https://github.com/ofirpress/attention_with_linear_biases/issues/5
        https://github.com/lucidrains/voicebox-pytorch/issues/10

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.029, the median relative error of the output.

    Smallest case:
        Case(queries=2, placing='alibi')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: equal_tokens_are_told_apart_by_their_distance
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: relative position"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = MultiHeadAttention.score(self, q, k)
        cost = self.slopes(q.device)[:, None, None] * distances(*scores.shape[-2:], device=q.device)
        return scores - cost.to(scores.dtype)

    @staticmethod
    def visible(case: Case) -> bool:
        return bool(_differ(case, distances(case.T, case.S).clamp(max=0)).any())


class CostDividedWithTheScores(Fault, AlibiAttention):
    """Take the cost off the products, and divide the difference by the root of d_head.

    Why it is wrong:
        The slopes are meant for scores that are scaled already. Divided as well, a distance costs the less the wider the head.
        Some models were trained like that, and then it is the division that may not be missing.

    When it shows:
        With d_head > 1, as soon as a query sees keys at different distances.

    Seen in the wild:
        https://github.com/NVIDIA/TensorRT-Model-Connect/pull/32
        https://github.com/tenstorrent/tt-metal/pull/56406

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.0087, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=2, placing='alibi')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: equal_tokens_are_told_apart_by_their_distance
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "score: normalization"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        products = q @ k.mT
        cost = self.slopes(q.device)[:, None, None] * distances(*products.shape[-2:], device=q.device).abs()
        return (products - cost.to(products.dtype)) / math.sqrt(self.d_head)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head > 1 and bool(_tells_far_from_near(case).any())


class SlopesAlongTheKeys(Fault, AlibiAttention):
    """Multiply slopes and distances, and never say which axis the heads are.

    Why it is wrong:
        `[h]` times `[T, S]` lines the heads up with the keys. With as many heads as keys that is a bias like any other, one for
        all heads, in which every key has a slope of its own.

    When it shows:
        With more than one head: loudly, unless there are as many tokens.

    Seen in the wild:
        https://github.com/lucidrains/x-transformers/pull/85
        https://github.com/cosdt/vllm-ascend/pull/6

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0.076, the median relative error of the output; on 15 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(num_heads=2, placing='alibi')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: all
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form
        causality: all
        batch: a_sample_alone_gives_its_own_rows
        heads: the_output_is_the_sum_of_its_heads, grouped_heads_are_full_heads_with_repeated_weights,
            each_query_head_reads_its_own_group
        algebra: values_enter_linearly, a_shift_of_the_mask_changes_nothing
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        positions: equal_tokens_are_told_apart_by_their_distance, left_padding_changes_nothing
        modes: all
        dropout: no_draw_is_the_evaluation, one_key_is_dropped_by_whole_heads, every_head_drops_for_itself,
            every_key_is_dropped_for_itself
        contract: the_result_has_the_shape_of_the_question, one_query_and_one_key_work, a_batch_of_none_works,
            strides_do_not_matter, nothing_passed_in_is_changed, nothing_around_it_is_changed, a_second_call_gives_the_same,
            a_result_outlives_the_next_call, mask_and_flag_are_for_one_call, one_layer_serves_all_sizes,
            a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: all
        training: every_parameter_learns
    """

    root_cause = "qkv projection: dimension"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = MultiHeadAttention.score(self, q, k)
        cost = self.slopes(q.device) * distances(*scores.shape[-2:], device=q.device).abs()
        return scores - cost.to(scores.dtype)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads > 1  # for every case is tried with one token, too


class BiasInsteadOfTheFlag(Fault, AlibiAttention):
    """Take the bias for a mask that was given, and leave the causal flag to calls without one.

    Why it is wrong:
        The library function takes a mask or the flag. With ALiBi there is always a mask, so the flag is never passed on; and
        nobody has written the triangle into the bias, because there was a flag for it.

    When it shows:
        With the flag and no mask, if there is a future. A mask that is given comes with its triangle.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/30123

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.42, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal', placing='alibi')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant
        causality: all
        positions: equal_tokens_are_told_apart_by_their_distance
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "masking: mask application"

    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, *, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        return super().forward(x, attn_mask, is_causal=is_causal and attn_mask is not None)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.mask == "is_causal" and case.T > 1
