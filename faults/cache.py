"""Mistakes with a key/value cache: what is written where, who may see it, and what becomes of it."""

from __future__ import annotations

import torch
from torch import Tensor

from attn import checks
from attn.cache import Cache, CachedAttention
from attn.masks import causal_mask, restrict
from faults.decoded import (
    beams_see_the_past,
    future_leaks,
    reads_others,
    seen_without_causality,
    static,
    warm_pieces,
)
from faults.facts import chooses, grouped, has_mask, visible_keys
from faults.fault import Fault
from properties.case import Case
from properties.inputs import causal


class TriangleAtTheFirstKey(Fault, CachedAttention):
    """Put the corner of the causal triangle at the first key, where the cache is, and not at the last.

    Why it is wrong:
        The first of the new queries stands behind everything that is cached. With the triangle at the top left it sees the
        first key of all, and nothing else; the cache might as well not be there.

    When it shows:
        As soon as a query on a warm cache sees a key that this triangle hides. Without a cache the two triangles are the same.

    Seen in the wild:
        https://github.com/google/flax/issues/5591
        https://github.com/lucidrains/x-transformers/issues/187
        https://github.com/Dao-AILab/flash-attention/issues/282

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, mask='is_causal')

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            attn_mask = restrict(attn_mask, torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril())
        return super().mask(scores, attn_mask, False)

    @staticmethod
    def visible(case: Case) -> bool:
        keys = visible_keys(case)
        hidden = [keys[:, :, begin:end, :end] & ~causal(end - begin, end, "top_left") for begin, end in case.pieces()]
        return any(bool(lost.any()) for lost in hidden)


class SquareMaskOnAWarmCache(Fault, CachedAttention):
    """Make the causal mask as wide as there are new tokens, and only if there are several.

    Why it is wrong:
        The keys are the new tokens and all that were cached before. A prompt on an empty cache fits, a single token needs no
        mask: only a second prompt, in a conversation, has several queries and more keys than queries.

    When it shows:
        When several tokens at once meet a cache that is not empty. It raises.

    Seen in the wild:
        https://github.com/meta-llama/llama/issues/899

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=4, mask='is_causal', chunk=2)

    Killed by:
        decoding: chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass, beams_take_their_past_along,
            requests_do_not_see_each_other, a_second_generation_is_the_first, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "masking: mask generation"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        queries = scores.shape[-2]
        if is_causal and queries > 1:
            attn_mask = restrict(attn_mask, causal_mask(queries, device=scores.device))
        return super().mask(scores, attn_mask, False)

    @staticmethod
    def visible(case: Case) -> bool:
        return any(end - begin > 1 for begin, end in warm_pieces(case))


class PromptUnmaskedWithACache(Fault, CachedAttention):
    """Leave the causal mask out whenever there is a cache: a single new token has no future that could be hidden.

    Why it is wrong:
        The prompt goes through the same cache, and it is not a single token. Each of its tokens sees all those behind it, as it
        never did in training.

    When it shows:
        With two tokens or more at once, the later of which no other mask hides.

    Seen in the wild:
        https://github.com/Mikyx-1/TinyLLM/pull/18

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, mask='is_causal', chunk=2)

    Killed by:
        decoding: chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass, beams_take_their_past_along,
            capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "masking: dynamic mask"

    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, *, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        checks.check_cached(self, x, attn_mask, cache)
        q, k, v = (self.split_heads(projected) for projected in self.project_in(x, None))
        if cache is not None:
            k, v = self.append(cache, k, v)
        return self.attend(q, k, v, attn_mask, cache is None)

    @staticmethod
    def visible(case: Case) -> bool:
        return future_leaks(case, case.pieces())


class MaskOnlyForThePrompt(Fault, CachedAttention):
    """Hide the future only where there are as many queries as keys, because that is what a prompt looks like.

    Why it is wrong:
        Otherwise it must be decoding, one token at a time, and that one may see everything. It may also be the next piece of a
        prompt that was cut, or a few drafted tokens that are to be verified: they see each other both ways.

    When it shows:
        When several tokens at once meet a cache that is not empty, and no other mask hides the later ones.

    Seen in the wild:
        https://github.com/Mikyx-1/TinyLLM/pull/18
        https://github.com/time-series-foundation-models/lag-llama/issues/81

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=4, mask='is_causal', chunk=2)

    Killed by:
        decoding: chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass, beams_take_their_past_along,
            capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "masking: dynamic mask"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, attn_mask, is_causal and scores.shape[-2] == scores.shape[-1])

    @staticmethod
    def visible(case: Case) -> bool:
        return future_leaks(case, warm_pieces(case))


class CausalOnlyWithACache(Fault, CachedAttention):
    """Hide the future only if there is a cache, since the mask was made when the cache was set up.

    Why it is wrong:
        Whoever generates without a cache, or trains, attends to the future. What comes out with a cache is right, and is
        blamed.

    When it shows:
        Without a cache, with two tokens or more, the later of which no other mask hides.

    Seen in the wild:
        https://github.com/meta-pytorch/torchtune/issues/959

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0.48, the median relative error of the output.

    Smallest case:
        Case(queries=2, mask='is_causal')

    Killed by:
        reference: output_is_the_formula, weights_are_the_formula, gradients_are_those_of_the_formula
        rows: hidden_keys_get_no_weight, weights_explain_the_output, outputs_stay_among_the_values
        masking: content_of_hidden_keys_is_irrelevant
        causality: the_future_does_not_change_the_past, a_prefix_gives_the_first_rows
        heads: a_head_is_a_layer_of_one_head
        algebra: values_enter_linearly
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter, a_cache_keeps_the_dtype
        modes: modes_agree_without_dropout, dropout_drops_single_weights, dropout_is_drawn_for_every_weight,
            the_share_of_dropped_weights_is_p, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
    """

    root_cause = "masking: dynamic mask"

    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, *, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        checks.check_cached(self, x, attn_mask, cache)
        q, k, v = (self.split_heads(projected) for projected in self.project_in(x, None))
        if cache is not None:
            k, v = self.append(cache, k, v)
        return self.attend(q, k, v, attn_mask, cache is not None)

    @staticmethod
    def visible(case: Case) -> bool:
        return future_leaks(case, [(0, case.T)])


class PaddingMaskOfTheNewTokens(Fault, CachedAttention):
    """Cut the mask to the tokens that are handed in, as the tokens themselves are.

    Why it is wrong:
        The mask is over the keys, and the keys are all that is cached. Where one token is new, its one column broadcasts over
        them all: padding in the prompt is seen again from the first generated token on.

    When it shows:
        With a mask, on a warm cache: with several new tokens it raises; with one it shows unless the past has the same mask as
        that token.

    Seen in the wild:
        https://github.com/fla-org/flash-linear-attention/pull/1189
        https://github.com/huggingface/transformers/issues/26564

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, mask='is_causal+padding')

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, requests_do_not_see_each_other, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "masking: dynamic mask"

    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, *, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        if attn_mask is not None:
            attn_mask = attn_mask[..., -x.shape[1] :]
        return super().forward(x, attn_mask, cache=cache)

    @staticmethod
    def visible(case: Case) -> bool:
        if not has_mask(case):
            return False
        keys, allowed = visible_keys(case), seen_without_causality(case)
        for begin, end in warm_pieces(case):
            seen, new = keys[:, :, begin, :end], allowed[:, :, begin, begin, None]  # [B, h, S], [B, h, 1]
            if end - begin > 1 or bool((seen != new).any()) or (case.encoding == "bias" and bool(new.any())):
                return True
        return False


class PositionNeverAdvanced(Fault, CachedAttention):
    """Work out where the new tokens end, and do not write it down.

    Why it is wrong:
        Every call finds an empty cache, writes at its beginning over what was there, and attends to nothing but itself. One
        that grows does not need the number to grow, and carries on as if nothing were wrong.

    When it shows:
        From the second call on, with a fixed number of slots; in a cache that grows only where the number is asked for, which
        is where a mask is compared with it.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/38156

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, mask='is_causal', spare=0)

    Killed by:
        decoding: all
    """

    root_cause = "kv cache: cache position"

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if cache.capacity is None:
            cache.keys, cache.values = torch.cat([cache.keys, k], dim=2), torch.cat([cache.values, v], dim=2)
            return cache.keys, cache.values
        end = cache.length + k.shape[2]
        cache.keys[:, :, cache.length : end] = k
        cache.values[:, :, cache.length : end] = v
        return cache.keys[:, :, :end], cache.values[:, :, :end]

    @staticmethod
    def visible(case: Case) -> bool:
        return bool(warm_pieces(case)) and (static(case) or has_mask(case))


class PositionAdvancedTooEarly(Fault, CachedAttention):
    """Advance the position after the keys are written, and once more before the values are.

    Why it is wrong:
        The values stand as many slots behind their keys as there were new tokens; the first slots keep the zeros they were made
        with, and the last values find no slot. If none at all is left torch writes one value into no slot without complaint.

    When it shows:
        With a fixed number of slots, always.

    Seen in the wild:
        https://github.com/ml-explore/mlx-lm/issues/1699
        https://github.com/ml-explore/mlx-lm/issues/1805

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(mask='is_causal', spare=0)

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, a_second_generation_is_the_first, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "kv cache: update synchronization"

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if cache.capacity is None:
            return super().append(cache, k, v)
        new = k.shape[2]
        cache.keys[:, :, cache.length : cache.length + new] = k
        cache.length += new
        cache.values[:, :, cache.length : cache.length + new] = v
        return cache.keys[:, :, : cache.length], cache.values[:, :, : cache.length]

    @staticmethod
    def visible(case: Case) -> bool:
        return static(case)


class ValuesOverwritten(Fault, CachedAttention):
    """Write new keys behind the old ones, and new values over the old ones.

    Why it is wrong:
        The scores are right, and mix the wrong things: the values at the front are the newest, and those behind them stay what
        they were when a longer piece came, or nothing.

    When it shows:
        With a fixed number of slots, from the second call on, as soon as a slot is seen that holds another value.

    Seen in the wild:
        https://github.com/awslabs/keys_values/issues/140

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, mask='is_causal', spare=0)

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "kv cache: update synchronization"

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if cache.capacity is None:
            return super().append(cache, k, v)
        old, cache.length = cache.length, cache.length + k.shape[2]
        cache.keys[:, :, old : cache.length] = k
        cache.values[:, :, : k.shape[2]] = v
        return cache.keys[:, :, : cache.length], cache.values[:, :, : cache.length]

    @staticmethod
    def visible(case: Case) -> bool:
        holds = torch.full((case.T,), -1)
        for begin, end in case.pieces() if static(case) else ():
            holds[: end - begin] = torch.arange(begin, end)
            if bool((visible_keys(case)[:, :, begin:end] & (holds != torch.arange(case.S))).any()):
                return True
        return False


class UnwrittenSlotsSeen(Fault, CachedAttention):
    """Hand back the whole cache, with the slots that nobody has written.

    Why it is wrong:
        A slot of zeros is no missing key: it scores 0, which is as good as any other score, and its share of the weights goes
        to a value of zero. The larger the cache was made, the smaller the output.

    When it shows:
        With a fixed number of slots, while some are free. A mask over the tokens so far does not fit, unless it is of one token,
        which then speaks for the free slots as well.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/30400
        https://github.com/meta-pytorch/gpt-fast/issues/233

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(mask='is_causal', spare=1)

    Killed by:
        decoding: all
    """

    root_cause = "kv cache: invalidation"

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        super().append(cache, k, v)
        return cache.keys, cache.values

    @staticmethod
    def visible(case: Case) -> bool:
        return case.spare is not None and (case.spare > 0 or bool(warm_pieces(case)))


class RolledWhenFull(Fault, CachedAttention):
    """Make room for new tokens when they fill the last slots, and not only when they do not fit.

    Why it is wrong:
        A `>=` that should be a `>`: as many of the oldest tokens as there are new ones are pushed out although there was room for
        all, and slots that nobody has written move in with the others.

    When it shows:
        When the last piece of several fills the cache exactly, and sees what came before it.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/37574

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, mask='is_causal', spare=0)

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, a_second_generation_is_the_first, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "kv cache: invalidation"

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = k.shape[2]
        if cache.capacity is not None and cache.length + new >= cache.capacity:
            cache.keys, cache.values = cache.keys.roll(-new, dims=2), cache.values.roll(-new, dims=2)
        return super().append(cache, k, v)

    @staticmethod
    def visible(case: Case) -> bool:
        begin, end = case.pieces()[-1]
        return case.spare == 0 and bool(visible_keys(case)[:, :, begin:end, :begin].any())


class NewKeysInFront(Fault, CachedAttention):
    """Concatenate the new tokens and the cache in the wrong order.

    Why it is wrong:
        Keys and values move together, and a sum over keys has no order: one token at a time gets away with it. A mask has an
        order. The causal one now hides the oldest tokens from the first of several new ones, and not the newest.

    When it shows:
        In a cache that grows, when several tokens at once meet one that is not empty, or a mask does not treat all tokens alike.

    Seen in the wild:
        https://github.com/awslabs/keys_values/issues/140

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, mask='is_causal+padding')

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, a_cache_keeps_the_dtype
    """

    root_cause = "kv cache: memory layout"

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if cache.capacity is not None:
            return super().append(cache, k, v)
        cache.length += k.shape[2]
        cache.keys, cache.values = torch.cat([k, cache.keys], dim=2), torch.cat([v, cache.values], dim=2)
        return cache.keys, cache.values

    @staticmethod
    def visible(case: Case) -> bool:
        holds = torch.arange(0)
        for piece in case.pieces() if not static(case) else ():
            holds = torch.cat([torch.arange(*piece), holds])
            if reads_others(case, piece, holds):
                return True
        return False


class CacheReadBeforeItIsWritten(Fault, CachedAttention):
    """Attend to what the cache held before this call, and add the new tokens afterwards, for the next one.

    Why it is wrong:
        A query must see itself. Here a prompt sees nothing, and a generated token all that came before it, which looks so much
        like generation that one has to count the keys.

    When it shows:
        Always. With a mask that is not of one token it raises.

    Seen in the wild:
        https://github.com/ml-explore/mlx-lm/issues/1699

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(mask='is_causal')

    Killed by:
        decoding: all
    """

    root_cause = "kv cache: update synchronization"

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        held = cache.keys[:, :, : cache.length], cache.values[:, :, : cache.length]
        super().append(cache, k, v)
        return held

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class KeysAndValuesInOneBuffer(Fault, CachedAttention):
    """Make the zeros once, and use them for keys and for values.

    Why it is wrong:
        Two names of one tensor: the values are written over the keys, a line after these, and the next query is compared with
        values. A cache that grows replaces both by new tensors, and hides it.

    When it shows:
        With a fixed number of slots, if a query has a choice.

    Seen in the wild:
        https://github.com/facebookresearch/fairseq/issues/3732

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, mask='is_causal', spare=0)

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "kv cache: memory layout"

    def new_cache(self, batch: int, capacity: int | None = None) -> Cache:
        checks.check_capacity(capacity)
        zeros = self.in_proj.weight.new_zeros(batch, self.num_kv_heads, capacity or 0, self.d_head)
        return Cache(zeros, zeros, capacity=capacity)

    @staticmethod
    def visible(case: Case) -> bool:
        return static(case) and chooses(case)


class SlotsBeforeHeads(Fault, CachedAttention):
    """Write the cache as `[B, slots, g, d_head]`, as it lies in the memory of a kernel, and read it as `[B, g, slots, d_head]`.

    Why it is wrong:
        A view does not move numbers. It is the mistake of `wrong-split-order`, once removed: what is read as slot 1 of head 0
        was written as slot 0 of head 1.

    When it shows:
        With a fixed number of slots, more than one, and several key/value heads, if a query sees a slot that lies elsewhere.

    Seen in the wild:
        https://github.com/ByteDance-Seed/VeOmni/pull/162
        https://github.com/PrimeIntellect-ai/prime-rl/pull/2681

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(num_heads=2, mask='is_causal', spare=1)

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, a_second_generation_is_the_first, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "kv cache: memory layout"

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if cache.capacity is None:
            return super().append(cache, k, v)
        old, cache.length = cache.length, cache.length + k.shape[2]
        for kept, new in ((cache.keys, k), (cache.values, v)):
            slots = kept.view(kept.shape[0], cache.capacity, self.num_kv_heads, self.d_head)
            slots[:, old : cache.length] = new.transpose(1, 2)  # [B, g, n, d_head] -> [B, n, g, d_head]
        return cache.keys[:, :, : cache.length], cache.values[:, :, : cache.length]

    @staticmethod
    def visible(case: Case) -> bool:
        if case.spare is None:
            return False
        slots = case.T + case.spare
        places = torch.arange(case.g * slots)
        moved = (places.view(case.g, slots) != places.view(slots, case.g).T)[:, : case.S]
        return bool((visible_keys(case) & moved.repeat_interleave(case.num_heads // case.g, dim=0)[:, None]).any())


class CacheForEveryQueryHead(Fault, CachedAttention):
    """Make the cache for all heads, and cache only those of the keys and values.

    Why it is wrong:
        With grouped heads there are fewer of these: that is what they are for. The cache is as large as if they were not
        grouped, and what is written does not fit.

    When it shows:
        With grouped heads. It raises.

    Seen in the wild:
        https://github.com/paiml/aprender/pull/2010

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(num_heads=2, num_kv_heads=1, mask='is_causal')

    Killed by:
        decoding: all
    """

    root_cause = "qkv projection: dimension"

    def new_cache(self, batch: int, capacity: int | None = None) -> Cache:
        checks.check_capacity(capacity)
        keys = self.in_proj.weight.new_zeros(batch, self.num_heads, capacity or 0, self.d_head)
        return Cache(keys, torch.zeros_like(keys), capacity=capacity)

    @staticmethod
    def visible(case: Case) -> bool:
        return grouped(case)


class OneCacheForAllRequests(Fault, CachedAttention):
    """Make the cache once, keep it in the layer, and hand it out again, emptied, to whoever asks for one.

    Why it is wrong:
        It saves memory as long as requests come one after the other. If two are served in turns, the second empties the
        cache of the first, and from then on both write into it.

    When it shows:
        With two requests at the same time. A request alone is served well: only the law that lets two of them take turns
        sees it.

    Seen in the wild:
        https://github.com/facebookresearch/fairseq/issues/3732
        https://github.com/Blaizzy/mlx-vlm/pull/1143

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(mask='is_causal')

    Killed by:
        decoding: requests_do_not_see_each_other
    """

    root_cause = "kv cache: invalidation"

    kept: Cache | None = None

    def new_cache(self, batch: int, capacity: int | None = None) -> Cache:
        if self.kept is None:
            self.kept = super().new_cache(batch, capacity)
        self.reset(self.kept)
        return self.kept

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class ResetOfTheLengthAlone(Fault, CachedAttention):
    """Reset the cache by setting its length to 0, and leave the tensors as they are.

    Why it is wrong:
        For a fixed number of slots this is all there is to do. One that grows goes on behind the keys that it has, and what is
        read back, the first so many, are those of the last request.

    When it shows:
        In a cache that grows, after a reset. A first generation is right: only the law that asks for a second sees it.

    Seen in the wild:
        https://github.com/facebookresearch/fairseq/issues/3732

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives after a reset.

    Smallest case:
        Case(mask='is_causal')

    Killed by:
        decoding: a_second_generation_is_the_first
    """

    root_cause = "kv cache: invalidation"

    def reset(self, cache: Cache) -> None:
        cache.length = 0

    @staticmethod
    def visible(case: Case) -> bool:
        return not static(case)


class ResetOfTheTensorsAlone(Fault, CachedAttention):
    """Reset the cache by zeroing its tensors, and forget its length.

    Why it is wrong:
        The next request comes after as many tokens of zeros as the last one had. They are keys like any other and take their
        share; a fixed number of slots is soon used up.

    When it shows:
        After a reset, always. With a mask, or too few slots, it raises. A first generation is right: only the law that
        asks for a second sees it.

    Seen in the wild:
        https://github.com/time-series-foundation-models/lag-llama/issues/81

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives after a reset.

    Smallest case:
        Case(mask='is_causal')

    Killed by:
        decoding: a_second_generation_is_the_first
    """

    root_cause = "kv cache: cache position"

    def reset(self, cache: Cache) -> None:
        cache.keys.zero_()
        cache.values.zero_()

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class BeamsLeaveTheirValues(Fault, CachedAttention):
    """Reorder the keys of the beams, and not their values.

    Why it is wrong:
        Each beam compares with its own past and mixes that of another. The text stays fluent, for all beams begin alike.

    When it shows:
        After a reorder, with more than one sample, if what follows sees what came before. No other law comes past this
        step: only the one that reorders sees it.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/46612

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(batch=2, queries=2, mask='is_causal')

    Killed by:
        decoding: beams_take_their_past_along
    """

    root_cause = "kv cache: update synchronization"

    def reorder(self, cache: Cache, samples: Tensor) -> None:
        cache.keys = cache.keys[samples]

    @staticmethod
    def visible(case: Case) -> bool:
        return beams_see_the_past(case)


class BeamsCopiedInPlace(Fault, CachedAttention):
    """Reorder the beams row by row, in the cache itself.

    Why it is wrong:
        A row that was already overwritten is what a later one is made from. All rows have to be read before the first is written,
        which indexing with the whole order does.

    When it shows:
        After a reorder that makes a row from an earlier one, if what follows sees what came before. No other law comes
        past this step: only the one that reorders sees it.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/46612

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(batch=2, queries=2, mask='is_causal')

    Killed by:
        decoding: beams_take_their_past_along
    """

    root_cause = "kv cache: memory layout"

    def reorder(self, cache: Cache, samples: Tensor) -> None:
        for row, sample in enumerate(samples.tolist()):
            cache.keys[row] = cache.keys[sample]
            cache.values[row] = cache.values[sample]

    @staticmethod
    def visible(case: Case) -> bool:
        return beams_see_the_past(case, slice(-1))  # the last sample goes first, and all others are made from its copy


class ReorderOfOneShard(Fault, CachedAttention):
    """Keep the heads of the cache in two shards, and reorder those of the process that did the search.

    Why it is wrong:
        The order of the beams is decided in one place, and has to reach all that hold a part of their past. Half of the heads go
        on with another beam's. (The shards are halves of one tensor here; between processes the mistake is no other.)

    When it shows:
        After a reorder, with more than one sample and more than one key/value head, if what follows sees what came
        before. No other law comes past this step: only the one that reorders sees it.

    Seen in the wild:
        https://github.com/vllm-project/vllm/pull/52516
        https://github.com/huggingface/transformers/issues/46612

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(batch=2, queries=2, num_heads=2, mask='is_causal')

    Killed by:
        decoding: beams_take_their_past_along
    """

    root_cause = "kv cache: distributed synchronization"

    def reorder(self, cache: Cache, samples: Tensor) -> None:
        keys, *other_keys = cache.keys.chunk(2, dim=1)
        values, *other_values = cache.values.chunk(2, dim=1)
        cache.keys = torch.cat([keys[samples], *other_keys], dim=1)
        cache.values = torch.cat([values[samples], *other_values], dim=1)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.g > 1 and beams_see_the_past(case)
