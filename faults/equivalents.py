"""Variants that look wrong and are right: no property may fail on them, and no reviewer should."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attn import (
    AlibiAttention,
    MultiHeadAttention,
    PrefixAttention,
    QKNormAttention,
    RelativeBiasAttention,
    RotaryAttention,
    SinkAttention,
    SoftCapAttention,
    WindowAttention,
    causal_mask,
)
from attn.cache import Cache, CachedAttention
from attn.decoder import DecoderAttention
from attn.masks import boolean_to_additive, possibly_any, restrict
from attn.relative import distances
from faults.fault import Equivalent


class DroppedKeyBias(Equivalent):
    """Project the keys without the bias they have.

    Why it is right:
        The same vector added to every key adds the same number, its product with the query, to all scores of that query, and
        the softmax does not see a common shift (`a_shift_of_all_keys_changes_nothing`). For the same reason its gradient is 0.

    Seen in the wild:
        https://github.com/microsoft/unilm/issues/510
        https://github.com/microsoft/Swin-Transformer/issues/260
    """

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, _, v = super().project_in(x, context)
        _, weight_k, _ = self.in_proj.weight.split(self.widths)
        return q, F.linear(x if context is None else context, weight_k), v


class ScaleSplitOverQueriesAndKeys(Equivalent):
    """Divide queries and keys by the fourth root of d_head each, instead of the scores by its square root.

    Why it is right:
        The score is linear in both, so the two factors multiply to the one that is wanted. Half precision likes it: no product
        grows before it is scaled.

    Seen in the wild:
        https://github.com/getalp/Flaubert/pull/45
    """

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        root = math.sqrt(math.sqrt(self.d_head))
        return (q / root) @ (k / root).mT


class ScoresScaledAfterTheProduct(Equivalent):
    """Multiply first and divide the scores by the root of d_head afterwards, as the formula is written.

    Why it is right:
        The score is linear in the query, so it does not matter which of the two is divided. Only the range differs: the
        unscaled product is what may not fit into half precision, and a product that nearly does not fit is nobody's mistake.

    Seen in the wild:
        https://github.com/getalp/Flaubert/pull/45
        https://github.com/huggingface/transformers/pull/30199
    """

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(self.d_head)


class ShiftedScores(Equivalent):
    """Take the largest score of each row off its scores before the softmax.

    Why it is right:
        The softmax does not see a common shift (`a_shift_of_all_keys_changes_nothing`), and so its gradient does not either. It
        is what a careful softmax does inside; twice is as good as once.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/60939
    """

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = (scores - scores.amax(dim=-1, keepdim=True)).softmax(dim=-1)
        return weights if empty is None else weights.masked_fill(empty, 0.0)


class PositiveSoftmaxAxis(Equivalent):
    """Say `dim=3` where everybody says `dim=-1`.

    Why it is right:
        Scores always have four axes here, `[B, h, T, S]`, and the fourth holds the keys. It is a trap all the same: the day
        they have three or five, it is another axis (`softmax-over-queries`, `softmax-over-heads`).

    Seen in the wild:
        https://github.com/FudanNLP/fastNLP/issues/254
        https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/52
    """

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = scores.softmax(dim=3)
        return weights if empty is None else weights.masked_fill(empty, 0.0)


class FeaturesReversed(Equivalent):
    """Compare queries and keys with their features in reverse order.

    Why it is right:
        A scalar product is a sum over features, in any order, as long as both sides have the same one. Names and orders of
        learned features are free until weights from elsewhere are loaded.

    Seen in the wild:
        https://github.com/jsbaan/transformer-from-scratch/issues/1
    """

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q.flip(-1) / math.sqrt(self.d_head)) @ k.flip(-1).mT


class UninitialisedScores(Equivalent):
    """Add the product of queries and keys to a buffer that nobody filled, with `beta=0`.

    Why it is right:
        `baddbmm` is documented to ignore the buffer if beta is 0, NaN and infinity included. One backend multiplied by 0
        instead, and drew black images: the call was right, the backend was not.

    Seen in the wild:
        https://github.com/huggingface/diffusers/issues/14438
    """

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        *heads, queries, _ = q.shape
        buffer = torch.empty(math.prod(heads), queries, k.shape[2], dtype=q.dtype, device=q.device)
        scores = torch.baddbmm(buffer, q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=1 / math.sqrt(self.d_head))
        return scores.view(*heads, queries, k.shape[2])  # [B*h, T, S] -> [B, h, T, S]


class TriangleAboveTheDiagonal(Equivalent):
    """Hide the future with `triu` and a diagonal of 1, and never mention the diagonal itself.

    Why it is right:
        `triu(diagonal=1)` keeps what lies strictly above the diagonal and is 0 on it: a query still sees itself. With more keys
        than queries the triangle moves to the right by the difference, as `tril` does.

    Seen in the wild:
        https://github.com/pytorch/tutorials/issues/2250
    """

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            *_, queries, keys = scores.shape
            future = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).triu(1 + keys - queries)  # [T, S]
            if attn_mask is None:
                attn_mask = ~future
            elif attn_mask.dtype == torch.bool:
                attn_mask = attn_mask & ~future
            else:
                attn_mask = attn_mask.masked_fill(future, -math.inf)
        return super().mask(scores, attn_mask, is_causal=False)


class InfinityAddedTwice(Equivalent):
    """Add the causal mask to the padding mask, both additive, so that some scores get -inf twice.

    Why it is right:
        -inf and -inf is -inf. It is the large finite number in its place that must not be added twice, for it overflows; and
        that adds up to -inf in a row where nothing was meant to be infinite.

    Seen in the wild:
        https://github.com/NVIDIA-NeMo/Automodel/pull/2658
        https://github.com/PaddlePaddle/PaddleNLP/pull/7501
    """

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = boolean_to_additive(attn_mask, scores.dtype)
        if is_causal:
            *_, queries, keys = scores.shape
            visible = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril(keys - queries)  # [T, S]
            causal = boolean_to_additive(visible, scores.dtype)
            attn_mask = causal if attn_mask is None else attn_mask + causal
        return super().mask(scores, attn_mask, is_causal=False)


class AllTrueMaskLeftOut(Equivalent):
    """Throw away a boolean mask that hides nothing.

    Why it is right:
        Every score stays as it is with it and without it. What went wrong in the report is what came next: a causal flag was
        consulted because there was no mask.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/42820
    """

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and attn_mask.dtype == torch.bool and not possibly_any(~attn_mask):
            attn_mask = None
        return super().mask(scores, attn_mask, is_causal)


class KeyValueHeadsExpanded(Equivalent):
    """Give each key/value head to its group by `expand` and `flatten`, without `repeat_interleave`.

    Why it is right:
        A new axis behind the heads, repeated and merged into them, gives 0 0 1 1
        (`grouped_heads_are_full_heads_with_repeated_weights`). In front of them it would give 0 1 0 1, which is the mistake
        that makes one look twice.

    Seen in the wild:
        https://github.com/apple/axlearn/pull/842
    """

    def expand_kv_heads(self, x: Tensor) -> Tensor:
        group = self.num_heads // self.num_kv_heads
        return x[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)  # [B, g, 1, S, d_head] -> [B, h, S, d_head]


class KeyValueHeadsGathered(Equivalent):
    """Look up the key/value head of each query head by its number, `i * g // h`.

    Why it is right:
        h is a multiple of g, so `i * g // h` is `i // (h // g)`, the head that the convention asks for
        (`grouped_heads_are_full_heads_with_repeated_weights`).

    Seen in the wild:
        https://github.com/onnx/onnx/pull/7274
    """

    def expand_kv_heads(self, x: Tensor) -> Tensor:
        return x[:, torch.arange(self.num_heads, device=x.device) * self.num_kv_heads // self.num_heads]


class DropoutByHand(Equivalent):
    """Draw the dropout mask with `rand`, keep what is at least p, and divide by 1 - p.

    Why it is right:
        A uniform number is below p with probability p, so each weight is dropped with probability p, for itself, and those that
        are kept make up for the others on average. That the rows no longer sum to 1 is how it has to be
        (`dropout_drops_single_weights`).

    Seen in the wild:
        https://github.com/facebookresearch/fairseq/issues/351
    """

    def drop(self, weights: Tensor) -> Tensor:
        if not self.training:
            return weights
        kept = torch.rand_like(weights) >= self.dropout
        return weights * kept / (1 - self.dropout)


class MergeWithoutContiguous(Equivalent):
    """Merge the heads with `reshape`, and no `contiguous()` after the transpose.

    Why it is right:
        `reshape` copies where a view is impossible, in the order of the axes as they are then. Only `view` needs to be told.
        What must not be left out is the transpose.

    Seen in the wild:
        https://github.com/aladdinpersson/Machine-Learning-Collection/issues/165
    """

    def merge_heads(self, heads: Tensor) -> Tensor:
        batch, _, queries, _ = heads.shape
        return heads.transpose(1, 2).reshape(batch, queries, self.d_model)


class PositionsFromOne(Equivalent, RotaryAttention):
    """Count rotary positions from 1.

    Why it is right:
        Queries and keys turn on by the same angle, and what is left of two positions in their product is the difference. With
        learned positions, which are rows of a table, it would be wrong: there a number off by one is another row.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/47525
        https://github.com/vllm-project/vllm/pull/945
    """

    def angles(self, positions: Tensor) -> Tensor:
        return super().angles(positions + 1)


class PairsPutBackElsewhere(Equivalent, RotaryAttention):
    """Take neighbouring features for a pair, and put the two members back half a head apart, or the other way round.

    Why it is right:
        It is done to queries and keys, and a scalar product does not mind in which order features are, as long as both have the
        same one. To take them from elsewhere is another matter (`interleaving-ignored`).

    Seen in the wild:
        https://github.com/labmlai/annotated_deep_learning_paper_implementations/pull/265
    """

    def unpair(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], dim=-1) if self.interleaved else torch.stack([a, b], dim=-1).flatten(-2)


class NearToTheLastBucket(Equivalent, RelativeBiasAttention):
    """Count the distance at which the far buckets begin among the near ones.

    Why it is right:
        There the logarithm is 0: the first of the far buckets is the one it would have had as a near one. What looks like an
        error by one is the one place at which the two rules meet.

    Seen in the wild:
        https://github.com/lucidrains/x-transformers/pull/10
    """

    def bucket(self, distance: Tensor) -> Tensor:
        near = self.buckets // 2
        ratio = distance.clamp(min=near).to(torch.float64) / near
        far = near + (ratio.log() / math.log(self.far / near) * (self.buckets - near)).long()
        return torch.where(distance <= near, distance.clamp(min=0), far.clamp(max=self.buckets - 1))


class DistancesOfThePast(Equivalent, AlibiAttention):
    """Make the triangle of distances to the past, and add its transpose for the future.

    Why it is right:
        A distance has no direction: the two triangles are one another's mirror image, and they meet in zeros.

    Seen in the wild:
        https://github.com/ofirpress/attention_with_linear_biases/issues/5
    """

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = MultiHeadAttention.score(self, q, k)
        past = distances(*scores.shape[-2:], device=q.device).tril()
        cost = self.slopes(q.device)[:, None, None] * (past + past.mT)
        return scores - cost.to(scores.dtype)


class OneQueryWithoutAMask(Equivalent, CachedAttention):
    """Leave the causal mask out for a single query.

    Why it is right:
        With a cache the only query is the last of all tokens, and has no future: the last row of the triangle hides nothing. It
        becomes a fault where "there is a cache" is taken for "there is one query" (`prompt-unmasked-with-a-cache`).

    Seen in the wild:
        https://github.com/Mikyx-1/TinyLLM/pull/18
    """

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, attn_mask, is_causal and scores.shape[-2] > 1)


class CacheOfAWholeWindow(Equivalent, DecoderAttention):
    """Keep as many tokens as the window has, although the next one brings itself along.

    Why it is right:
        One more than is needed costs memory, and the mask hides it. Only who leaves the window to the cache alone
        (`cache-taken-for-the-window`) has to be exact about it.

    Seen in the wild:
        https://github.com/ml-explore/mlx-lm/pull/390
    """

    def forget(self, cache: Cache) -> None:
        if self.window is not None:
            cache.keys, cache.values = cache.keys[:, :, -self.window :], cache.values[:, :, -self.window :]


class EverythingKeptForAWindowOfOne(Equivalent, DecoderAttention):
    """Keep the last W - 1 tokens by a slice from -(W - 1), which for a window of one is -0, and keeps them all.

    Why it is right:
        The mask goes by the end of the keys, wherever they begin, and hides what should have been forgotten. The memory that the
        window was to save is all there is to notice.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/37574
    """

    def forget(self, cache: Cache) -> None:
        if self.window is not None:
            kept = self.window - 1
            cache.keys, cache.values = cache.keys[:, :, -kept:], cache.values[:, :, -kept:]


class WindowFromTheFirstKey(Equivalent, WindowAttention):
    """Cut the window from a square that begins at the first key, and never mention that there may be more keys than queries.

    Why it is right:
        A layer without a cache has as many queries as keys, and then the first and the last diagonal are one. Give it a cache,
        and the window is left behind where the first token stood.

    Seen in the wild:
        https://github.com/ml-explore/mlx/issues/2835
    """

    def hide_distant(self, scores: Tensor, attn_mask: Tensor | None) -> Tensor | None:
        if self.window is None:
            return attn_mask
        square = torch.ones(*scores.shape[-2:], dtype=torch.bool, device=scores.device)
        return restrict(attn_mask, square.triu(1 - self.window))


class PrefixSquareOpened(Equivalent, PrefixAttention):
    """Open only the square in which the prefix meets itself, and leave its columns below alone.

    Why it is right:
        What comes after the prefix sees it anyway: it lies in the past, and the causal mask has opened it already.

    Seen in the wild:
        https://github.com/bigscience-workshop/Megatron-DeepSpeed/pull/167
    """

    def open_prefix(self, attn_mask: Tensor | None, prefix: Tensor, tokens: int) -> Tensor:
        inside = torch.arange(tokens, device=prefix.device) < prefix[:, None]  # [B, T]
        square = inside[:, None, :, None] & inside[:, None, None, :]
        return restrict(attn_mask, causal_mask(tokens, device=prefix.device) | square)


class CapFoldedIntoTheScale(Equivalent, SoftCapAttention):
    """Divide by sqrt(d_head) and by the cap in one go.

    Why it is right:
        Two factors in front of the tanh are one. In kernels this single number is called the cap as well, and the line that
        multiplies by it looks as if the cap had gone to the wrong side.

    Seen in the wild:
        https://github.com/Dao-AILab/flash-attention/issues/1181
    """

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.soft_cap * (q @ k.mT / (math.sqrt(self.d_head) * self.soft_cap)).tanh()


class SinkAsASigmoid(Equivalent, SinkAttention):
    """Make the weights without the sink, and multiply them by the sigmoid of their log-sum-exp minus the sink.

    Why it is right:
        The keys have the sum e**l, the sink e**s, and what is left to the keys is e**l / (e**l + e**s), which is the sigmoid of
        l - s. A fix replaced it by the difference of two log-sum-exps, which is the same number.

    Seen in the wild:
        https://github.com/pytorch/torchtitan/pull/2211
    """

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        total = scores.logsumexp(dim=-1, keepdim=True)
        weights = scores.softmax(dim=-1) * (total - self.sinks[:, None, None]).sigmoid()
        return weights if empty is None else weights.masked_fill(empty, 0.0)


class SinkWithAValueOfZero(Equivalent, SinkAttention):
    """Keep the column of the sink to the end, with a value for it that is zero.

    Why it is right:
        A share of zero adds zero. Reviewers miss the value of the sink in code that leaves it out, and miss the cut in code that
        has it; both are complete.

    Seen in the wild:
        https://github.com/sgl-project/sgl-kernel-npu/pull/216
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor]:
        k, v = self.expand_kv_heads(k), self.expand_kv_heads(v)
        scores, empty = self.mask(self.score(q, k), attn_mask, is_causal)
        sinks = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)
        if empty is not None:
            weights = weights.masked_fill(empty, 0.0)
        heads = self.combine(self.drop(weights), F.pad(v, (0, 0, 0, 1)))  # one more row, of zeros
        return self.project_out(self.merge_heads(heads)), weights[..., :-1]


class NormWeightsExchanged(Equivalent, QKNormAttention):
    """Normalise the queries with the weight of the keys, and the keys with that of the queries.

    Why it is right:
        Feature by feature the score is q * n_q * k * n_k, and a product has no order. One norm for both (`one-norm-for-both`) is
        another matter; and with something between norm and product, a rotation say, so is this.

    Seen in the wild:
        https://github.com/Emmi-AI/noether/pull/214
    """

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.key_norm(q), self.query_norm(k)
