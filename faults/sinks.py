"""Sinks: whose they are, how large a share they take, and what they learn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn import SinkAttention
from faults.facts import sees, visible_keys
from faults.fault import Fault
from properties.case import Case


class SinkInEveryScore(Fault, SinkAttention):
    """Add the sink to the scores, since the only hook that the kernel has is one for scores.

    Why it is wrong:
        One number added to all scores of a row is what a softmax does not see. The sink must be one more term of the sum below
        the line, and a hook that is handed one score at a time cannot add a term.

    When it shows:
        As soon as a query sees a key: the row sums to 1, and nothing is left for the sink.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/41083

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.5, the median relative error of the output.

    Smallest case:
        Case(sinks=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        dependence: every_parameter_counts
        variants: sinks_take_their_share
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "kernel: feature constraints"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = (scores + self.sinks[:, None, None]).softmax(dim=-1)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)


class SinkOnTheFirstKey(Fault, SinkAttention):
    """Add the sink to the score of the first key.

    Why it is wrong:
        "Attention sink" has two meanings: the first token, which models use as one, and a score that belongs to no token. The
        first token has a value, and brings it along.

    When it shows:
        As soon as a query sees a key, be it another one: the row sums to 1.

    Seen in the wild:
        https://github.com/vllm-project/vllm/pull/49815

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.5, the median relative error of the output.

    Smallest case:
        Case(sinks=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        symmetry: permuted_tokens_give_permuted_rows, any_key_may_come_first
        batch: padding_changes_nothing
        dependence: every_parameter_counts
        variants: sinks_take_their_share, a_sink_is_a_score_like_any_other
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "variant: variant configuration"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        first = scores[..., :1] + self.sinks[:, None, None]
        weights = torch.cat([first, scores[..., 1:]], dim=-1).softmax(dim=-1)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)


class SinkOfTheGroup(Fault, SinkAttention):
    """Give all query heads of a group the sink of the first of them.

    Why it is wrong:
        A kernel that works on one key/value head at a time packs its query heads into the rows, and reads the sink once. Each of
        these rows has a sink of its own.

    When it shows:
        With grouped heads, if any but the first of a group sees a key.

    Seen in the wild:
        https://github.com/sgl-project/sgl-kernel-xpu/pull/254
        https://github.com/Dao-AILab/flash-attention/pull/2752

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.18, the median relative error of the output.

    Smallest case:
        Case(num_heads=2, num_kv_heads=1, sinks=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        heads: grouped_heads_are_full_heads_with_repeated_weights
        variants: sinks_take_their_share
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "kernel: kernel memory"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        group = self.num_heads // self.num_kv_heads
        sinks = self.sinks[::group].repeat_interleave(group)[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        not_the_first = torch.arange(case.num_heads) % (case.num_heads // case.g) > 0
        return bool(visible_keys(case)[:, not_the_first].any())


class SinkAlongTheQueries(Fault, SinkAttention):
    """Expand the sinks from `[h, 1]` instead of `[h, 1, 1]`.

    Why it is wrong:
        Axes are matched from the right: `[h, 1]` puts the heads where the queries are. With as many queries as heads it fits, and
        sink i goes to query i of every head.

    When it shows:
        With more than one head: loudly, unless there are as many queries as heads.

    Seen in the wild:
        https://github.com/sgl-project/sgl-kernel-xpu/pull/254

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0.22, the median relative error of the output; on 13 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(num_heads=2, sinks=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: no_weight_is_negative, hidden_keys_get_no_weight, weights_explain_the_output
        symmetry: all
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared,
            empty_rows_harm_no_gradient
        causality: all
        batch: all
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, grouped_heads_are_full_heads_with_repeated_weights
        algebra: values_enter_linearly, no_bias_and_zeros_give_zeros
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        variants: sinks_take_their_share, a_sink_is_a_score_like_any_other
        modes: all
        dropout: no_draw_is_the_evaluation, one_key_is_dropped_by_whole_heads, every_head_drops_for_itself,
            every_key_is_dropped_for_itself, equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, one_query_and_one_key_work, a_batch_of_none_works,
            no_queries_get_no_rows, strides_do_not_matter, nothing_passed_in_is_changed, nothing_around_it_is_changed,
            a_second_call_gives_the_same, a_result_outlives_the_next_call, mask_and_flag_are_for_one_call,
            one_layer_serves_all_sizes, a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: all
        training: every_parameter_learns
    """

    root_cause = "qkv projection: dimension"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        sinks = self.sinks[:, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads > 1  # a single query, which is asked in every case, does not fit either


class SinkBesideTheMaximum(Fault, SinkAttention):
    """Take the maximum off the scores before the exponential, and not off the sink.

    Why it is wrong:
        The maximum may be taken off because it cancels, above the line and below. It does so only if every term below the line
        has lost it: a sink that keeps it takes too much where scores are large, and too little where they are small.

    When it shows:
        As soon as a query sees a key.

    Seen in the wild:
        https://github.com/Dao-AILab/flash-attention/pull/2752
        https://github.com/fla-org/flash-linear-attention/pull/831

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.3, the median relative error of the output.

    Smallest case:
        Case(sinks=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        variants: a_sink_is_a_score_like_any_other
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: normalization"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        exp = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        weights = exp / (self.sinks[:, None, None].exp() + exp.sum(dim=-1, keepdim=True))
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)


class SinkInBaseTwo(Fault, SinkAttention):
    """Multiply the scores by log2(e), for `exp2`, and forget the sink.

    Why it is wrong:
        2**x is faster than e**x, if x has been multiplied by log2(e). The scores are when they come in; the sink is loaded
        somewhere else, and is still a natural logarithm.

    When it shows:
        As soon as a query sees a key.

    Seen in the wild:
        https://github.com/ROCm/rocm-libraries/pull/12229

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.074, the median relative error of the output.

    Smallest case:
        Case(sinks=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        variants: sinks_take_their_share, a_sink_is_a_score_like_any_other
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: implementation"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        sinks = self.sinks[:, None, None].expand(*scores.shape[:-1], 1) * math.log(2)  # 2**sink
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)


class SinkCountedTwice(Fault, SinkAttention):
    """Begin both halves of a split row with the sink, and add up their sums.

    Why it is wrong:
        A row is split over several workers, each of which begins its sum with the sink instead of with 0. Only one of them may.

    When it shows:
        As soon as a query sees a key.

    Seen in the wild:
        https://github.com/ROCm/rocm-libraries/pull/12229

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.16, the median relative error of the output.

    Smallest case:
        Case(sinks=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        variants: sinks_take_their_share
        modes: dropout_drops_single_weights, the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: normalization"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        sinks = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([sinks, scores, sinks], dim=-1).softmax(dim=-1)[..., 1:-1]
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)


class SinksNotTrained(Fault, SinkAttention):
    """Use the sinks, and give them no gradient.

    Why it is wrong:
        The backward pass of the kernel returns a gradient for queries, keys and values; the sinks came later. They stay what they
        were at the beginning, and the rest of the model learns around them.

    When it shows:
        In the gradient of the sinks, as soon as a query sees a key. Every value is right: only laws about gradients see
        it.

    Seen in the wild:
        https://github.com/Dao-AILab/flash-attention/issues/1973
        https://github.com/ISEEKYAN/Megatron-LM/pull/205

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient.

    Smallest case:
        Case(sinks=True)

    Killed by:
        reference: gradients_are_those_of_the_formula
        derivatives: gradients_are_slopes_of_the_output
    """

    root_cause = "kernel: feature constraints"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        sinks = self.sinks.detach()[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)


class SinkShareTakenForAConstant(Fault, SinkAttention):
    """Take the share of the sink from the kernel's log-sum-exp, which carries no gradient.

    Why it is wrong:
        What the sink leaves over depends on all scores of the row. The values are right, and so are the gradients of the sinks;
        those of queries and keys lack a part. With a single key they are zero, as if there were no sink to compete with.

    When it shows:
        In the gradients, as soon as a query sees a key.

    Seen in the wild:
        https://github.com/pytorch/torchtitan/pull/4796

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient.

    Smallest case:
        Case(sinks=True)

    Killed by:
        reference: gradients_are_those_of_the_formula
        derivatives: gradients_are_slopes_of_the_output
        modes: the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "kernel: feature constraints"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        total = scores.detach().logsumexp(dim=-1, keepdim=True)  # what a kernel returns beside its output
        weights = scores.softmax(dim=-1) * (total - self.sinks[:, None, None]).sigmoid()
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)
