"""QK norm: what is normalised, over which features, by which formula, and when.

What computes a norm by hand does not call its module: that shows in self-attention even where no query has a choice.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn import QKNormAttention
from faults.facts import chooses
from faults.fault import Fault
from properties.case import Case

EPS = 1e-6


def _rms_norm(x: Tensor, norm: nn.RMSNorm, axes: tuple[int, ...]) -> Tensor:
    """RMSNorm over these axes, computed at least in float32 as `nn.RMSNorm` does it."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    root = (wide.square().mean(axes, keepdim=True) + EPS).sqrt()
    return (wide / root).to(x.dtype) * norm.weight


def _unhooked(case: Case) -> bool:
    """Is it noticed that a norm is not called as the module it is? No hook on it runs, and in self-attention that is asked."""
    return case.keys is None


class NormsNeverCalled(Fault, QKNormAttention):
    """Make the norms, and never call them.

    Why it is wrong:
        They are in the configuration, in the parameters and in the checkpoint; only `forward` does not mention them. The scores
        are as large as queries and keys are long.

    When it shows:
        As soon as a query has a choice. And in self-attention to hooks on the norms, which never run.

    Seen in the wild:
        https://github.com/Cerebras/modelzoo/pull/85

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.23, the median relative error of the output.

    Smallest case:
        Case(qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        dependence: every_parameter_counts
        variants: qk_norm_bounds_the_scores
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: every_submodule_is_called
    """

    root_cause = "variant: variant configuration"

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    @staticmethod
    def visible(case: Case) -> bool:
        return _unhooked(case) or chooses(case)


class NormWithoutItsWeight(Fault, QKNormAttention):
    """Normalise, and leave out the weights that were learned for it.

    Why it is wrong:
        Which features count, and how sharp the weights may be, is said by the norm's weights and by nothing else, since all
        lengths are equal now. Created, saved and loaded, they are of no effect.

    When it shows:
        As soon as a query has a choice. Fresh weights are 1, and hide it. And in self-attention to hooks on the norms, which
        never run.

    Seen in the wild:
        https://github.com/lucidrains/x-transformers/issues/352

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.14, the median relative error of the output.

    Smallest case:
        Case(qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        dependence: every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: every_submodule_is_called
    """

    root_cause = "score: normalization"

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.rms_norm(q, (self.d_head,), eps=EPS), F.rms_norm(k, (self.d_head,), eps=EPS)

    @staticmethod
    def visible(case: Case) -> bool:
        return _unhooked(case) or chooses(case)


class OneNormForBoth(Fault, QKNormAttention):
    """Normalise the keys with the norm of the queries.

    Why it is wrong:
        The norm has no state but its weight, so one looks as good as two. Queries and keys learn different weights, and those of
        the keys are loaded and never read.

    When it shows:
        As soon as a query has a choice. Fresh weights are all 1, and hide it. And in self-attention to hooks on the norms,
        which never run.

    Seen in the wild:
        https://github.com/Emmi-AI/noether/pull/214

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.13, the median relative error of the output.

    Smallest case:
        Case(qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        dependence: every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: every_submodule_is_called
    """

    root_cause = "qkv projection: head interaction"

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.query_norm(q), self.query_norm(k)

    @staticmethod
    def visible(case: Case) -> bool:
        return _unhooked(case) or chooses(case)


class NormOverTheProjection(Fault, QKNormAttention):
    """Divide by the root mean square of all heads of a token together.

    Why it is wrong:
        Before the heads are split, one norm over the projection is one line, and some models mean it. Here each head has a length
        of its own: a loud one makes the others quiet.

    When it shows:
        If a query has a choice, and there is more than one head. And in self-attention to hooks on the norms, which never run.

    Seen in the wild:
        https://github.com/vllm-project/vllm-metal/issues/767
        https://github.com/EleutherAI/gpt-neox/pull/1367
        https://github.com/Alpha-VLLM/Lumina-T2X/issues/112

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.082, the median relative error of the output.

    Smallest case:
        Case(qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: every_submodule_is_called
    """

    root_cause = "qkv projection: head interaction"

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        heads_and_features = (1, 3)
        return _rms_norm(q, self.query_norm, heads_and_features), _rms_norm(k, self.key_norm, heads_and_features)

    @staticmethod
    def visible(case: Case) -> bool:
        return _unhooked(case) or (chooses(case) and case.num_heads > 1)


class KeyNormOfTheQuerysToken(Fault, QKNormAttention):
    """Divide each score by the lengths of query and key, and leave the lengths of the keys standing in a column.

    Why it is wrong:
        `[B, h, S, 1]` lies along the queries: row t is divided by the length of key t, not column s by that of key s. A factor
        for a whole row is no norm of the keys, and without a transposition it even fits.

    When it shows:
        With as many queries as keys, if a query has a choice. With other numbers it raises, or returns too many rows; with one
        key it is right. And in self-attention to hooks on the norms, which never run.

    Seen in the wild:
        https://github.com/ChristophReich1996/Swin-Transformer-V2/issues/1

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0.071, the median relative error of the output; on 10 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            any_key_may_come_first
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: all
        batch: all
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, grouped_heads_are_full_heads_with_repeated_weights,
            each_query_head_reads_its_own_group
        algebra: values_enter_linearly, a_shift_of_the_mask_changes_nothing, a_bias_multiplies_the_odds,
            no_bias_and_zeros_give_zeros
        dependence: all
        derivatives: gradients_are_slopes_of_the_output
        variants: qk_norm_bounds_the_scores
        modes: all
        dropout: every_key_is_dropped_for_itself, equal_rows_are_dropped_apart
        contract: the_result_has_the_shape_of_the_question, a_batch_of_none_works, no_queries_get_no_rows, strides_do_not_matter,
            nothing_passed_in_is_changed, nothing_around_it_is_changed, a_second_call_gives_the_same,
            a_result_outlives_the_next_call, mask_and_flag_are_for_one_call, one_layer_serves_all_sizes,
            a_state_dict_carries_everything
        devices: what_is_made_is_made_where_x_is
        precision: all
        tools: all
    """

    root_cause = "score: implementation"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        length = (k.square().mean(dim=-1, keepdim=True) + EPS).sqrt()  # [B, h, S, 1]
        q = self.query_norm(q) / math.sqrt(self.d_head)
        return (q @ (k * self.key_norm.weight).mT) / length

    @staticmethod
    def visible(case: Case) -> bool:
        return _unhooked(case) or (chooses(case) if case.T == case.S else case.S > 1)


class LayerNormForRootMeanSquare(Fault, QKNormAttention):
    """Use a LayerNorm, which also takes off the mean.

    Why it is wrong:
        The direction along which all features are equal is lost from queries and keys. Weights have the same names and shapes, so
        they load; a head of one feature is left with nothing at all.

    When it shows:
        As soon as a query has a choice. And in self-attention to hooks on the norms, which never run.

    Seen in the wild:
        https://github.com/NVIDIA/Megatron-LM/pull/1261

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.18, the median relative error of the output.

    Smallest case:
        Case(qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        dependence: every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: every_submodule_is_called
    """

    root_cause = "score: normalization"

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        width = (self.d_head,)
        return F.layer_norm(q, width, self.query_norm.weight, eps=EPS), F.layer_norm(k, width, self.key_norm.weight, eps=EPS)

    @staticmethod
    def visible(case: Case) -> bool:
        return _unhooked(case) or chooses(case)


class LengthForRootMeanSquare(Fault, QKNormAttention):
    """Divide by the length of the vector instead of the root of its mean square.

    Why it is wrong:
        The two differ by sqrt(d_head), in queries and in keys, so all scores come out d_head times too small. Where this norm is
        meant, a learned temperature takes the place of the scale; here both are missing.

    When it shows:
        As soon as a query has a choice; for d_head = 1 only by the epsilon. And in self-attention to hooks on the norms, which
        never run.

    Seen in the wild:
        https://github.com/meta-llama/llama-models/pull/320
        https://github.com/lucidrains/x-transformers/issues/24

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.15, the median relative error of the output.

    Smallest case:
        Case(qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        dependence: every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: every_submodule_is_called
    """

    root_cause = "score: normalization"

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q, dim=-1) * self.query_norm.weight, F.normalize(k, dim=-1) * self.key_norm.weight

    @staticmethod
    def visible(case: Case) -> bool:
        return _unhooked(case) or chooses(case)


class EpsilonOutsideTheRoot(Fault, QKNormAttention):
    """Add the epsilon to the root instead of to the mean square.

    Why it is wrong:
        1e-6 below the root is about 1e-3 beside it, for vectors that are nearly zero. For all others the difference is a
        millionth, which no training notices, and no comparison with a generous tolerance.

    When it shows:
        As soon as a query has a choice, by about a millionth. And in self-attention to hooks on the norms, which never run.

    Seen in the wild:
        https://github.com/NVIDIA/TransformerEngine/pull/364
        https://github.com/fla-org/flash-linear-attention/pull/508

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        below 1e-6, the median relative error of the output.

    Smallest case:
        Case(qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: every_submodule_is_called
    """

    root_cause = "score: normalization"

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q_root, k_root = (x.square().mean(dim=-1, keepdim=True).sqrt() + EPS for x in (q, k))
        return q / q_root * self.query_norm.weight, k / k_root * self.key_norm.weight

    @staticmethod
    def visible(case: Case) -> bool:
        return _unhooked(case) or chooses(case)


class EpsilonUnderTheSum(Fault, QKNormAttention):
    """Add the epsilon to the sum of the squares, and take their mean afterwards.

    Why it is wrong:
        The epsilon is divided by d_head along with the sum. It is what a norm by length would do; behind a factor of sqrt(d_head)
        the two formulas look the same, and for vectors near zero they are not.

    When it shows:
        If a query has a choice, and d_head > 1, by about a millionth. And in self-attention to hooks on the norms, which never
        run.

    Seen in the wild:
        https://github.com/ml-explore/mlx-lm/pull/1624

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        below 1e-6, the median relative error of the output.

    Smallest case:
        Case(qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: every_submodule_is_called
    """

    root_cause = "score: normalization"

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q_length, k_length = ((x.square().sum(dim=-1, keepdim=True) + EPS).sqrt() for x in (q, k))
        root = math.sqrt(self.d_head)
        return q / q_length * root * self.query_norm.weight, k / k_length * root * self.key_norm.weight

    @staticmethod
    def visible(case: Case) -> bool:
        return _unhooked(case) or (chooses(case) and case.d_head > 1)


class WeightAddedToOne(Fault, QKNormAttention):
    """Multiply by 1 + weight, in the convention of another family of models.

    Why it is wrong:
        Some store the weight of a norm as what it differs from 1, and begin with zeros. Weights that begin with ones are twice as
        large as they should be by that reading, for queries and for keys.

    When it shows:
        As soon as a query has a choice. And in self-attention to hooks on the norms, which never run.

    Seen in the wild:
        https://github.com/linkedin/Liger-Kernel/issues/74
        https://github.com/pytorch/executorch/pull/19901
        https://github.com/Blaizzy/mlx-vlm/pull/2111

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.26, the median relative error of the output.

    Smallest case:
        Case(qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        variants: qk_norm_bounds_the_scores
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: every_submodule_is_called
    """

    root_cause = "variant: variant configuration"

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        width = (self.d_head,)
        return F.rms_norm(q, width, 1 + self.query_norm.weight, EPS), F.rms_norm(k, width, 1 + self.key_norm.weight, EPS)

    @staticmethod
    def visible(case: Case) -> bool:
        return _unhooked(case) or chooses(case)


class ScaledBeforeTheNorm(Fault, QKNormAttention):
    """Scale the queries by 1 / sqrt(d_head), as ever, and then normalise them.

    Why it is wrong:
        A norm undoes every factor in front of it. The line is there, in its usual place, and of no effect: scores are
        sqrt(d_head) times too large.

    When it shows:
        If a query has a choice, and d_head > 1.

    Seen in the wild:
        https://github.com/lucidrains/x-transformers/issues/190

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.11, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=2, qk_norm=True)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        variants: qk_norm_bounds_the_scores
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: implementation"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = self.normalise(q / math.sqrt(self.d_head), k)
        return q @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case) and case.d_head > 1
