"""Projections that read the wrong rows, the wrong tokens, or the wrong way round, going in and coming out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faults.facts import chooses, grouped, sees
from faults.fault import Fault
from properties.case import Case


class InterleavedProjection(Fault):
    """Read the packed rows head by head, each with its q, k and v, where they stand as all of q, all of k, all of v.

    Why it is wrong:
        Both layouts are in use and have the same shape. Read in the other one, head 0 takes the rows of q for its keys, and
        almost every row ends up in a role it was not trained for.

    When it shows:
        With more than one key/value head: with one, the two layouts are the same.

    Seen in the wild:
        https://github.com/JieShibo/MoLE/issues/9
        https://github.com/Lightning-AI/litgpt/pull/1013
        https://github.com/awslabs/slapo/pull/46

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        1, the median relative error of the output.

    Smallest case:
        Case(num_heads=2)

    Killed by:
        reference: all
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head, grouped_heads_are_full_heads_with_repeated_weights,
            each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "qkv projection: head interaction"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        group = self.num_heads // self.num_kv_heads

        def heads(tokens: Tensor) -> tuple[Tensor, ...]:
            packed = self.in_proj(tokens).unflatten(-1, (self.num_kv_heads, group + 2, self.d_head))
            return packed.split([group, 1, 1], dim=-2)  # type: ignore[no-any-return]

        q, _, _ = heads(x)
        _, k, v = heads(x if context is None else context)
        return q.flatten(2), k.flatten(2), v.flatten(2)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.g > 1 and (sees(case))


class ValuesFromTheKeyRows(Fault):
    """Project the values with the rows of the keys.

    Why it is wrong:
        Three nearly equal lines, the second pasted for the third. What is mixed is what was compared; the rows of v are never
        read and get no gradient.

    When it shows:
        Whenever a query sees a key.

    Seen in the wild:
        https://github.com/yflyzhang/AnnotatedTransformer/issues/1

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        1.3, the median relative error of the output.

    Smallest case:
        Case()

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula, two_keys_share_by_the_sigmoid
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        heads: each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly
        dependence: every_visible_value_counts, every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
        training: every_parameter_learns
    """

    root_cause = "qkv projection: dimension"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().project_in(x, context)
        return q, k, k

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)


class KeysFromTheValueRows(Fault):
    """Project the keys with the rows of the values.

    Why it is wrong:
        The packed matrix is cut one piece too far, so queries are compared with what was to be mixed. The weights still sum
        to 1, and the values are the right ones.

    When it shows:
        For a query that sees two keys or more.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/40257

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.41, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        algebra: values_enter_linearly
        dependence: every_visible_key_counts, every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
        training: every_parameter_learns
    """

    root_cause = "qkv projection: dimension"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, _, v = super().project_in(x, context)
        return q, v, v

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class SwappedKeysAndValues(Fault):
    """Unpack the projection as q, v, k where its rows stand as q, k, v.

    Why it is wrong:
        Only names are exchanged, and a layer trained with them exchanged is as good as any. Weights that come from elsewhere
        know nothing of it.

    When it shows:
        Whenever a query sees a key.

    Seen in the wild:
        https://github.com/jsbaan/transformer-from-scratch/issues/1

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        1.2, the median relative error of the output.

    Smallest case:
        Case()

    Killed by:
        reference: all
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        heads: each_query_head_reads_its_own_group
        algebra: a_shift_of_all_keys_changes_nothing, values_enter_linearly
        dependence: every_visible_value_counts, every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "qkv projection: dimension"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, v, k = super().project_in(x, context)
        return q, k, v

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)


class UntransposedWeight(Fault):
    """Multiply the tokens by W_Q, W_K and W_V where the transposed matrices are meant.

    Why it is wrong:
        `nn.Linear` keeps its weight as [out, in], other libraries as [in, out]. The matrices are square, so the product of
        the wrong ones has the right shape.

    When it shows:
        Silently for d_model > 1. With grouped heads the matrices of k and v are not square, and it raises. In self-attention no
        hook on `in_proj` runs, whatever the sizes.

    Seen in the wild:
        https://github.com/vllm-project/vllm/pull/44113
        https://github.com/skyzh/tiny-llm/issues/41

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0.76, the median relative error of the output; on 10 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case()

    Killed by:
        reference: all
        rows: all
        symmetry: all
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared,
            empty_rows_harm_no_gradient
        causality: the_future_does_not_change_the_past, a_prefix_gives_the_first_rows, the_flag_means_its_mask
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

    root_cause = "qkv projection: dimension"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        keys = x if context is None else context
        weight_q, weight_k, weight_v = self.in_proj.weight.split(self.widths)
        q, k, v = x @ weight_q, keys @ weight_k, keys @ weight_v
        if self.in_proj.bias is not None:
            q, k, v = (part + bias for part, bias in zip((q, k, v), self.in_proj.bias.split(self.widths), strict=True))
        return q, k, v

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys is None or grouped(case) or (case.d_model > 1 and sees(case))


class QueriesFromTheContext(Fault):
    """Project the queries from the context, too.

    Why it is wrong:
        In cross-attention x asks and the context answers. Here the context asks itself, and x is not read at all. In
        self-attention there is no difference to be seen.

    When it shows:
        In cross-attention: it raises for T != S, else it shows for a query that sees two keys or more.

    Seen in the wild:
        https://github.com/Khaliladib11/Transformer-from-scratch/issues/1
        https://github.com/Khaliladib11/Transformer-from-scratch/pull/2

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0.29, the median relative error of the output; on 12 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(keys=2)

    Killed by:
        reference: all
        rows: all
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            any_key_may_come_first
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
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
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back,
            autocast_rounds_and_no_more, vmap_is_a_loop
        training: every_parameter_learns
    """

    root_cause = "qkv projection: dimension"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        return super().project_in(x if context is None else context, None)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys is not None and (case.T != case.S or chooses(case))


class ContextIgnored(Fault):
    """Accept a context, and take keys and values from x all the same.

    Why it is wrong:
        Cross-attention is run as self-attention. With a context as long as x, the result has the right shape and says nothing
        about the context.

    When it shows:
        In cross-attention: the shapes do not fit for T != S, else whenever a query sees a key.

    Seen in the wild:
        https://github.com/vllm-project/vllm/pull/38321

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        1, the median relative error of the output; on 8 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(keys=1)

    Killed by:
        reference: all
        rows: all
        symmetry: permuted_queries_give_permuted_rows, permuted_keys_change_nothing, a_query_alone_gives_its_own_row,
            any_key_may_come_first
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
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
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_copy_stands_alone, a_saved_layer_comes_back,
            autocast_rounds_and_no_more, vmap_is_a_loop
        training: every_parameter_learns
    """

    root_cause = "variant: dynamic dispatch"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        return super().project_in(x, None)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys is not None and (case.T != case.S or sees(case))


class ContextOfEqualLengthIgnored(Fault):
    """Tell self-attention from cross-attention by the lengths.

    Why it is wrong:
        "As many keys as queries" is true of self-attention, and now and then of a context. For that one length the context is
        dropped; for every other everything is fine, which makes it a pleasure to find.

    When it shows:
        In cross-attention with T = S, whenever a query sees a key.

    Seen in the wild:
        https://github.com/huggingface/peft/issues/565

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        1.1, the median relative error of the output.

    Smallest case:
        Case(keys=1)

    Killed by:
        reference: all
        rows: weights_explain_the_output, outputs_stay_among_the_values
        causality: no_gradient_flows_from_hidden_keys
        dependence: every_visible_key_counts, every_visible_value_counts, a_nan_that_is_seen_comes_out
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "variant: dynamic dispatch"

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if context is not None and context.shape == x.shape:
            context = None
        return super().project_in(x, context)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys == case.T and (sees(case))


class MissingOutProjection(Fault):
    """Return the merged heads as they are, without the out-projection.

    Why it is wrong:
        The heads lie side by side and are never mixed: feature j of the output comes from head j // d_head alone. `out_proj`
        exists, is saved and loaded, and trains nothing.

    When it shows:
        Whenever a query sees a key, or there is a bias; and in the hooks on `out_proj`, which do not run.

    Seen in the wild:
        https://github.com/Kyubyong/transformer/issues/117
        https://github.com/jwallbridge/translob/issues/4
        https://github.com/stevezheng23/sequence_labeling_tf/pull/83

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        1.3, the median relative error of the output.

    Smallest case:
        Case()

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula
        rows: weights_explain_the_output
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head
        dependence: every_parameter_counts
        modes: training_projects_out_as_well
        precision: rounding_explains_the_error
        tools: every_submodule_is_called, autocast_rounds_and_no_more
        training: every_parameter_learns
    """

    root_cause = "qkv projection: head interaction"

    def project_out(self, merged: Tensor) -> Tensor:
        return merged

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys is None or sees(case) or case.bias  # hooks are looked for in self-attention


class TransposedOutProjection(Fault):
    """Multiply the merged heads by W_O where the transposed matrix is meant.

    Why it is wrong:
        W_O is square, with one head or many, grouped or not: the wrong product always has the right shape.

    When it shows:
        For d_model > 1, whenever a query sees a key; and in the hooks on `out_proj`, which do not run.

    Seen in the wild:
        https://github.com/vllm-project/vllm/pull/44113

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        1.1, the median relative error of the output.

    Smallest case:
        Case()

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula
        rows: weights_explain_the_output
        heads: heads_may_be_permuted, a_head_is_a_layer_of_one_head
        modes: training_projects_out_as_well
        precision: rounding_explains_the_error
        tools: every_submodule_is_called
    """

    root_cause = "qkv projection: dimension"

    def project_out(self, merged: Tensor) -> Tensor:
        out = merged @ self.out_proj.weight
        return out if self.out_proj.bias is None else out + self.out_proj.bias

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys is None or (case.d_model > 1 and sees(case))  # hooks are looked for in self-attention


class HalfHonouredBias(Fault):
    """Hand the `bias` flag to the in-projection, and let the out-projection have its bias anyway.

    Why it is wrong:
        `bias=False` is a promise about the whole layer. Here values of zero do not give zero, and a state dict from a layer
        without biases leaves one at whatever the constructor drew.

    When it shows:
        Whenever the layer is to have no bias.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/52545

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.28, the median relative error of the output.

    Smallest case:
        Case()

    Killed by:
        reference: output_is_the_formula, two_keys_share_by_the_sigmoid
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        masking: empty_rows_are_as_declared
        heads: the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: values_enter_linearly, no_bias_and_zeros_give_zeros
        modes: dropout_drops_single_weights, training_projects_out_as_well, the_gradient_is_that_of_the_kept_weights
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
        self.out_proj = nn.Linear(d_model, d_model, device=device, dtype=dtype)

    @staticmethod
    def visible(case: Case) -> bool:
        return not case.bias
