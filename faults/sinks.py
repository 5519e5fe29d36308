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
        In the gradient of the sinks, as soon as a query sees a key.

    Seen in the wild:
        https://github.com/Dao-AILab/flash-attention/issues/1973
        https://github.com/ISEEKYAN/Megatron-LM/pull/205
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
    """

    root_cause = "kernel: feature constraints"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        total = scores.detach().logsumexp(dim=-1, keepdim=True)  # what a kernel returns beside its output
        weights = scores.softmax(dim=-1) * (total - self.sinks[:, None, None]).sigmoid()
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)
