"""A relative position bias: which bucket a distance falls into, and which number of the table is added."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn import RelativeBiasAttention
from attn.multihead import MultiHeadAttention
from attn.relative import distances
from faults.facts import visible_keys
from faults.fault import Fault
from properties.case import Case
from properties.mechanisms import BUCKETS, bucket


def _buckets(case: Case) -> Tensor:
    """The bucket of each pair of tokens, int `[T, S]`."""
    return torch.tensor([[bucket(d) for d in row] for row in distances(case.T, case.S).tolist()])


def _entries(case: Case) -> Tensor:
    """Which number of the table is added to each score, counted row by row, int `[h, T, S]`."""
    return _buckets(case) * case.num_heads + torch.arange(case.num_heads)[:, None, None]


def _misled(case: Case, entries: Tensor) -> bool:
    """Does it matter that these numbers of the table are added? Not if all keys of a query are off by the same."""
    right = _entries(case)
    off = torch.where(entries == right, -1, right * BUCKETS * case.num_heads + entries).expand(case.batch, -1, -1, -1)
    keys = visible_keys(case)
    most = off.masked_fill(~keys, -2).amax(-1)
    least = off.masked_fill(~keys, int(off.max()) + 1).amin(-1)
    return bool((most > least).any())


class DistanceTheOtherWay(Fault, RelativeBiasAttention):
    """Look up the distances transposed, from the key to the query.

    Why it is wrong:
        What lies before a query counts as ahead of it. A causal table has no rows for that: all that can be seen falls into the
        bucket of distance 0, and what a query cannot see has all the others.

    When it shows:
        If a query sees keys in different buckets.

    Seen in the wild:
        https://github.com/nntrainer/nntrainer/pull/3982

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.17, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal', placing='relative_bias')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "positional encoding: relative position"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = MultiHeadAttention.score(self, q, k)
        buckets = self.bucket(distances(*scores.shape[-2:], device=q.device).mT)
        return scores + self.table[buckets].movedim(-1, 0)

    @staticmethod
    def visible(case: Case) -> bool:
        return _misled(case, torch.arange(case.num_heads)[:, None, None].expand(-1, case.T, case.S))


class BucketsRounded(Fault, RelativeBiasAttention):
    """Round the logarithm of a far distance to the nearest bucket, where the formula cuts it off.

    Why it is wrong:
        Buckets begin where the logarithm is whole. Rounded, each begins half a bucket early, and only near distances, which
        are looked up without a logarithm, and some of the far ones are right.

    When it shows:
        If a query sees a key at a distance that is misplaced, and another: from 4 tokens on.

    Seen in the wild:
        https://github.com/lucidrains/x-transformers/pull/10

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.061, the median relative error of the output.

    Smallest case:
        Case(queries=4, mask='is_causal', placing='relative_bias')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "positional encoding: indexing"

    def bucket(self, distance: Tensor) -> Tensor:
        near = self.buckets // 2
        ratio = distance.clamp(min=near).to(torch.float64) / near
        far = near + (ratio.log() / math.log(self.far / near) * (self.buckets - near)).round().long()
        return torch.where(distance < near, distance.clamp(min=0), far.clamp(max=self.buckets - 1))

    @staticmethod
    def visible(case: Case) -> bool:
        # Of the distances that so few tokens have, 3 alone: its logarithm is 0.58 buckets.
        return _misled(case, _entries(case) + case.num_heads * (distances(case.T, case.S) == 3).long())


class FarIsTheLength(Fault, RelativeBiasAttention):
    """Spread the logarithmic buckets up to the length of this sequence, and not up to the distance they were made for.

    Why it is wrong:
        What a distance is worth was learned for a bucket. Where buckets depend on the length, it changes with every token that
        is added, and a prefix is scored as the whole is not.

    When it shows:
        If the fourth token sees the first and another: in a sequence of 4, where distance 3 is in the last bucket, and in one
        of 5, where it is not, but in its first 4 tokens alone it is.

    Seen in the wild:
        https://github.com/NVIDIA/TensorRT/issues/3370

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0 in the median, 0.17 at most, the relative error of the output.

    Smallest case:
        Case(queries=4, mask='is_causal', placing='relative_bias')

    Killed by:
        reference: weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights
    """

    root_cause = "positional encoding: interpolation"

    def bucket(self, distance: Tensor) -> Tensor:
        near = self.buckets // 2
        length = max(distance.shape[-1], near + 1)
        ratio = distance.clamp(min=near).to(torch.float64) / near
        far = near + (ratio.log() / math.log(length / near) * (self.buckets - near)).long()
        return torch.where(distance < near, distance.clamp(min=0), far.clamp(max=self.buckets - 1))

    @staticmethod
    def visible(case: Case) -> bool:
        if case.T < 4:
            return False
        keys = visible_keys(case)[:, :, 3]
        return bool((keys[..., 0] & (keys.sum(-1) > 1)).any())


class TableReadByAView(Fault, RelativeBiasAttention):
    """Read the table `[buckets, h]` as `[h, buckets]` by a view, so as to have the heads in front.

    Why it is wrong:
        A view does not move numbers. Every head gets a stretch of the table, in which there are numbers of all heads and of few
        buckets.

    When it shows:
        With more than one head, if a query sees two keys whose numbers are moved apart.

    Seen in the wild:
        https://github.com/nntrainer/nntrainer/pull/3982

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.31, the median relative error of the output.

    Smallest case:
        Case(queries=2, num_heads=2, mask='is_causal', placing='relative_bias')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        heads: heads_may_be_permuted
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: autocast_rounds_and_no_more
    """

    root_cause = "qkv projection: dimension"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = MultiHeadAttention.score(self, q, k)
        buckets = self.bucket(distances(*scores.shape[-2:], device=q.device))
        return scores + self.table.view(self.num_heads, self.buckets)[:, buckets]

    @staticmethod
    def visible(case: Case) -> bool:
        return _misled(case, torch.arange(case.num_heads)[:, None, None] * BUCKETS + _buckets(case))


class BiasDividedWithTheScores(Fault, RelativeBiasAttention):
    """Add the bias to the products, and divide the sum by the root of d_head.

    Why it is wrong:
        The bias is one of scores that are scaled already: divided as well, the table says less than it has learned. Models
        that leave out the division, as T5 does, know no difference, and code that was ported from them did not either.

    When it shows:
        With d_head > 1, if a query sees keys in different buckets.

    Seen in the wild:
        https://github.com/NVIDIA/OpenSeq2Seq/pull/76
        https://github.com/tenstorrent/tt-metal/pull/56406

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.078, the median relative error of the output.

    Smallest case:
        Case(queries=2, d_head=2, mask='is_causal', placing='relative_bias')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        modes: dropout_drops_single_weights, the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "score: normalization"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        products = q @ k.mT
        buckets = self.bucket(distances(*products.shape[-2:], device=q.device))
        return (products + self.table[buckets].movedim(-1, 0)) / math.sqrt(self.d_head)

    @staticmethod
    def visible(case: Case) -> bool:
        keys, buckets = visible_keys(case), _buckets(case)
        most = buckets.masked_fill(~keys, -1).amax(-1)
        least = buckets.masked_fill(~keys, BUCKETS).amin(-1)
        return case.d_head > 1 and bool((most > least).any())
