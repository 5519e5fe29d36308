"""Mechanisms: every clean class keeps every law, and a subject is held to what it declares of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attn import (
    Cache,
    CachedAttention,
    DecoderAttention,
    MultiHeadAttention,
    QKNormAttention,
    RotaryAttention,
    SinkAttention,
    WindowAttention,
)
from faults.matrix import check_correct
from faults.subject import DECLARED, subject
from properties.case import ALL_MASKS, DTYPES, PLACINGS, Case
from properties.conformance import find
from properties.inputs import Inputs, make_inputs
from properties.mechanisms import Mechanisms, alibi_slopes, bucket, rotate
from properties.oracle import attend
from properties.runner import failure, falsify
from properties.subject import Layer, Result, Subject
from properties.supports import Supports
from properties.wrap import Caching, of_class, of_module


@pytest.mark.parametrize("attention", DECLARED, ids=lambda attention: attention.__name__)
def test_every_clean_class_keeps_every_law(attention: type[MultiHeadAttention]) -> None:
    assert check_correct(subject(attention), seed=7, cases=8) == ()


@pytest.mark.parametrize("placing", PLACINGS)
def test_the_formula_keeps_every_law_with_all_mechanisms_at_once(placing: str) -> None:
    def run(inputs: Inputs, training: bool) -> Result:
        if inputs.x.shape[0] == 0:
            return Result(torch.zeros_like(inputs.x), torch.zeros(inputs.scores_shape, dtype=inputs.x.dtype))
        truth = attend(inputs)
        return Result(truth.output, truth.weights)

    supports = Supports(
        masks=ALL_MASKS,
        placings=(placing,),
        windows=(None, 2),
        soft_caps=(None, 1.0),
        sinks=True,
        qk_norm=True,
        d_heads=(2, 4),
        stretches=(1.0, 4.0),
        explicit_positions=placing != "none",
        cross_attention=False,
        dtypes=("float64",),
        dropout=False,
        module=False,
        any_device=False,
    )
    oracle = Subject(name="oracle", build=lambda inputs: Layer(run), supports=supports)
    assert check_correct(oracle, seed=3, cases=3) == ()


# What is declared, and not done.


def broken(one: Subject, law: str) -> str:
    found = falsify(find(law), one, max_examples=60)
    assert found is not None
    return found.evidence


@pytest.mark.parametrize(
    ("declared", "law"),
    [
        ({"cache": True}, "token_by_token_is_one_pass"),
        ({"explicit_positions": True, "cross_attention": False}, "every_position_counts"),
        ({"placings": ("rotary",), "cross_attention": False, "d_heads": (2,)}, "output_is_the_formula"),
        ({"placings": ("alibi",), "cross_attention": False}, "output_is_the_formula"),
        ({"windows": (1, 2)}, "the_window_ends_where_it_says"),
        ({"masks": ("documents",), "always_causal": True, "cross_attention": False}, "packed_documents_are_documents_alone"),
        (
            {"masks": ("documents+padding",), "always_causal": True, "cross_attention": False},
            "packed_documents_are_documents_alone",
        ),
        ({"masks": ("prefix",), "cross_attention": False}, "a_prefix_sees_itself_both_ways"),
        ({"masks": ("prefix+padding",), "cross_attention": False}, "a_prefix_sees_itself_both_ways"),
        ({"soft_caps": (0.1,)}, "the_soft_cap_bounds_the_odds"),
        ({"sinks": True}, "sinks_take_their_share"),
        ({"qk_norm": True}, "qk_norm_bounds_the_scores"),
    ],
)
def test_a_mechanism_that_is_declared_and_not_there_fails(declared: dict[str, Any], law: str) -> None:
    plain = subject()
    assert broken(replace(plain, supports=Supports(**declared)), law)


def test_a_cache_that_is_declared_must_come_with_what_it_declares() -> None:
    case = Case(batch=2, queries=3, mask="is_causal")
    cached = subject(CachedAttention)

    def without_reorder(inputs: Inputs) -> Layer:
        layer = cached.build(inputs)
        begin = layer.decoding
        assert begin is not None
        return replace(layer, decoding=lambda inputs: replace(begin(inputs), reorder=None))

    evidence = failure(find("beams_take_their_past_along"), replace(cached, build=without_reorder), case)
    assert evidence == "it declares that its cache can be reordered, and gives no way to do it"
    nothing = replace(cached, build=lambda inputs: replace(cached.build(inputs), decoding=None))
    assert failure(find("token_by_token_is_one_pass"), nothing, case) == "it declares a cache, and has none"
    plain = replace(subject(), supports=cached.supports)
    assert "and has none" in (failure(find("token_by_token_is_one_pass"), plain, case) or "")


class _OneBuffer(CachedAttention):
    """Every cache is the same memory."""

    def new_cache(self, batch: int, capacity: int | None = None) -> Cache:
        if not hasattr(self, "slots"):
            self.slots = super().new_cache(batch, 8)
        return Cache(self.slots.keys, self.slots.values, capacity=8)


class _InFloat32(CachedAttention):
    def append(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if k.dtype == torch.bfloat16:
            raise TypeError("no bfloat16 in here")
        return super().append(cache, k, v)


class _ChangesTheTokens(CachedAttention):
    def forward(self, x: Tensor, attn_mask: Tensor | None = None, *, cache: Cache | None = None) -> tuple[Tensor, Tensor]:
        result = super().forward(x, attn_mask, cache=cache)
        if cache is not None:
            x.mul_(2)
        return result


class _ChangesTheDefault(CachedAttention):
    def forward(self, x: Tensor, attn_mask: Tensor | None = None, *, cache: Cache | None = None) -> tuple[Tensor, Tensor]:
        if cache is not None:
            torch.set_default_dtype(torch.float64)
        return super().forward(x, attn_mask, cache=cache)


@pytest.mark.parametrize(
    ("attention", "law", "evidence"),
    [
        (_OneBuffer, "requests_do_not_see_each_other", "output beside another request"),
        (_InFloat32, "a_cache_keeps_the_dtype", "it raised TypeError: no bfloat16 in here"),
        (_ChangesTheTokens, "token_by_token_is_one_pass", "handed the next tokens, it changed x, and left it so"),
        (_ChangesTheDefault, "token_by_token_is_one_pass", "it changed torch's default dtype"),
    ],
)
def test_what_a_cache_gets_wrong_is_noticed(attention: type[CachedAttention], law: str, evidence: str) -> None:
    assert evidence in broken(subject(attention), law)


def test_a_cache_of_what_looks_ahead_is_asked_with_causal_masks_alone() -> None:
    class Both(CachedAttention):
        """Causal with a cache, and as it is told without."""

        def forward(self, x: Tensor, attn_mask: Tensor | None = None, *, cache: Any = None, is_causal: bool = False) -> Any:
            q, k, v = (self.split_heads(part) for part in self.project_in(x, None))
            if cache is not None:
                k, v = self.append(cache, k, v)
            return self.attend(q, k, v, attn_mask, is_causal)

    one = subject(Both)
    declared = Supports(cross_attention=False, cache=True, reorders=True, static_cache=True)
    assert check_correct(replace(one, supports=declared), cases=6) == ()


@pytest.mark.parametrize(
    ("made", "evidence"),
    [
        (lambda module, inputs: None, "caching= must return a Caching, it returned None"),
        (lambda module, inputs: Caching(arguments=lambda piece: None), "must return a pair (args, kwargs)"),  # type: ignore[arg-type, return-value]
    ],
)
def test_a_caching_that_is_none_is_told(made: Any, evidence: str) -> None:
    mine = of_module(
        "mine",
        build=lambda inputs: nn.Identity(),
        parameters=lambda weights: {},
        arguments=lambda inputs: ((inputs.x,), {}),
        caching=made,
        supports=Supports(always_causal=True, cross_attention=False, cache=True),
    )
    found = failure(find("token_by_token_is_one_pass"), mine, Case(queries=2, mask="is_causal"))
    assert found is not None and evidence in found


def test_a_class_alone_cannot_be_asked_about_its_cache() -> None:
    with pytest.raises(ValueError, match=r"use of_module\(\.\.\., caching=\) for cache=True"):
        of_class(MultiHeadAttention, cache=True)


def test_constants_are_what_is_declared() -> None:
    class Slower(RotaryAttention):
        def __init__(self, *sizes: int, **options: Any) -> None:
            super().__init__(*sizes, base=500_000.0, **options)

    one, law = subject(Slower), find("output_is_the_formula")
    assert falsify(law, one, max_examples=60) is not None
    assert check_correct(replace(one, supports=replace(one.supports, rotary_base=500_000.0)), cases=3) == ()

    class Exact(QKNormAttention):
        def __init__(self, *sizes: int, **options: Any) -> None:
            super().__init__(*sizes, **options)
            self.query_norm.eps = self.key_norm.eps = 1e-3

    one = subject(Exact)
    assert falsify(law, one, max_examples=60) is not None
    assert check_correct(replace(one, supports=replace(one.supports, qk_norm_eps=1e-3)), cases=3) == ()


class _Raises(CachedAttention):
    def append(self, cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        raise OSError("the cache is on fire")


class _ReturnsNone(CachedAttention):
    def forward(self, x: Tensor, attn_mask: Tensor | None = None, *, cache: Any = None) -> Any:
        return super().forward(x, attn_mask, cache=cache) if cache is None else None


@pytest.mark.parametrize(
    ("attention", "evidence"),
    [(_Raises, "it raised OSError: the cache is on fire"), (_ReturnsNone, "it returned None, not an output")],
)
def test_a_broken_cache_gets_a_verdict(attention: type[CachedAttention], evidence: str) -> None:
    case = Case(queries=2, mask="is_causal")
    assert evidence in (failure(find("token_by_token_is_one_pass"), subject(attention), case) or "")


def test_a_scale_of_its_own_survives_a_qk_norm() -> None:
    class Unscaled(QKNormAttention):
        def score(self, q: Tensor, k: Tensor) -> Tensor:
            return super().score(q, k) * self.d_head**0.5

    one = subject(Unscaled)
    declared = replace(one, supports=replace(one.supports, scale=lambda d_head: 1.0))
    case = Case(queries=3, num_heads=2, d_head=4, qk_norm=True)
    assert failure(find("output_is_the_formula"), declared, case) is None
    assert failure(find("output_is_the_formula"), one, case) is not None


def test_masks_of_other_shapes_reach_a_cache_over_all_its_keys() -> None:
    class ByTokens(CachedAttention):
        def forward(self, x: Tensor, attn_mask: Tensor | None = None, *, cache: Any = None) -> tuple[Tensor, Tensor]:
            return super().forward(x, None if attn_mask is None else attn_mask[:, None, None], cache=cache)

    one = subject(ByTokens)
    declared = replace(one, supports=replace(one.supports, mask_shape="[B, S]"))
    assert check_correct(declared, cases=4) == ()


# The case and the declarations say what they do not take.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window": 0}, "window must be positive, got 0"),
        ({"soft_cap": -1.0}, "soft_cap must be positive, got -1.0"),
        ({"placing": "rotary", "d_head": 3}, "features turn in pairs, rotary_width=3 is odd"),
        ({"placing": "left"}, "placing='left' is not one of none, rotary"),
        ({"positions": "none"}, "positions='none' is not one of counted, offset, given"),
        ({"chunk": 0}, "chunk must be positive, got 0"),
    ],
)
def test_a_case_that_is_none_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case(**fields)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"placings": ("rotary", "absolute")}, "placings must be some of none, rotary"),
        ({"placings": "rotary"}, r"one alone is written \('rotary',\)"),
        ({"windows": (0,)}, "windows must be positive whole numbers, or None for without"),
        ({"windows": (2.5,)}, "windows must be positive whole numbers"),
        ({"windows": ("3",)}, "windows must be positive whole numbers"),
        ({"soft_caps": (torch.inf,)}, "soft_caps must be positive numbers"),
        ({"stretches": (None,)}, r"stretches must be positive numbers, like \(4,\)"),
        ({"rotary_base": 0}, "rotary_base must be a positive number, got 0"),
        ({"placings": ("rotary",), "d_heads": (3,)}, "turn features in pairs"),
        ({"placings": ("rotary",), "d_heads": (2,), "rotary_widths": (4,)}, "no width wider than a head"),
        ({"placings": ("alibi",), "positions": True}, "declare one of the two"),
        ({"reorders": True}, "reorders=True is about a cache, declare cache=True as well"),
        ({"static_cache": True}, "static_cache=True is about a cache"),
        ({"soft_caps": ()}, "soft_caps must be positive numbers"),
        ({"explicit_positions": True}, "declare cross_attention=False as well"),
        ({"sinks": 1}, "sinks must be True or False"),
        ({"always_causal": True, "masks": ("none", "documents")}, "masks must be some of is_causal, is_causal.padding, prefix"),
    ],
)
def test_a_declaration_that_is_none_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Supports(**declared)


@pytest.mark.parametrize(
    ("prefill", "chunk", "chunks"), [(0, 1, [1, 1, 1, 1, 1]), (0, 2, [2, 2, 1]), (3, 1, [3, 1, 1]), (3, 3, [3, 2]), (9, 1, [5])]
)
def test_chunks_add_up_to_the_tokens(prefill: int, chunk: int, chunks: list[int]) -> None:
    assert Case(queries=5, prefill=prefill, chunk=chunk).chunks() == chunks


# The formula of each mechanism, by hand.


def test_slopes_of_alibi() -> None:
    assert alibi_slopes(1).tolist() == [2**-8]
    assert alibi_slopes(2).tolist() == [2**-4, 2**-8]
    assert alibi_slopes(6).tolist() == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]


def test_buckets_are_single_and_then_logarithmic() -> None:
    assert [bucket(d) for d in (-3, 0, 1, 2, 3, 4, 7, 8, 100)] == [0, 0, 1, 2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize(("placing", "pairs"), [("rotary", [(0, 2), (1, 3)]), ("rotary_interleaved", [(0, 1), (2, 3)])])
def test_rotation_turns_the_pairs_of_its_convention(placing: str, pairs: list[tuple[int, int]]) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    turned = rotate(x.view(1, 1, 1, 4), torch.tensor([[6]]), Mechanisms(placing=placing, stretch=2.0)).flatten()
    for i, (a, b) in enumerate(pairs):
        want = torch.complex(x[a], x[b]) * torch.exp(torch.tensor(1j * 3 * 100.0**-i, dtype=torch.complex128))
        torch.testing.assert_close(torch.complex(turned[a], turned[b]), want)


def test_a_window_a_prefix_and_documents_hide_what_they_say() -> None:
    window = make_inputs(Case(queries=4, mask="is_causal", window=2)).visible()[0, 0].int().tolist()
    assert window == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    inputs = make_inputs(Case(queries=3, mask="prefix"))
    prefix = replace(inputs, prefix=torch.tensor([2])).visible()[0, 0].int().tolist()
    assert prefix == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    inputs = make_inputs(Case(queries=3, mask="documents"))
    documents = replace(inputs, documents=torch.tensor([[0, 1, 1]])).visible()[0, 0].int().tolist()
    assert documents == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


def test_sinks_soft_cap_and_norm_of_two_keys() -> None:
    inputs = make_inputs(Case(queries=1, keys=2, d_head=2, sinks=True, soft_cap=0.5, qk_norm=True))
    q, k, _ = inputs.projected()
    w = inputs.weights
    assert w.n_q is not None and w.n_k is not None and w.sinks is not None
    q, k = nn.functional.rms_norm(q, (2,), w.n_q, 1e-6), nn.functional.rms_norm(k, (2,), w.n_k, 1e-6)
    scores = 0.5 * torch.tanh((q @ k.mT).flatten() / 2**0.5 / 0.5)
    exps = torch.cat([scores, w.sinks]).exp()
    torch.testing.assert_close(attend(inputs).weights.flatten(), exps[:2] / exps.sum())


def test_pieces_follow_one_another() -> None:
    inputs = make_inputs(Case(batch=2, queries=4, mask="is_causal+padding", positions="given", placing="rotary", d_head=2))
    piece = inputs.piece(1, 3)
    assert inputs.mask is not None and inputs.positions is not None and piece.mask is not None and piece.positions is not None
    assert torch.equal(piece.x, inputs.x[:, 1:3]) and torch.equal(piece.positions, inputs.positions[:, 1:3])
    assert torch.equal(piece.mask, inputs.mask[..., :3]) and piece.past == 1


@pytest.mark.parametrize("attention", [RotaryAttention, DecoderAttention])
def test_rotary_positions_are_judged_in_every_dtype(attention: type[MultiHeadAttention]) -> None:
    one, law = subject(attention), find("rounding_explains_the_error")
    for dtype in DTYPES:
        case = Case(queries=5, num_heads=2, d_head=4, mask="is_causal", dtype=dtype, placing="rotary", positions="offset")
        assert failure(law, one, case) is None


class _SinksInAnotherBase(SinkAttention):
    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        sinks = 0.5 * self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        return weights if empty is None else weights.masked_fill(empty, 0.0)


def test_a_sink_in_another_base_is_no_score_like_the_others() -> None:
    assert "1.0 added to mask and sinks" in broken(subject(_SinksInAnotherBase), "a_sink_is_a_score_like_any_other")


def test_a_window_that_ends_too_early_breaks_the_law_of_its_end() -> None:
    class Narrow(WindowAttention):
        def __init__(self, *sizes: int, window: int | None, **options: Any) -> None:
            super().__init__(*sizes, window=window and max(1, window - 1), **options)

    case = Case(queries=4, mask="is_causal", window=3)
    found = failure(find("the_window_ends_where_it_says"), subject(Narrow), case)
    assert found is not None
    assert failure(find("the_window_ends_where_it_says"), subject(WindowAttention), case) is None
