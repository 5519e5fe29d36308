"""The softmax as fast kernels compute it: key by key, with a running maximum, in powers of two, and with care for what is NaN."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from faults.facts import chooses, has_flag, visible_keys
from faults.fault import Fault
from properties.case import Case


class HiddenFirstKeyNan(Fault):
    """Go through the keys one by one, rescale the sum whenever there is a new maximum, and start from a maximum of -inf.

    Why it is wrong:
        A key that is hidden leaves the maximum at -inf, and the sum is rescaled by exp(-inf - -inf), which is NaN, and stays NaN
        whatever follows. The row is not empty, so whatever is done about empty rows does not help.

    When it shows:
        If a query sees a key, and not the first one. In a kernel that takes keys by the block, if it sees none of the first
        block: hence with hundreds of tokens, under a mask that hides the beginning.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/127055

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        On 12 of 16 random cases it raises or gives NaN; on the others 0: the output of a first call in evaluation is right.

    Smallest case:
        Case(queries=2, mask='causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: rows_sum_to_one, no_weight_is_negative, hidden_keys_get_no_weight, constant_values_come_back,
            outputs_stay_among_the_values
        symmetry: permuted_keys_change_nothing, permuted_tokens_give_permuted_rows, any_key_may_come_first
        masking: hidden_keys_can_be_deleted, empty_rows_harm_no_gradient
        causality: no_gradient_flows_from_hidden_keys
        batch: padding_changes_nothing
        heads: each_query_head_reads_its_own_group
        algebra: no_bias_and_zeros_give_zeros
        derivatives: gradients_are_slopes_of_the_output
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: all
        tools: autocast_rounds_and_no_more
    """

    root_cause = "kernel: numerical precision"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        largest = torch.full_like(scores[..., :1], -math.inf)
        total = torch.zeros_like(largest)
        for key in scores.split(1, dim=-1):
            before, largest = largest, torch.maximum(largest, key)
            total = total * (before - largest).exp() + (key - largest).exp()
        weights = (scores - largest).exp() / total
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        keys = visible_keys(case)
        hidden = ~keys & keys.any(-1, keepdim=True)
        return bool(hidden[..., 0].any()) or (_turns(case) and bool(hidden.any()))


class ScaleAgainForEveryKey(Fault):
    """Compare the queries with one key after another, and scale them inside the loop.

    Why it is wrong:
        The variable is the same all the time: the first key is compared with queries that are scaled once, the next with queries
        that are scaled twice, and from some key on all scores are 0.

    When it shows:
        For d_head > 1, if some query has a choice between keys. In a kernel that takes keys by the block, only with more keys
        than are in a block.

    Seen in the wild:
        https://github.com/flagos-ai/FlagGems/pull/424

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.11, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=2)

    Killed by:
        reference: all
        symmetry: permuted_keys_change_nothing, permuted_tokens_give_permuted_rows, any_key_may_come_first
        masking: hidden_keys_can_be_deleted
        batch: padding_changes_nothing
        heads: a_head_is_a_layer_of_one_head
        algebra: a_shift_of_all_keys_changes_nothing
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: implementation"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        columns = []
        for key in k.split(1, dim=-2):
            q = q / math.sqrt(self.d_head)
            columns.append(q @ key.mT)
        return torch.cat(columns, dim=-1)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.d_head > 1 and chooses(case)


class PowersOfTwo(Fault):
    """Compute the softmax with `exp2`, which is quicker than `exp`, and forget that scores must be multiplied by log2(e) first.

    Why it is wrong:
        2**s is exp(s * log(2)): all weights are those of scores a third smaller. They are positive, sum to 1, and favour the
        right keys; they do so less than they should.

    When it shows:
        If some query has a choice between keys. As for all wrong scales, every symmetry holds.

    Seen in the wild:
        https://github.com/iree-org/iree-turbine/pull/480

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.071, the median relative error of the output.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: all
        algebra: a_bias_multiplies_the_odds
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "score: implementation"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        powers = (scores - scores.amax(dim=-1, keepdim=True)).exp2()
        weights = powers / powers.sum(dim=-1, keepdim=True)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class MaximumOverHiddenKeys(Fault):
    """Take the largest score off every row before the mask, so that hidden keys have a say in which it is.

    Why it is wrong:
        The softmax does not see a shift of finite size. A hidden key can score anything: taking 1e30 off the others leaves them
        all equal, and the query, instead of choosing, averages.

    When it shows:
        If a query has a choice between keys, and there is one that it may not see, whose score is so large. With contents as
        they usually are nothing shows, and the law about the contents of hidden keys is alone to see it.

    Seen in the wild:
        https://github.com/abisee/pointer-generator/issues/88

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(queries=3, mask='causal')

    Killed by:
        masking: content_of_hidden_keys_is_irrelevant
    """

    root_cause = "kernel: numerical precision"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        scores = scores - scores.detach().amax(dim=-1, keepdim=True)
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        keys = visible_keys(case)
        unseen = (~keys).all(1, keepdim=True)  # [B, 1, T, S]
        if case.keys is None:
            unseen = unseen & ~torch.eye(case.T, dtype=torch.bool)  # what it holds itself is not to be changed
        return bool((unseen.any(-1) & (keys.sum(-1) > 1)).any())


class NanTakenForAnEmptyRow(Fault):
    """Replace NaN in the weights by 0, to be on the safe side with empty rows.

    Why it is wrong:
        Empty rows are not the only ones that are NaN: so are those of a query that has overflowed, or was NaN when it came in.
        They get a context of zeros, which passes for a result, and the mistake surfaces far from where it was made.

    When it shows:
        If a query that is NaN has a choice between keys that are not. In self-attention the token is a value, too, and 0 times
        NaN gives it away. For numbers nothing shows, and only the law that sends in NaN sees it.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/141128

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(keys=2)

    Killed by:
        dependence: a_nan_that_is_seen_comes_out
    """

    root_cause = "kernel: numerical precision"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = scores.softmax(dim=-1).nan_to_num(0.0)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys is not None and chooses(case)


# Facts.


def _turns(case: Case) -> bool:
    """Do laws put the keys of this case into another order? Not with the flag, nor where a context has as many tokens as x."""
    return not has_flag(case) and (case.keys is None or case.T != case.S)
