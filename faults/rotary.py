"""Rotary positions: what turns, with whom, how far, and by whose position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn import RotaryAttention
from faults.facts import chooses, sees, visible_keys
from faults.fault import Fault
from properties.case import Case
from properties.inputs import make_inputs


def _width(case: Case) -> int:
    """How many features of a head turn."""
    return case.rotary_width or case.d_head


def _has_several_pairs(case: Case) -> bool:
    """Does a head turn more than one pair? The first turns one radian a token, whatever the width and the base."""
    return _width(case) > 2


def _leaves_a_rest(case: Case) -> bool:
    """Are there features that do not turn?"""
    return _width(case) < case.d_head


class InterleavingIgnored(Fault, RotaryAttention):
    """Pair each feature with the one half a head further on, whatever `interleaved` says.

    Why it is wrong:
        Either pairing is a rotation, obeys every symmetry and can be trained. The weights belong to the one they were trained
        with: under the other, features meet that have never met, and turn at a rate that was another's.

    When it shows:
        With interleaved pairs, if there are at least two, and a query has a choice. A single pair is the same either way.

    Seen in the wild:
        https://github.com/huggingface/nanotron/pull/427
        https://github.com/ggml-org/llama.cpp/pull/22611

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.14, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary_interleaved', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "variant: variant configuration"

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, dim=-1)
        return a, b

    @staticmethod
    def visible(case: Case) -> bool:
        return case.placing == "rotary_interleaved" and _has_several_pairs(case) and chooses(case)


class NeighboursForHalves(Fault, RotaryAttention):
    """Pair neighbouring features, though the weights were permuted for halves.

    Why it is wrong:
        Checkpoints are stored for the one pairing and loaded into code with the other; a converter that reorders the rows of
        the query and key weights makes up for it. Here it has run, or should not have, and nobody has told the code.

    When it shows:
        With pairs half a head apart, if there are at least two, and a query has a choice.

    Seen in the wild:
        https://github.com/ggml-org/llama.cpp/pull/3364
        https://github.com/ggml-org/llama.cpp/issues/2376

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.1, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "variant: variant configuration"

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., 0::2], x[..., 1::2]

    @staticmethod
    def visible(case: Case) -> bool:
        return case.placing == "rotary" and _has_several_pairs(case) and chooses(case)


class AnglesForTheOtherPairing(Fault, RotaryAttention):
    """Write the angle of each pair out for its two features, but where the other pairing has them.

    Why it is wrong:
        `repeat` lays the angles side by side, `repeat_interleave` one next to itself. With the wrong one the two members of a
        pair turn by different angles. That is no rotation: lengths change, and scores depend on where a token stands, not on
        how far it is from another.

    When it shows:
        If at least two pairs turn, and a query has a choice.

    Seen in the wild:
        https://github.com/facebookresearch/vjepa2/pull/15
        https://github.com/raiyanyahya/how-to-train-your-gpt/issues/6
        https://github.com/xiangking/ark-nlp/issues/47

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.18, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: a_shift_of_all_positions_changes_nothing, one_position_for_all_is_none, far_out_positions_are_told_apart,
            left_padding_changes_nothing
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: relative position"

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        turning, still = x.split([self.rotary_width, self.d_head - self.rotary_width], dim=-1)
        angles = self.angles(positions)
        angles = torch.cat([angles, angles], dim=-1) if self.interleaved else angles.repeat_interleave(2, dim=-1)
        cos_a, cos_b = self.pair(angles.cos().to(x.dtype))
        sin_a, sin_b = self.pair(angles.sin().to(x.dtype))
        a, b = self.pair(turning)
        return torch.cat([self.unpair(a * cos_a - b * sin_a, a * sin_b + b * cos_b), still], dim=-1)

    @staticmethod
    def visible(case: Case) -> bool:
        return _has_several_pairs(case) and chooses(case)


class TurnedTheOtherWay(Fault, RotaryAttention):
    """Put the minus of the rotation on the other sine, so that everything turns clockwise.

    Why it is wrong:
        It is a rotation still, and only distances count: to train with it is as good. But a query now sees what lies before it
        where it saw what lies behind it. Weights trained with the one are led astray by the other, and every test that compares
        the layer with itself passes.

    When it shows:
        As soon as a query has a choice.

    Seen in the wild:
        https://github.com/karpathy/nanochat/pull/489
        https://github.com/trymirai/lalamo/pull/268

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.15, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: relative position"

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        turning, still = x.split([self.rotary_width, self.d_head - self.rotary_width], dim=-1)
        angles = self.angles(positions)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = self.pair(turning)
        return torch.cat([self.unpair(a * cos + b * sin, b * cos - a * sin), still], dim=-1)

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class TurnedByTheHead(Fault, RotaryAttention):
    """Take the head axis for that of the tokens: every head is turned by its own number.

    Why it is wrong:
        The module was written for `[B, T, h, d_head]` and gets `[B, h, T, d_head]`. Any sizes fit. All tokens of a head turn by
        the same angle, which is to say that none does: there is no order left, and training converges all the same.

    When it shows:
        As soon as a query has a choice.

    Seen in the wild:
        https://github.com/mlfoundations/open_lm/issues/4

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.16, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        heads: grouped_heads_are_full_heads_with_repeated_weights
        positions: position_zero_changes_nothing, one_position_for_all_is_none, every_position_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: indexing"

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)  # of axis 1, where the tokens are to be
        return super().rotate(x.transpose(1, 2), places).transpose(1, 2)

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class QueriesNotTurned(Fault, RotaryAttention):
    """Turn the keys, and leave the queries as they are.

    Why it is wrong:
        Only of two rotations does the product keep the difference. Of one it keeps the position: a key is scored by where it
        stands in the sequence, and not by how far it is from the query.

    When it shows:
        As soon as a query has a choice, wherever the sequence begins.

    Seen in the wild:
        https://github.com/vllm-project/vllm-omni/pull/3828

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.12, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: a_shift_of_all_positions_changes_nothing, one_position_for_all_is_none, far_out_positions_are_told_apart,
            left_padding_changes_nothing
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: relative position"

    def place(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, self.rotate(k, positions), v

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class KeysTurnedBackwards(Fault, RotaryAttention):
    """Turn the keys in the opposite sense, so that the positions are subtracted.

    Why it is wrong:
        They are subtracted already: the scalar product of two vectors sees the angle between them. Turned against each other,
        it sees the sum of their positions, and tokens far into a text find each other far away.

    When it shows:
        As soon as a query has a choice.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/30900

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.18, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: a_shift_of_all_positions_changes_nothing, one_position_for_all_is_none, far_out_positions_are_told_apart,
            left_padding_changes_nothing
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: relative position"

    def place(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.rotate(q, positions), self.rotate(k, -positions), v

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class ValuesTurnedToo(Fault, RotaryAttention):
    """Turn the values along with queries and keys.

    Why it is wrong:
        Nothing turns them back. What a token has to say depends on where it stands, and what a query gathers is a mix of
        differently turned vectors.

    When it shows:
        Wherever a key is seen: at position 0 it is not turned, but another position may be asked for.

    Seen in the wild:
        https://github.com/lucidrains/x-transformers/issues/182
        https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/251

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.53, the median relative error of the output.

    Smallest case:
        Case(d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        heads: each_query_head_reads_its_own_group
        positions: a_shift_of_all_positions_changes_nothing, one_position_for_all_is_none, far_out_positions_are_told_apart
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: relative position"

    def place(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.rotate(q, positions), self.rotate(k, positions), self.rotate(v, positions)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)


class PositionsGivenAreIgnored(Fault, RotaryAttention):
    """Count the tokens as they come, whatever positions are given.

    Why it is wrong:
        Tokens that come as they are counted need no positions. They are given where that is not so: behind padding, after a
        cache, in a packed row.

    When it shows:
        As soon as a query has a choice: then positions that are other than counted make a difference.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/29583

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0 in the median, 0.48 at most, the relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula
        positions: position_zero_changes_nothing, one_position_for_all_is_none, every_position_counts
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: indexing"

    def place(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().place(q, k, v, torch.arange(q.shape[2], device=q.device))

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class OneRowOfPositions(Fault, RotaryAttention):
    """Place all samples of a batch by the positions of the first.

    Why it is wrong:
        In a batch of ragged lengths each sample has positions of its own. One row of them broadcasts over all without a word.

    When it shows:
        If the distance between a query and one of several keys it sees is another in its sample than in the first.

    Seen in the wild:
        https://github.com/unslothai/unsloth/pull/4078
        https://github.com/NVIDIA/TransformerEngine/pull/536

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.067, the median relative error of the output.

    Smallest case:
        Case(batch=2, queries=3, d_head=6, placing='rotary', rotary_width=4, positions='given')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        batch: a_sample_alone_gives_its_own_rows
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: indexing"

    def angles(self, positions: Tensor) -> Tensor:
        return super().angles(positions if positions.dim() == 1 else positions[:1])

    @staticmethod
    def visible(case: Case) -> bool:
        places, _ = make_inputs(case).places()
        distances = places[:, None, :, None] - places[:, None, None, :]  # [B, 1, T, S]
        keys = visible_keys(case)
        several = keys & (keys.sum(-1, keepdim=True) > 1)
        return bool((several & (distances != distances[:1])).any())


class TableKeptByLength(Fault, RotaryAttention):
    """Keep the angles of the first call for all later ones of the same length.

    Why it is wrong:
        The same number of tokens need not stand at the same positions. Whoever comes first, often a warm-up or the first
        sample, decides for all.

    When it shows:
        As soon as a query has a choice, in the second call with other positions. One set of positions is right for ever:
        only laws that hand in others of the same length see it.

    Seen in the wild:
        https://github.com/lucidrains/rotary-embedding-torch/issues/11

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        batch: a_sample_alone_gives_its_own_rows
        positions: every_position_counts
    """

    root_cause = "positional encoding: indexing"

    def angles(self, positions: Tensor) -> Tensor:
        tables: dict[Any, Tensor] = self.__dict__.setdefault("tables", {})
        if positions.shape not in tables:
            tables[positions.shape] = super().angles(positions)
        return tables[positions.shape]

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class PartialWidthDropped(Fault, RotaryAttention):
    """Turn all features of every head, and never pass on that it should be some of them.

    Why it is wrong:
        The width is read only where some other option is set, and is lost otherwise. Features that should carry no position
        carry one, and those that should turn do so at other rates.

    When it shows:
        If only a part should turn, and a query has a choice.

    Seen in the wild:
        https://github.com/InternLM/lmdeploy/pull/3861

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.072, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "variant: variant configuration"

    def __init__(self, d_model: int, num_heads: int, *, rotary_width: int | None = None, **options: Any) -> None:
        super().__init__(d_model, num_heads, **options)

    @staticmethod
    def visible(case: Case) -> bool:
        return _leaves_a_rest(case) and chooses(case)


class FrequenciesOfTheWholeHead(Fault, RotaryAttention):
    """Make the table of frequencies for the whole head, and turn a part of it.

    Why it is wrong:
        The table has a column for pairs that do not exist. Several pairs refuse it. A single one is broadcast against it, and
        comes back as several, each turned at another rate: the head has grown, and the scores with it.

    When it shows:
        If only a part turns: loudly if that is several pairs, and silently if it is one and a query has a choice.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/48630

    Symptom:
        Either: on some cases it raises, on others the result is silently wrong.

    Severity:
        0.28, the median relative error of the output; on 5 of 16 random cases it raises or gives NaN.

    Smallest case:
        Case(d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, hidden_keys_get_no_weight, constant_values_come_back, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant, a_mask_may_be_written_in_any_form, empty_rows_are_as_declared
        causality: no_gradient_flows_from_hidden_keys, a_prefix_gives_the_first_rows, the_flag_means_its_mask
        batch: a_sample_alone_gives_its_own_rows
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, grouped_heads_are_full_heads_with_repeated_weights
        algebra: values_enter_linearly
        dependence: every_visible_key_counts, every_visible_value_counts, every_parameter_counts, a_nan_that_is_seen_comes_out
        derivatives: gradients_are_slopes_of_the_output
        positions: a_shift_of_all_positions_changes_nothing, positions_are_counted_if_none_are_given,
            position_zero_changes_nothing, one_position_for_all_is_none, every_position_counts, left_padding_changes_nothing
        modes: all
        dropout: no_draw_is_the_evaluation, every_head_drops_for_itself, every_key_is_dropped_for_itself
        contract: one_query_and_one_key_work, a_batch_of_none_works, strides_do_not_matter, nothing_around_it_is_changed,
            a_state_dict_carries_everything
        precision: rounding_explains_the_error, finite_in_gives_finite_gradients
        tools: checkpointing_changes_nothing, given_parameters_are_used, a_saved_layer_comes_back, every_submodule_is_called,
            autocast_rounds_and_no_more, vmap_is_a_loop
    """

    root_cause = "qkv projection: dimension"

    def frequencies(self, device: torch.device) -> Tensor:
        even = torch.arange(0, self.d_head, 2, dtype=torch.float64, device=device)
        return self.base ** (-even / self.d_head)

    @staticmethod
    def visible(case: Case) -> bool:
        return _leaves_a_rest(case) and (_has_several_pairs(case) or chooses(case))


class FrequenciesForTheWidthOfAHead(Fault, RotaryAttention):
    """Divide the exponent of the frequencies by the width of the head, not by that of the part that turns.

    Why it is wrong:
        The frequencies of a part run from 1 to 1/base just as those of a whole head do. These stop half-way, and the slowest
        pair, which should tell the far from the very far, comes round too early.

    When it shows:
        If only a part turns, in several pairs, and a query has a choice. The first pair has frequency 1 in any case.

    Seen in the wild:
        https://github.com/pie-project/pie/issues/602

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.0037, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "positional encoding: interpolation"

    def frequencies(self, device: torch.device) -> Tensor:
        even = torch.arange(0, self.rotary_width, 2, dtype=torch.float64, device=device)
        return self.base ** (-even / self.d_head)

    @staticmethod
    def visible(case: Case) -> bool:
        return _leaves_a_rest(case) and _has_several_pairs(case) and chooses(case)


class ExponentWithoutTheTwo(Fault, RotaryAttention):
    """Number the pairs 0, 1, 2, ... in the exponent, where the formula has 0, 2, 4, ...

    Why it is wrong:
        Some write `arange(0, width, 2) / width`, some `arange(width / 2) / (width / 2)`. Half of the one and half of the other
        spans only the root of the base: the slowest pair is a hundred times too fast.

    When it shows:
        If at least two pairs turn, and a query has a choice.

    Seen in the wild:
        https://github.com/rasbt/LLMs-from-scratch/issues/410
        https://github.com/hkproj/pytorch-llama/issues/3

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.01, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: interpolation"

    def frequencies(self, device: torch.device) -> Tensor:
        pairs = torch.arange(self.rotary_width // 2, dtype=torch.float64, device=device)
        return self.base ** (-pairs / self.rotary_width)

    @staticmethod
    def visible(case: Case) -> bool:
        return _has_several_pairs(case) and chooses(case)


class PositionDividedByTheFrequency(Fault, RotaryAttention):
    """Divide the position by the frequency: what is called a frequency in one place is a wave length in another.

    Why it is wrong:
        The slow pairs become the fast ones, and turn thousands of times from one token to the next. The first pair, and the
        first token, are right.

    When it shows:
        If at least two pairs turn, and a query has a choice.

    Seen in the wild:
        https://github.com/xlite-dev/LeetCUDA/issues/289

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.056, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: interpolation"

    def angles(self, positions: Tensor) -> Tensor:
        places = positions.to(torch.float64) / self.stretch
        angles = places[..., None] / self.frequencies(positions.device)
        return angles.unsqueeze(-3)

    @staticmethod
    def visible(case: Case) -> bool:
        return _has_several_pairs(case) and chooses(case)


class FrequenciesLeftAtZero(Fault, RotaryAttention):
    """Materialise the buffer of the frequencies, and never fill it.

    Why it is wrong:
        A model is built on the meta device, and what is not among its parameters comes to life as zeros. Nothing turns, and
        the words of a text are a bag of words.

    When it shows:
        As soon as a query has a choice.

    Seen in the wild:
        https://github.com/pytorch/executorch/pull/19627

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.11, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: every_position_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "qkv projection: parameter initialization"

    def frequencies(self, device: torch.device) -> Tensor:
        return super().frequencies(device).zero_()

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class FrequenciesInHalf(Fault, RotaryAttention):
    """Keep the frequencies in half precision, to which they were cast along with the model.

    Why it is wrong:
        Three digits are enough for the first tokens. The error of a frequency is multiplied by the position: thousands of
        tokens on, the angle is anything. Casting up what was cast down brings nothing back.

    When it shows:
        If at least two pairs turn, and a query has a choice. The first frequency is 1, and has no digits to lose.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/25681
        https://github.com/Modalities/modalities/pull/462

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        below 1e-5, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "kernel: numerical precision"

    def frequencies(self, device: torch.device) -> Tensor:
        return super().frequencies(device).to(torch.bfloat16).to(torch.float64)

    @staticmethod
    def visible(case: Case) -> bool:
        return _has_several_pairs(case) and chooses(case)


class PositionsInHalf(Fault, RotaryAttention):
    """Convert the positions to half precision before anything is made of them.

    Why it is wrong:
        bfloat16 is exact up to 256. Then every other number is missing, and from 2048 on 15 of 16: tokens that far out share
        one position. Where automatic casting is on, nobody has written the conversion.

    When it shows:
        As soon as a query has a choice, and stands far out. Near the beginning half precision can count: only the law
        that goes far out sees it.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/29285

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4)

    Killed by:
        positions: far_out_positions_are_told_apart
    """

    root_cause = "kernel: numerical precision"

    def angles(self, positions: Tensor) -> Tensor:
        places = positions.to(torch.bfloat16).to(torch.float64) / self.stretch
        angles = places[..., None] * self.frequencies(positions.device)
        return angles.unsqueeze(-3)

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class StretchForgotten(Fault, RotaryAttention):
    """Make the angles of the positions as they are, and forget that they are to be stretched.

    Why it is wrong:
        The option is read, and the faster path never asks for it; or both tables are made, and the wrong one is returned.
        Short texts hardly tell the difference. Beyond the length that was trained, angles are met that nobody has met before.

    When it shows:
        If there is a stretch, and a query has a choice.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/32330
        https://github.com/unslothai/unsloth/pull/6197

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.12, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4, stretch=4.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: interpolation"

    def angles(self, positions: Tensor) -> Tensor:
        angles = positions.to(torch.float64)[..., None] * self.frequencies(positions.device)
        return angles.unsqueeze(-3)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.stretch != 1 and chooses(case)


class BaseStretchedForPositions(Fault, RotaryAttention):
    """Stretch the base instead of the positions.

    Why it is wrong:
        Both reach further than in training. This one ("NTK-aware") slows only the slow pairs, that one ("position
        interpolation") all alike. A model that was tuned with the one and runs with the other is tuned for nothing.

    When it shows:
        If there is a stretch, and a query has a choice: the first pair, which should be slower, is not.

    Seen in the wild:
        https://github.com/vllm-project/vllm/issues/3488

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.13, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4, stretch=4.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: interpolation"

    def angles(self, positions: Tensor) -> Tensor:
        slowest = max(self.rotary_width - 2, 1)
        pairs = torch.arange(self.rotary_width // 2, dtype=torch.float64, device=positions.device)
        slower = self.frequencies(positions.device) * self.stretch ** (-2 * pairs / slowest)
        angles = positions.to(torch.float64)[..., None] * slower
        return angles.unsqueeze(-3)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.stretch != 1 and chooses(case)


class KeysNotStretched(Fault, RotaryAttention):
    """Stretch the positions of the queries only: the keys were turned when there was no stretch yet.

    Why it is wrong:
        A table is exchanged once a text gets long, and the keys that are cached were turned with the old one. Query and key at
        the same position no longer agree that it is the same.

    When it shows:
        If there is a stretch, and a query has a choice.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/33129

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.15, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=6, placing='rotary', rotary_width=4, stretch=4.0)

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        positions: a_shift_of_all_positions_changes_nothing, one_position_for_all_is_none, far_out_positions_are_told_apart
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: interpolation"

    def place(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.rotate(q, positions), self.rotate(k, positions * self.stretch), v

    @staticmethod
    def visible(case: Case) -> bool:
        return case.stretch != 1 and chooses(case)
