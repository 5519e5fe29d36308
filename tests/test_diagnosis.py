"""Which known mistake an attention has: the right one is named, none where there is none, and no guess passes for knowledge."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from own import Own
from torch import Tensor

from attn import AlibiAttention, CachedAttention, DecoderAttention, MultiHeadAttention, RotaryAttention
from faults.__main__ import main
from faults.catalog import catalog, find
from faults.diagnosis import Diagnosis, of_report
from faults.diagnosis.alike import COMMAND, PAGE, groups, page
from faults.diagnosis.candidates import Candidate, singles
from faults.diagnosis.domain import clean_class_for, shared_fields
from faults.diagnosis.laws import Agreement, agreement
from faults.diagnosis.numbers import Match
from faults.diagnosis.sights import CHANCE, Sight, Viewer
from faults.diagnosis.told import CONVENTIONS
from faults.diagnosis.where import departure
from faults.fault import subject_of
from faults.looks import OUTPUT, RESET
from faults.subject import DECLARED, subject
from properties import check_attention, of_function
from properties.case import Case
from properties.subject import Layer, Subject
from properties.supports import Supports
from properties.time_limit import Patience


def examine(attention: object, *, only: str = "reference", time_limit: float = 20.0, **declared: Any) -> Diagnosis:
    """A diagnosis from the laws of one family, to be quick."""
    return of_report(check_attention(attention, only=only, cases=6, time_limit=time_limit, **declared), time_limit)


class Merged(Own):
    """The heads are merged in front of the tokens, and the scale is forgotten, or only one of these."""

    scale = True

    def attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = self.mask(q @ k.mT / (q.shape[-1] ** 0.5 if self.scale else 1), mask)
        return self.out((scores.softmax(-1) @ v).reshape(x.shape)), scores


class MergedAndUnscaled(Merged):
    scale = False


class OutTwice(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.out(self.attend(x, mask)[0])


class Squared(Own):
    """Weights that are squared, and brought back to a sum of 1."""

    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().mask(2 * scores, mask)


class Late(Own):
    """An extra mistake at the end, which turns the order of the features around."""

    def attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        weights = self.mask(q @ k.mT / q.shape[-1] ** 0.5, mask).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2).flip(-1)), weights


class Leaky(Own):
    """What is hidden gets little weight, and some."""

    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else torch.where(mask, scores, -2.0)


def test_a_mistake_is_named_by_its_numbers() -> None:
    found = examine(Merged)
    assert found.verdict == "identified"
    assert found.answers[0].names == ("wrong-merge-order",)
    match = found.answers[0].match
    assert match and match.same > 50 and not (match.other or match.apart)
    assert "python -m faults explain wrong-merge-order" in str(found)
    assert "numbers: the same, rounding aside, in all" in str(found)


def test_two_mistakes_are_recognised_together() -> None:
    found = examine(MergedAndUnscaled, encodings=("bool",))
    assert found.verdict == "combination"
    assert set(found.answers[0].candidate.name.split(" and ")) == {"wrong-merge-order", "missing-scale"}


def test_a_correct_one_is_correct_as_far_as_can_be_told() -> None:
    found = examine(Own, only="")
    assert found.verdict == "correct" and not found.answers
    assert "can be made in what it declares" in str(found)


@pytest.mark.parametrize(
    ("attention", "step"),
    [(OutTwice, "out-projection"), (Squared, "score"), (Late, "merging the heads"), (Leaky, "masking")],
    ids=["out", "score", "merge", "mask"],
)
def test_what_no_one_knows_is_unknown_and_departs_somewhere(attention: type, step: str) -> None:
    found = examine(attention, encodings=("bool",))
    assert found.verdict == "unknown"
    assert found.departs and found.departs.step == step
    assert "Where it departs" in str(found)
    assert not any(answer.match and answer.match.identical for answer in found.answers)


def test_a_function_is_compared_too() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v

    assert examine(of_function(attention)).answers[0].names == ("missing-scale",)


def test_conventions_of_its_own_do_not_hide_a_mistake() -> None:
    class Own3D(Own):
        def attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
            q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
            scores = q @ k.mT
            if mask is not None:
                scores = scores.masked_fill(mask[:, None], -torch.inf)
            weights = scores.softmax(-1).nan_to_num(0.0)
            return self.out((weights @ v).transpose(1, 2).flatten(2)), weights

    found = examine(Own3D, polarity="hide", mask_shape="[B, T, S]", encodings=("bool",), dtypes=("float32",))
    assert found.answers[0].names == ("missing-scale",)


def test_a_mistake_of_the_plain_class_is_known_in_a_layer_with_a_mechanism() -> None:
    unscaled: Any = type("Unscaled", (find("missing-scale"), RotaryAttention), {})
    found = examine(replace(subject(unscaled), name="a rotary layer"))
    assert found.verdict == "identified"
    assert found.answers[0].names == ("missing-scale",)


def test_a_black_box_is_judged_by_its_laws_alone() -> None:
    box = subject_of(find("softmax-over-queries"))
    box = replace(box, supports=replace(box.supports, loads_weights=False))
    found = examine(box, only="rows")
    assert found.verdict in ("resembles", "unknown")
    assert all(answer.match is None for answer in found.answers)
    assert "weights cannot be set" in str(found)


def test_what_only_laws_see_is_said_to_resemble() -> None:
    found = examine(subject_of(find("dropped-weights-returned")), only="")
    assert found.verdict == "resembles"
    assert found.answers[0].names == ("dropped-weights-returned",)


def test_what_only_raises_is_said_to_raise_and_not_to_compute() -> None:
    class OnlyBoolean(Own):
        def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
            if mask is not None and mask.dtype != torch.bool:
                raise TypeError("a boolean mask, please")
            return super().mask(scores, mask)

    found = examine(OnlyBoolean)
    assert found.verdict in ("raises", "unknown")
    assert "computes" not in str(found)
    assert examine(subject_of(find("unexpanded-kv-heads"))).verdict == "raises"


def test_faults_that_cannot_be_told_apart_are_one_answer() -> None:
    assert set(examine(subject_of(find("double-scale"))).answers[0].names) == {"double-scale", "scale-without-root"}


def test_the_page_of_those_is_what_is_found_now() -> None:
    found = groups()
    assert ("double-scale", "scale-without-root") in found
    if PAGE.parent.is_dir():
        assert PAGE.read_text(encoding="utf-8") == page(found), f"docs/alike.md is stale: run `{COMMAND}`"


@pytest.mark.parametrize(
    ("forward", "verdict"),
    [
        (lambda self, x, mask=None: None, "raises"),
        (lambda self, x, mask=None: x[:, :0], "raises"),
        (lambda self, x, mask=None: x * torch.nan, "unknown"),
        (lambda self, x, mask=None: torch.dropout(self.attend(x, mask)[0], 0.3, True), "unknown"),
        (lambda self, x, mask=None: (self.attend(x, mask)[0], x.mul_(2))[0], "unknown"),
        (lambda self, x, mask=None: sys.exit(3), "raises"),
    ],
    ids=["none", "shape", "nan", "random", "mutates", "exits"],
)
def test_nonsense_is_no_known_mistake(forward: Any, verdict: str) -> None:
    found = examine(type("Nonsense", (Own,), {"forward": forward}), only="output_is", masks=("none", "causal"))
    assert found.verdict == verdict
    assert "computes" not in str(found)
    assert "of the laws, for instance:" in str(found) and "on Case(" in str(found)


def test_a_law_that_holds_speaks_against_the_same_numbers() -> None:
    assert Agreement(both=("a",) * 20, only_subject=("b",) * 3, only_fault=()).bear_it_out
    assert not Agreement(both=("a",) * 20, only_subject=(), only_fault=("c",) * 5).bear_it_out
    assert not Agreement(both=("a",), only_subject=("b",) * 2, only_fault=()).bear_it_out


def candidate(name: str) -> Candidate:
    return next(c for c in singles(MultiHeadAttention, subject(MultiHeadAttention)) if c.name == name)


@pytest.mark.parametrize(
    ("counts", "identical"),
    [((9, 0, 0, 0), True), ((9, 1, 0, 0), False), ((9, 0, 9, 0), False), ((9, 0, 8, 0), True), ((9, 0, 0, 1), False)],
)
def test_one_other_number_is_enough_to_be_another(counts: tuple[int, int, int, int], identical: bool) -> None:
    same, other, one, apart = counts
    match = Match(candidate("missing-scale"), same=same, returned=same, other=other, one=one, apart=apart, looks=())
    assert match.identical is identical


def test_to_raise_and_to_be_off_is_nothing_in_common() -> None:
    wrong = subject_of(find("missing-scale"))
    findings = check_attention(wrong, only="output_is", cases=6).findings
    assert agreement(wrong, findings, candidate("missing-scale"), Patience()).both == ("output_is_the_formula",)
    assert agreement(wrong, findings, candidate("softmax-not-cast-back"), Patience()).both == ()


def test_what_is_a_convention_may_be_declared() -> None:
    assert "declare scale=lambda d_head: 1.0" in str(examine(subject_of(find("missing-scale"))))
    assert CONVENTIONS.keys() <= catalog().keys()
    assert {declaration.partition("=")[0] for declaration in CONVENTIONS.values()} <= {f.name for f in fields(Supports)}


def test_what_is_wrong_only_after_a_reset_departs_in_the_cache() -> None:
    places = [(RESET, Case(queries=2))]
    found = departure(subject(CachedAttention), places, [], Patience())
    assert found and found.step == "the cache" and found.because.endswith(RESET)


def test_what_hangs_or_dies_gets_an_answer() -> None:
    class Hangs(Own):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            if x.shape[1] > 1:
                time.sleep(60)
            return super().forward(x, mask)  # type: ignore[return-value]

    class Dies(Own):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            if x.shape[1] > 1 and x.shape[2] > 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().forward(x, mask)  # type: ignore[return-value]

    assert "it has not ended" in str(examine(Hangs, only="output_is", time_limit=1.0))
    told = {"weights": False, "empty_rows": "nan"}  # so that it need not be asked, which is done here
    dead = of_report(check_attention(Dies, only="output_is", cases=3, in_processes=True, **told))
    assert dead.verdict == "unknown" and "brings down" in str(dead)


def test_the_report_of_a_check_has_it_if_asked() -> None:
    report = check_attention(Merged, only="output_is", cases=3, diagnose=True)
    assert "wrong-merge-order" in str(report)
    diagnosis = report.as_dict()["diagnosis"]
    assert diagnosis["verdict"] == "identified"
    assert check_attention(Merged, only="output_is", cases=3).as_dict()["diagnosis"] is None


def test_without_the_catalog_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faults.diagnosis", None)
    with pytest.raises(ValueError, match="needs the catalog, the package `faults`"):
        check_attention(Own, diagnose=True)


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.diagnosis.command.diagnose", lambda thing, **declared: examine(thing))
    assert main(["diagnose", "test_diagnosis:Merged", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["answers"][0]["faults"] == ["wrong-merge-order"]
    assert main(["diagnose", "own:Own"]) == 0
    assert "correct, as far as can be told" in capsys.readouterr().out
    assert main(["diagnose", "own:Nothing"]) == 2
    assert "own has no Nothing" in capsys.readouterr().err


def test_the_command_in_a_process_of_its_own() -> None:
    ran = subprocess.run([sys.executable, "-m", "faults", "diagnose", "--help"], capture_output=True, text=True, check=True)
    assert "MODULE:NAME" in ran.stdout


@pytest.mark.parametrize("attention", [MultiHeadAttention, RotaryAttention, CachedAttention, DecoderAttention])
def test_it_is_compared_with_the_class_that_has_its_mechanisms(attention: type[MultiHeadAttention]) -> None:
    assert clean_class_for(subject(attention)) is attention


def test_what_two_subjects_share() -> None:
    plain, rotary = DECLARED[MultiHeadAttention], DECLARED[RotaryAttention]
    assert shared_fields(plain, rotary) is None
    shared = shared_fields(plain, replace(plain, cross_attention=False, num_heads=(8,)))
    assert shared and shared["keys"] == (None,) and shared["num_heads"] == (8,)
    counting = shared_fields(rotary, replace(rotary, explicit_positions=False))
    assert counting and counting["positions"] == ("counted",)  # not named: it takes none


def test_no_candidate_is_one_that_its_class_does_otherwise() -> None:
    named = {candidate.name for candidate in singles(RotaryAttention, subject(RotaryAttention))}
    assert {"missing-scale", "turned-the-other-way"} <= named
    assert "missing-scale" not in {candidate.name for candidate in singles(AlibiAttention, subject(AlibiAttention))}


ONES = torch.ones(2, dtype=torch.float64)
RIGHT = Sight((ONES,), (1e-16,))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (RIGHT, Sight((ONES + 1e-13,), (1e-16,)), True),
        (RIGHT, Sight((ONES + 1e-9,), (1e-16,)), False),
        (Sight((ONES + 1e-9,), (1e-16,)), Sight((ONES - 3e-9,), (1e-16,)), True),  # float32, both of them
        (RIGHT, Sight(raised="it did"), None),
        (Sight(raised="one"), Sight(raised="other"), True),
        (RIGHT, Sight((torch.ones(3),), (1e-16,)), None),  # another shape is as good as nothing
        (Sight((torch.tensor([1.0, torch.nan]),), (1e-16,)), Sight((torch.tensor([1.0, torch.nan]),), (1e-16,)), True),
        (Sight((torch.tensor([1.0, torch.nan]),), (1e-16,)), RIGHT, False),
        (Sight(counts={(0.0,): 128, (2.0,): 128}), Sight(counts={(0.0,): 140, (2.0,): 116}), True),
        (Sight(counts={(0.0,): 128, (2.0,): 128}), Sight(counts={(0.0,): 64, (2.0,): 192}), False),
    ],
)
def test_when_two_show_the_same(one: Sight, other: Sight, same: bool | None) -> None:
    assert one.same(other, RIGHT, torch.float64) is same


def test_what_a_subject_does_is_a_sight_whatever_it_is() -> None:
    def build(inputs: object) -> Any:
        return Layer(lambda inputs, training: sys.exit(3))

    assert "SystemExit" in Viewer(Subject(name="leaves", build=build)).see(OUTPUT, Case()).raised


def test_dropout_is_compared_by_what_it_may_give() -> None:
    case = Case(keys=2, dropout=0.25)
    right, swapped = (
        Viewer(subject_of(find(name))).see(CHANCE, case) for name in ("missing-scale", "keep-probability-for-drop-probability")
    )
    assert right.counts and swapped.counts and right.same(swapped, right, torch.float64) is False
