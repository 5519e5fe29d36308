"""What is declared is what a subject is held to: a right declaration holds, and one that contradicts the code fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from own import Own
from torch import Tensor

from attn import MultiHeadAttention
from properties import (
    PROPERTIES,
    Case,
    Supports,
    black_box,
    check_attention,
    failure,
    make_inputs,
    of_class,
    of_function,
    of_module,
)
from properties.conformance import find
from properties.report import FAILED, HELD, NOT_APPLICABLE
from properties.subject import Subject
from properties.supports import TOOLS


class TrueHides(Own):
    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().mask(scores, ~mask if mask is not None and mask.dtype == torch.bool else mask)


class ByBatch(Own):
    """Takes its masks as [B, T, S], and nothing else."""

    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and mask.dim() != 3:
            raise ValueError("mask must be [B, T, S]")
        return super().mask(scores, None if mask is None else mask[:, None])


class HidesTokens(Own):
    """Takes its masks as [B, S], and nothing else."""

    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and mask.dim() != 2:
            raise ValueError("mask must be [B, S]")
        return super().mask(scores, None if mask is None else mask[:, None, None])


class TopLeft(MultiHeadAttention):
    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            if attn_mask is None:
                attn_mask = seen
            elif attn_mask.dtype == torch.bool:
                attn_mask = attn_mask & seen
            else:
                attn_mask = attn_mask.masked_fill(~seen, -torch.inf)
        return super().mask(scores, attn_mask, False)


class Unscaled(Own):
    def attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        weights = self.mask(q @ k.mT, mask).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2)), weights


class Interleaved(MultiHeadAttention):
    def expand_kv_heads(self, heads: Tensor) -> Tensor:
        return heads.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)


class SoftmaxInSingle(Own):
    def attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        weights = self.mask(q @ k.mT * q.shape[-1] ** -0.5, mask).softmax(-1, dtype=torch.float32).to(x.dtype)
        return self.out((weights @ v).transpose(1, 2).flatten(2)), weights


class EvenWidthsOnly(Own):
    def __init__(self, d_model: int, num_heads: int) -> None:
        if d_model // num_heads % 8:
            raise ValueError("d_head must be a multiple of 8")
        super().__init__(d_model, num_heads)


class WithPositions(Own):
    """Nearer keys count more (Press et al. 2021, https://arxiv.org/abs/2108.12409)."""

    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        tokens = torch.arange(scores.shape[-1], dtype=scores.dtype, device=scores.device)
        return super().mask(scores - (tokens - tokens[:, None]).abs(), mask)


class UniformOnEmptyRows(Own):
    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        masked = super().mask(scores, mask)
        return masked.masked_fill((masked == -torch.inf).all(-1, keepdim=True), 0.0)


class OnTheDefaultDevice(Own):
    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().mask(scores + torch.zeros(scores.shape[-1], dtype=scores.dtype), mask)


class SafeSoftmax(MultiHeadAttention):
    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        return super().softmax(scores, empty).nan_to_num()


def one(d_head: int) -> float:
    return 1.0


RIGHT: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    # what, what to declare, what to declare wrongly, a law that must notice
    (TrueHides, {"polarity": "hide"}, {"polarity": "attend"}, "output_is_the_formula"),
    (ByBatch, {"mask_shape": "[B, T, S]"}, {"mask_shape": "[B, 1, T, S]"}, "output_is_the_formula"),
    (HidesTokens, {"mask_shape": "[B, S]"}, {"mask_shape": "[T, S]"}, "output_is_the_formula"),
    (TopLeft, {"causal_alignment": "top_left"}, {"causal_alignment": "bottom_right"}, "the_flag_means_its_mask"),
    (MultiHeadAttention, {}, {"causal_alignment": "top_left"}, "the_flag_means_its_mask"),
    (Unscaled, {"scale": one}, {}, "two_keys_share_by_the_sigmoid"),
    (Own, {}, {"scale": one}, "two_keys_share_by_the_sigmoid"),
    (Interleaved, {"kv_head_map": "interleaved"}, {}, "grouped_heads_are_full_heads_with_repeated_weights"),
    (MultiHeadAttention, {}, {"kv_head_map": "interleaved"}, "grouped_heads_are_full_heads_with_repeated_weights"),
    (SoftmaxInSingle, {"floors": {"float64": "float32"}}, {}, "output_is_the_formula"),
    (EvenWidthsOnly, {"d_heads": (8,)}, {"d_heads": (8, 12)}, "output_is_the_formula"),
    (WithPositions, {"positions": True}, {}, "output_is_the_formula"),
    (OnTheDefaultDevice, {"any_device": False}, {"any_device": True}, "what_is_made_is_made_where_x_is"),
    (MultiHeadAttention, {"nan_comes_out": True}, {"causal_alignment": "top_left"}, "the_flag_means_its_mask"),
    (SafeSoftmax, {}, {"nan_comes_out": True}, "a_nan_that_is_seen_comes_out"),
    (UniformOnEmptyRows, {"empty_rows": "uniform"}, {"empty_rows": "zero"}, "empty_rows_are_as_declared"),
    (Own, {"empty_rows": "nan"}, {"empty_rows": "uniform"}, "empty_rows_are_as_declared"),
    (Own, {"empty_rows": "undefined"}, {"empty_rows": "zero"}, "empty_rows_are_as_declared"),
    (Own, {"weights": False}, {"weights": True}, "rows_sum_to_one"),
    (Own, {"dropout": False}, {"dropout": True}, "dropout_drops_single_weights"),
    (Own, {"cross_attention": False}, {"cross_attention": True}, "permuted_keys_change_nothing"),
    (Own, {"biases": "qkvo"}, {"grouped_heads": True}, "grouped_heads_are_full_heads_with_repeated_weights"),
]


def name(value: Any) -> str | None:
    if isinstance(value, dict):
        return ",".join(f"{key}={getattr(said, '__name__', said)}" for key, said in value.items()) or "nothing"
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("what", "right", "wrong", "law"), RIGHT, ids=name)
def test_a_right_declaration_holds_and_a_wrong_one_fails(
    what: Any, right: dict[str, Any], wrong: dict[str, Any], law: str
) -> None:
    report = check_attention(what, cases=6, **right)
    assert report.ok, str(report)
    assert check_attention(what, cases=60, only=law, **wrong).of(FAILED)


def test_a_projection_without_a_bias_is_no_projection_with_one() -> None:
    class OnlyTheOutBiased(Own):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__(d_model, num_heads)
            self.qkv = torch.nn.Linear(d_model, 3 * d_model, bias=False)

    subject = of_class(OnlyTheOutBiased)
    assert subject.supports.biases == "o"
    assert check_attention(subject, cases=30).ok
    inputs = make_inputs(Case(num_heads=2, bias=True, biases="o"))
    assert [field for field, _ in inputs.weights.items() if field[0] == "b"] == ["b_o"]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"polarity": "true"}, r"polarity must be one of attend \| hide, got 'true'"),
        ({"causal_alignment": "left"}, r"causal_alignment must be one of bottom_right \| top_left, got 'left'"),
        ({"mask_shape": "[B, T]"}, r"mask_shape must be one of broadcast \| \[T, S\] \| .*, got '\[B, T\]'"),
        ({"mask_shape": "[T, S]", "masks": ("causal", "padding")}, r"masks padding cannot be said in mask_shape='\[T, S\]'"),
        ({"num_heads": 8}, r"num_heads must be positive whole numbers, like \(8, 16\), got 8"),
        ({"d_heads": (0,)}, r"d_heads must be positive whole numbers, like \(8, 16\), got \(0,\)"),
        ({"floors": {"float64": "float8"}}, "a dtype that is no wider, got 'float64': 'float8'"),
        ({"floors": {"float32": "float64"}}, "a dtype that is no wider, got 'float32': 'float64'"),
        ({"floors": {"float64": "float32"}, "dtypes": ("float32",)}, "for some of float32, .* got 'float64': 'float32'"),
        ({"scale": 1.0}, "scale must be a function of d_head, like `lambda d_head: 1.0`, got 1.0"),
        ({"scale": lambda d_head: 0.0}, "scale must give a positive number, for d_head=4 it gave 0.0"),
        ({"masks": None}, "masks must be some of none, .*, got None"),
        ({"encodings": "bool"}, r"encodings must be some of .*, got 'bool'; one alone is written \('bool',\)"),
        ({"dropout": "no"}, "dropout must be True or False, got 'no'"),
        ({"num_heads": ("2",)}, r"num_heads must be positive whole numbers, like \(8, 16\), got \('2',\)"),
        ({"floors": "x"}, r"floors must be a mapping, like .*, got 'x'"),
        ({"scale": lambda d_head: None}, "scale must give a positive number, for d_head=4 it gave None"),
        (
            {"always_causal": True, "masks": ("causal",)},
            "if always_causal, masks .* is_causal, is_causal.padding, prefix, .*, got",
        ),
        ({"biases": "qx"}, "biases must be letters of 'qkvo', or '', got 'qx'"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Supports(**declared)


def test_a_shape_of_mask_limits_the_kinds_of_mask() -> None:
    assert Supports(mask_shape="[B, S]").masks == ("none", "is_causal", "padding", "is_causal+padding")


def test_every_mask_arrives_in_the_declared_shape_and_polarity() -> None:
    seen: set[tuple[int, ...]] = set()

    def see(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            B, h, T, S = *q.shape[:3], k.shape[2]
            seen.add(tuple(mask.shape))
            assert mask.shape == (B * h, T, S)
            mask = mask.unflatten(0, (B, h))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)

    subject = of_function(see, name="see", mask_shape="[B*h, T, S]", empty_rows="zero")
    assert check_attention(subject, cases=5, only="mask").ok
    assert len(seen) > 5


WITHOUT_WEIGHTS = [
    (lambda: black_box(Own), HELD),
    (lambda: black_box(Own(16, 4), num_heads=(4,), d_heads=(4,)), HELD),
    (lambda: black_box(WithPositions, positions=True), HELD),
    (lambda: black_box(WithPositions), FAILED),
]


@pytest.mark.parametrize(("make", "status"), WITHOUT_WEIGHTS)
def test_a_black_box_is_asked_what_needs_no_weights(make: Callable[[], Subject], status: str) -> None:
    report = check_attention(make(), cases=20)
    assert report.ok == (status == HELD), str(report)
    assert all(found.status == NOT_APPLICABLE for found in report.findings if "loads_weights" in found.property.needs)
    assert "its weights cannot be set: output_is_the_formula" in str(report)
    unseen = report.mistakes.unseen
    assert "wrong-scale-by-model" in unseen or any("scale" in name for name in unseen)  # no symmetry sees a scale
    assert f"of these {len(unseen)} would go unseen" in " ".join(str(report).split())


class ForgetsAKey(Own):
    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().mask(scores, None if mask is None or mask.dim() == 2 else mask[:1])


class LooksAhead(Own):
    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else super().mask(scores, mask).clamp(min=-30.0)


@pytest.mark.parametrize("broken", [ForgetsAKey, LooksAhead])
def test_a_broken_black_box_is_found_out(broken: type[Own]) -> None:
    for subject in (black_box(broken), black_box(broken(32, 4), num_heads=(4,), d_heads=(8,))):
        assert check_attention(subject, cases=30, only="batch").of(FAILED) + check_attention(subject, cases=30, only="caus").of(
            FAILED
        )


def test_returned_weights_come_back_in_our_order_of_heads() -> None:
    """Of six heads in two groups: the smallest interleaving that is not its own inverse."""
    law, case = find("weights_are_the_formula"), Case(queries=2, num_heads=6, num_kv_heads=2, d_head=2)
    assert failure(law, of_class(Interleaved, kv_head_map="interleaved"), case) is None


def test_a_black_box_that_only_makes_hidden_keys_unlikely_is_beaten_by_their_contents() -> None:
    law, case = find("content_of_hidden_keys_is_irrelevant"), Case(queries=3, num_heads=2, d_head=2, mask="causal")
    assert failure(law, black_box(Own), case) is None
    assert "hidden from this query: output" in str(failure(law, black_box(LooksAhead), case))


def test_the_unseen_are_those_that_no_property_notices_that_applies() -> None:
    promises = {"tools": TOOLS, "nan_comes_out": True, "empty_sequences": True}
    everything = check_attention(of_class(MultiHeadAttention, **promises), cases=1).mistakes
    assert everything.unseen == ()
    assert "wrong-merge-order" in everything.possible
    assert not {"window-one-too-wide", "far-costs-less", "values-overwritten"} & set(everything.possible)  # it has no such thing
    without_masks = check_attention(of_class(MultiHeadAttention, masks=("none",)), cases=1).mistakes
    assert len(without_masks.possible) < len(everything.possible) < everything.known


def test_every_need_has_its_words() -> None:
    supports = Supports(loads_weights=False, positions=True)
    for law in PROPERTIES:
        for need in law.needs:
            assert isinstance(getattr(supports, need), bool)
            assert supports.lacks(need)


def test_a_module_by_an_adapter_gets_everything_by_its_conventions() -> None:
    subject = of_module(
        "true hides",
        build=lambda inputs: TrueHides(inputs.x.shape[2], inputs.num_heads).to(inputs.x.dtype),
        parameters=lambda w: {"qkv.weight": torch.cat([w.w_q, w.w_k, w.w_v]), "out.weight": w.w_o},
        arguments=lambda inputs: ((inputs.x, inputs.mask), {}),
        supports=Supports(
            polarity="hide", biases="", empty_rows="nan", weights=False, cross_attention=False, dropout=False, grouped_heads=False
        ),
    )
    failed = {found.property.name for found in check_attention(subject, cases=10, only="formula").of(FAILED)}
    assert "parameters_are_those_of_the_formula" in failed  # it has biases, which the adapter does not load
