"""Mistakes where a cache meets positions and a window: what stands where, and how far back there is anything."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attn import checks
from attn.cache import Cache
from attn.decoder import DecoderAttention
from faults.decoded import misplaced, misplaced_at, past, seen_without_causality, warm_pieces
from faults.facts import chooses, has_mask, visible_keys
from faults.fault import Fault
from properties.case import Case
from properties.inputs import causal, make_inputs


def _counted(case: Case) -> bool:
    """Does the layer count positions by itself?"""
    return case.positions == "counted"


def _kept(case: Case, begin: int) -> int:
    """How many tokens a cache holds after so many have come."""
    return begin if case.window is None else min(begin, case.window - 1)


class PositionsFromZeroInEveryCall(Fault, DecoderAttention):
    """Count positions from 0 in every call, as if nothing were cached.

    Why it is wrong:
        The generated token stands at 0, in front of all that it continues. Keys and queries of one call agree about how far
        apart they are, so that a prompt is right, and only the text after it is not.

    When it shows:
        Where positions are counted, if a query that has a choice sees a key of an earlier call.

    Seen in the wild:
        https://github.com/fla-org/flash-linear-attention/pull/1189
        https://github.com/lucidrains/rotary-embedding-torch/issues/11

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, d_head=6, mask='is_causal', placing='rotary', rotary_width=4)

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "positional encoding: indexing"

    def count(self, tokens: int, cache: Cache | None, device: torch.device) -> Tensor:
        return torch.arange(tokens, device=device)

    @staticmethod
    def visible(case: Case) -> bool:
        return _counted(case) and misplaced(case, past(case))


class PositionsEndAtTheWindow(Fault, DecoderAttention):
    """Count on from the number of keys that the cache holds.

    Why it is wrong:
        A cache with a window stops growing when it is full, and positions with it: all later tokens stand at the same place, and
        keys that move away from them seem to stay where they are.

    When it shows:
        Where positions are counted, when the cache has forgotten a token, if a query that has a choice sees a key of an earlier
        call.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/38156

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=3, d_head=6, mask='is_causal', window=2, placing='rotary', rotary_width=4)

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "kv cache: cache position"

    def count(self, tokens: int, cache: Cache | None, device: torch.device) -> Tensor:
        first = 0 if cache is None else min(cache.length, cache.keys.shape[2])
        return torch.arange(first, first + tokens, device=device)

    @staticmethod
    def visible(case: Case) -> bool:
        firsts = [(_kept(case, begin), end - begin) for begin, end in case.pieces()]
        return _counted(case) and misplaced_at(case, torch.cat([torch.arange(first, first + n) for first, n in firsts]))


class ChunkAtOnePosition(Fault, DecoderAttention):
    """Take a cache that is not empty for the sign that one token is coming, and put all that come at its place.

    Why it is wrong:
        One position broadcasts over any number of queries. The second piece of a prompt has several, and they end up on top of
        each other.

    When it shows:
        Where positions are counted, when several tokens at once meet a cache that is not empty, if one that has a choice sees a
        key from which it is not as far away as it seems.

    Seen in the wild:
        https://github.com/NVIDIA/TransformerEngine/pull/536

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=4, d_head=6, mask='is_causal', placing='rotary', chunk=2)

    Killed by:
        decoding: chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass, beams_take_their_past_along,
            capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "positional encoding: indexing"

    def count(self, tokens: int, cache: Cache | None, device: torch.device) -> Tensor:
        if cache is None or cache.length == 0:
            return torch.arange(tokens, device=device)
        return torch.tensor([cache.length], device=device).expand(tokens)

    @staticmethod
    def visible(case: Case) -> bool:
        places = torch.arange(case.T)
        for begin, end in warm_pieces(case):
            places[begin:end] = begin
        return _counted(case) and misplaced_at(case, places)


class LayerCountsTheTokens(Fault, DecoderAttention):
    """Keep the number of tokens so far in the layer, and not in the cache that they are in.

    Why it is wrong:
        A layer serves many sequences, and counts the tokens of all of them. With one request at a time, which begins at 0 again,
        this is the same.

    When it shows:
        Where positions are counted and two requests are served in turns, if a query that has a choice sees a key of an
        earlier call. One sequence alone is counted right: only the law that serves two of them in turns sees it.

    Seen in the wild:
        https://github.com/Blaizzy/mlx-vlm/pull/1143

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(queries=2, d_head=6, mask='is_causal', placing='rotary', rotary_width=4)

    Killed by:
        decoding: requests_do_not_see_each_other
    """

    root_cause = "kv cache: cache position"

    so_far: int = 0

    def count(self, tokens: int, cache: Cache | None, device: torch.device) -> Tensor:
        if cache is None or cache.length == 0:
            self.so_far = 0
        self.so_far += tokens
        return torch.arange(self.so_far - tokens, self.so_far, device=device)

    @staticmethod
    def visible(case: Case) -> bool:
        return _counted(case) and misplaced(case, past(case))


class GivenPositionsOnlyAtFirst(Fault, DecoderAttention):
    """Take the positions that are given for a prompt, and afterwards go by the length of the cache.

    Why it is wrong:
        The length counts everything that is cached, padding included. A short prompt in a batch is padded at the left, its last
        token stands at its own length, and the next one suddenly at that of the longest.

    When it shows:
        On a warm cache, where positions are given and are not what would be counted, if a query that has a choice sees a key at
        another distance.

    Seen in the wild:
        https://github.com/unslothai/unsloth/pull/4078
        https://github.com/huggingface/transformers/pull/29583

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, d_head=6, mask='is_causal', placing='rotary', positions='offset')

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter
    """

    root_cause = "positional encoding: indexing"

    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, *, positions: Tensor | None = None, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        if cache is not None and cache.length > 0:
            positions = None
        return super().forward(x, attn_mask, positions=positions, cache=cache)

    @staticmethod
    def visible(case: Case) -> bool:
        places = make_inputs(case).places()[0].clone()
        for begin, end in warm_pieces(case):
            places[:, begin:end] = torch.arange(begin, end)
        return misplaced_at(case, places)


class OffsetReadAfterTheUpdate(Fault, DecoderAttention):
    """Ask for the offset of the queries when the new keys are in the cache already.

    Why it is wrong:
        By then it is the offset of the tokens after these. Every query stands as many places too far to the right as there are
        new tokens, and the same text gives something else when it is handed over in other pieces.

    When it shows:
        With a cache, where positions are counted, if a query has a choice.

    Seen in the wild:
        https://github.com/ml-explore/mlx-lm/issues/1699
        https://github.com/ml-explore/mlx-lm/issues/1805

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, d_head=6, mask='is_causal', placing='rotary', rotary_width=4)

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "kv cache: update synchronization"

    def forward(  # type: ignore[override]
        self, x: Tensor, attn_mask: Tensor | None = None, *, positions: Tensor | None = None, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        checks.check_cached(self, x, attn_mask, cache)
        places = self.count(x.shape[1], cache, x.device) if positions is None else positions
        checks.check_positions(places, x)
        q, k, v = (self.split_heads(projected) for projected in self.project_in(x, None))
        k = self.rotate(k, places)
        if cache is not None:
            k, v = self.append(cache, k, v)
            attn_mask = self.crop(attn_mask, k.shape[2])
            self.forget(cache)
        q = self.rotate(q, self.count(x.shape[1], cache, x.device) if positions is None else positions)
        return self.attend(q, k, v, attn_mask, True)

    @staticmethod
    def visible(case: Case) -> bool:
        return _counted(case) and chooses(case)


class KeysTurnedAgain(Fault, DecoderAttention):
    """Turn the keys that come out of the cache by their places in it, although they were turned before they were cached.

    Why it is wrong:
        Either keys are cached as they are projected and turned when they are read, or they are cached turned. Here a key stands
        twice as far from the beginning as it is, and the first one, which never turns, where it belongs.

    When it shows:
        With a cache, if a query that has a choice sees a key that is not the first that is held.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/33129

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, d_head=6, mask='is_causal', placing='rotary', rotary_width=4)

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "positional encoding: relative position"

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = super().append(cache, k, v)
        return self.rotate(k, torch.arange(k.shape[2], device=k.device)), v

    @staticmethod
    def visible(case: Case) -> bool:
        firsts = torch.tensor([begin - _kept(case, begin) for begin, end in case.pieces() for _ in range(begin, end)])
        return misplaced(case, torch.arange(case.S) > firsts[:, None])


class CutToTheWindowBeforeAllHaveSeen(Fault, DecoderAttention):
    """Cut keys and values to the window before the queries of this call have seen them.

    Why it is wrong:
        A window of W is enough for the last query. The first of n looks back n - 1 tokens further, and these are gone: the
        longer the piece, the less the first queries see, down to nothing.

    When it shows:
        When cached and new keys are together more than the window, if one of the queries sees a key before the last W. The
        weights of a prompt lack these columns, too.

    Seen in the wild:
        https://github.com/rasbt/LLMs-from-scratch/issues/1008

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, d_head=6, mask='is_causal', window=1, placing='rotary', chunk=2)

    Killed by:
        decoding: chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass, beams_take_their_past_along,
            requests_do_not_see_each_other, a_second_generation_is_the_first, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "kv cache: invalidation"

    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = super().append(cache, k, v)
        return (k, v) if self.window is None else (k[:, :, -self.window :], v[:, :, -self.window :])

    @staticmethod
    def visible(case: Case) -> bool:
        if (window := case.window) is None:
            return False
        lost = [visible_keys(case)[:, :, begin:end, : max(0, end - window)] for begin, end in case.pieces()]
        return case.chunks()[0] > window or any(bool(keys.any()) for keys in lost)


class CacheOneTokenTooShort(Fault, DecoderAttention):
    """Keep one token less than the window reaches back, as if the window did not count the query itself.

    Why it is wrong:
        Of W tokens that a query sees one is itself, and W - 1 have to be remembered. Which of the two a window means is the
        question on which masks and caches fall out with each other: without a cache the last token of the window is seen.

    When it shows:
        With a window of two or more, as soon as the cache is full and a query sees the last token of its window.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/37574
        https://github.com/ml-explore/mlx-lm/pull/390

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, d_head=6, mask='is_causal', window=2, placing='rotary', rotary_width=4)

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter
    """

    root_cause = "kv cache: invalidation"

    def forget(self, cache: Cache) -> None:
        if self.window is not None:
            gone = max(0, cache.keys.shape[2] - (self.window - 2))
            cache.keys, cache.values = cache.keys[:, :, gone:], cache.values[:, :, gone:]

    @staticmethod
    def visible(case: Case) -> bool:
        if (window := case.window) is None or window < 2:
            return False
        missing = [visible_keys(case)[:, :, begin:end, : max(0, begin - window + 2)] for begin, end in warm_pieces(case)]
        return any(bool(lost.any()) for lost in missing)


class CacheTakenForTheWindow(Fault, DecoderAttention):
    """Leave the window out of the mask where there are more keys than queries: the cache holds no more than that anyway.

    Why it is wrong:
        It holds no more than the first of the new queries may see. The second sees one too many of them, the third two.

    When it shows:
        When several tokens at once meet a cache that is not empty, if nothing but the window hides a cached key from one.

    Seen in the wild:
        https://github.com/ml-explore/mlx-lm/pull/390
        https://github.com/huggingface/transformers/pull/48280

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=3, d_head=6, mask='is_causal', window=2, placing='rotary', prefill=1, chunk=2)

    Killed by:
        decoding: chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass, beams_take_their_past_along,
            capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "masking: dynamic mask"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if scores.shape[-2] == scores.shape[-1]:
            return super().mask(scores, attn_mask, is_causal)
        window, self.window = self.window, None
        masked = super().mask(scores, attn_mask, is_causal)
        self.window = window
        return masked

    @staticmethod
    def visible(case: Case) -> bool:
        keys = seen_without_causality(case) & causal(case.T, case.S) & ~visible_keys(case)
        return any(bool(keys[:, :, begin:end, begin - _kept(case, begin) : begin].any()) for begin, end in warm_pieces(case))


class WholeMaskForTheWindow(Fault, DecoderAttention):
    """Hand the mask on as it came, over all tokens, to scores that have a column only for those in the cache.

    Why it is wrong:
        The cache has forgotten tokens, and the mask has not. Short texts work, and then comes the first token behind the window.

    When it shows:
        With a mask, when the cache has forgotten a token. It raises.

    Seen in the wild:
        https://github.com/fla-org/flash-linear-attention/issues/431
        https://github.com/huggingface/transformers/pull/48482

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, d_head=6, mask='is_causal+padding', window=1, placing='rotary')

    Killed by:
        decoding: all
    """

    root_cause = "masking: dynamic mask"

    def crop(self, attn_mask: Tensor | None, keys: int) -> Tensor | None:
        return attn_mask

    @staticmethod
    def visible(case: Case) -> bool:
        return has_mask(case) and any(_kept(case, begin) < begin for begin, _ in warm_pieces(case))


class MaskCutAtTheWrongEnd(Fault, DecoderAttention):
    """Cut the mask to the number of keys that are left, and keep its first columns.

    Why it is wrong:
        The first tokens are the ones that were forgotten. Their padding is now said of the last ones: the shapes fit, and a
        sequence that is padded at the left goes blind as soon as its window is full.

    When it shows:
        With a mask, when the cache has forgotten a token, if the mask says something else of the keys that are seen.

    Seen in the wild:
        https://github.com/huggingface/transformers/pull/40324
        https://github.com/fla-org/flash-linear-attention/issues/431

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: what its cache gives.

    Smallest case:
        Case(queries=2, d_head=6, mask='is_causal+padding', window=1, placing='rotary')

    Killed by:
        decoding: token_by_token_is_one_pass, chunk_by_chunk_is_one_pass, going_on_after_a_prefill_is_one_pass,
            beams_take_their_past_along, capacity_does_not_matter, a_cache_keeps_the_dtype
    """

    root_cause = "masking: mask application"

    def crop(self, attn_mask: Tensor | None, keys: int) -> Tensor | None:
        return attn_mask if attn_mask is None else attn_mask[..., :keys]

    @staticmethod
    def visible(case: Case) -> bool:
        if not has_mask(case):
            return False
        inputs = make_inputs(case)
        unmasked = replace(inputs, mask=None).visible()
        allowed = seen_without_causality(case)
        for begin, end in warm_pieces(case):
            gone = begin - _kept(case, begin)
            left = unmasked[:, :, begin:end, gone:end]
            right, got = (left & allowed[:, :, begin:end, first : first + end - gone] for first in (gone, 0))
            biased = gone > 0 and case.encoding == "bias" and bool((right.sum(-1) > 1).any())
            if bool((right != got).any()) or biased:
                return True
        return False
