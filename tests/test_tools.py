"""The laws of torch's tools: each holds for what is right, and fails for what is right until the tool gets hold of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own import Own
from torch import Tensor, nn

from attn import MultiHeadAttention, causal_mask
from attn.masks import possibly_any
from faults.subject import subject
from properties.case import Case
from properties.conformance import find
from properties.laws import PROPERTIES
from properties.laws.graphs import a_compiled_layer_is_the_layer
from properties.runner import failure
from properties.subject import Subject
from properties.supports import TOOLS, USUAL_TOOLS, Supports
from properties.wrap import of_class, of_function

LAWS = [law for law in PROPERTIES if law.family in ("tools", "graphs", "training")]
CASE = Case(batch=2, queries=3, num_heads=2, d_head=2, mask="sample", bias=True)  # every law is about it


class Bypassed(Own):
    def attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        output, weights = super().attend(x, mask) if not self.bypass() else self.with_out(_Read(self.out), x, mask)
        return output, weights

    def with_out(self, out: nn.Module, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        own, self.out = self.out, out  # type: ignore[assignment]
        try:
            return super().attend(x, mask)
        finally:
            self.out = own

    def bypass(self) -> bool:
        return True


class _Read(nn.Module):
    """Applies the weight of a linear layer, which it does not call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.read = (linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, *self.read)


class BypassedInTraining(Bypassed):
    def bypass(self) -> bool:
        return self.training


class Growing(Own):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        self.seen = [tokens for tokens in self.seen if tokens is x] + [x]
        return self.attend(x * len(self.seen), mask)[0]


class Shared(Own):
    """Its copy takes the parameters along, not copies of them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return copy.copy(self)


class Forgetful(Own):
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "num_heads": 1}


class Unsaved(Own):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.activation = lambda x: x


class InTheDtypeOfTheWeights(Own):
    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().mask(scores.lerp(scores, torch.ones_like(self.out.weight[:1, :1])), mask)


class OtherwiseInHalf(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        output, _ = self.attend(x, mask)
        return output if output.dtype == x.dtype else 100 * output


class Looking(Own):
    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None or (mask.dtype == torch.bool and mask.all()) else super().mask(scores, mask)


class OtherwiseInAGraph(Own):
    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if torch.compiler.is_compiling() else super().mask(scores, mask)


class Detached(Own):
    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().mask(scores.detach(), mask)


class Constant(Own):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        nn.init.constant_(self.out.weight, 0.1)


class Alike(Own):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        with torch.no_grad():
            self.qkv.weight[d_model : 2 * d_model] = self.qkv.weight[:d_model]


class HeadsAlike(Own):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        with torch.no_grad():
            head = self.qkv.weight[: d_model // num_heads].clone()
            self.qkv.weight[:d_model] = head.repeat(num_heads, 1)


class Large(Own):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        nn.init.normal_(self.qkv.weight)


class _WeightReset(nn.Linear):
    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)


class HalfReset(Own):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.out = _WeightReset(d_model, d_model)
        nn.init.zeros_(self.out.bias)


BROKEN: list[tuple[type[Own], str, str]] = [
    (Bypassed, "every_submodule_is_called", "in evaluation out was not called"),
    (BypassedInTraining, "every_submodule_is_called", "in training out was not called"),
    (Growing, "checkpointing_changes_nothing", "gradient of x, checkpointed,["),
    (Shared, "a_copy_stands_alone", "output of a copy, the parameters of the original set to 0,"),
    (Forgetful, "a_copy_stands_alone", "output of a copy["),
    (Forgetful, "a_saved_layer_comes_back", "output of the layer that came back["),
    (Unsaved, "a_saved_layer_comes_back", "pickle"),
    (InTheDtypeOfTheWeights, "autocast_rounds_and_no_more", "it raised RuntimeError: expected dtype"),
    (OtherwiseInHalf, "autocast_rounds_and_no_more", "output under autocast["),
    (Looking, "vmap_is_a_loop", "data-dependent control flow"),
    (Looking, "an_exported_layer_is_the_layer", "data-dependent expression"),
    (OtherwiseInAGraph, "a_compiled_layer_is_the_layer", "compiled: output for the numbers it was traced with["),
    (OtherwiseInAGraph, "an_exported_layer_is_the_layer", "exported: output for the numbers it was traced with["),
    (Detached, "every_parameter_learns", "no gradient reaches row 0 of qkv.weight [12, 4]"),
    (Constant, "projections_start_apart", "as built, every number of w_o is 0.1"),
    (Alike, "projections_start_apart", "as built, w_q and w_k are equal"),
    (HeadsAlike, "projections_start_apart", "as built, heads 0 and 1 of w_q are equal"),
    (Large, "scores_start_in_reach", "as built, scores of standard normal tokens spread by "),
    (HalfReset, "a_reset_reaches_every_parameter", "reset_parameters() leaves out.bias as it was"),
]


def own(build: Callable[..., nn.Module]) -> Subject:
    return of_class(build, weights=False, empty_rows="nan", tools=TOOLS)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_what_is_right_holds(law: Any) -> None:
    assert failure(law, own(Own), CASE) is None


@pytest.mark.parametrize(("build", "name", "evidence"), BROKEN, ids=lambda part: getattr(part, "__name__", ""))
def test_what_is_right_without_the_tool_fails_with_it(build: type[Own], name: str, evidence: str) -> None:
    found = failure(find(name), own(build), CASE)
    assert found is not None and evidence in found
    assert failure(find("output_is_the_formula"), own(build), CASE) is None


def test_a_zero_output_projection_may_be_meant() -> None:
    class Zero(Own):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__(d_model, num_heads)
            nn.init.zeros_(self.out.weight)

    assert failure(find("projections_start_apart"), own(Zero), CASE) is None


def test_a_class_that_pickle_cannot_import_is_no_fault_of_the_layer() -> None:
    class Local(Own):
        pass

    assert failure(find("a_saved_layer_comes_back"), own(Local), CASE) is None


def test_kaiming_and_xavier_start_in_reach() -> None:
    for init in (nn.init.kaiming_normal_, nn.init.kaiming_uniform_, nn.init.xavier_normal_, nn.init.orthogonal_):

        def build(d_model: int, num_heads: int, init: Callable[[Tensor], Tensor] = init) -> nn.Module:
            module = Own(d_model, num_heads)
            init(module.qkv.weight)
            return module

        assert failure(find("scores_start_in_reach"), own(build), CASE) is None


def test_a_function_has_no_use_for_them() -> None:
    of_a_function = of_function(F.scaled_dot_product_attention, tools=TOOLS)
    assert {law.not_applicable(of_a_function) for law in LAWS} == {"it is not a module"}


def test_by_default_the_costly_ones_are_left_out() -> None:
    by_default = of_class(Own, weights=False, empty_rows="nan")
    skipped = {law.name: law.not_applicable(by_default) for law in LAWS if law.not_applicable(by_default)}
    assert skipped == {
        "autocast_rounds_and_no_more": "it does not declare the tool autocast, or not both dtypes, float32 and bfloat16",
        "vmap_is_a_loop": "it does not declare the tool vmap",
        "a_compiled_layer_is_the_layer": "it does not declare the tool compile, or torch.compile cannot run here",
        "an_exported_layer_is_the_layer": "it does not declare the tool export",
    }
    assert Supports().tools == USUAL_TOOLS and Supports(tools=("vmap", "pickle")).tools == ("pickle", "vmap")
    assert Supports(tools=()).tools == ()


def test_every_tool_can_be_declared_away() -> None:
    none = of_class(Own, weights=False, empty_rows="nan", tools=())
    assert [law.name for law in LAWS if law.not_applicable(none) is None] == ["every_parameter_learns"]


@pytest.mark.parametrize("tools", ["vmap", ("vmpa",), 3])
def test_what_is_no_tool_is_refused(tools: Any) -> None:
    with pytest.raises(ValueError, match="tools must be some of checkpoint, "):
        Supports(tools=tools)


def test_a_graph_is_traced_once_for_each_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **how: compiled.append(1) or compile_(module, **how))
    checked = subject(MultiHeadAttention)
    for mask in ("none", "padding", "empty"):
        a_compiled_layer_is_the_layer(checked, Case(mask=mask))
    assert len(compiled) == 1


def test_the_attention_looks_at_a_mask_only_where_it_can() -> None:
    attention, x = MultiHeadAttention(8, 2).eval(), torch.randn(2, 1, 3, 8)
    masks = torch.stack([causal_mask(3), causal_mask(3) & torch.tensor([False, True, True])[:, None]])  # the second: an empty row
    together = torch.func.vmap(attention)(x, masks)
    for i in range(2):
        for got, want in zip(together, attention(x[i], masks[i]), strict=True):
            torch.testing.assert_close(got[i], want, rtol=1e-6, atol=1e-6)
    assert not possibly_any(torch.zeros(2, dtype=torch.bool)) and possibly_any(torch.tensor([False, True]))
    assert possibly_any(torch.zeros(2, dtype=torch.bool, device="meta"))
    assert not math.isnan(float(together[0].sum()))
