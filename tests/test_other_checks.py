"""What other checks see: the inputs are those that they use, what is right is seen by none, and the page says what is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from faults import __main__ as command
from faults.catalog import equivalents, find
from faults.other_checks import replayed
from faults.other_checks.checks import BEYOND, CHECKS, SEEN, UNSEEN, Check, expressible
from faults.other_checks.page import BEGIN, COMMAND, END, Verdicts, judge, page, stale, totals, with_table, write
from faults.subject import DECLARED, subject

CHECK = {check.letter: check for check in CHECKS}
REPLAYED = [check for check in CHECKS if check.letter not in ("D", "E")]


def test_the_page_and_the_table_in_the_readme_are_what_is_found() -> None:
    assert stale(judge(workers=1)) is None


@pytest.mark.parametrize("check", REPLAYED, ids=lambda check: check.letter)
def test_what_is_right_is_seen_by_none(check: Check) -> None:
    assert [name for name, variant in equivalents().items() if check(variant) == SEEN] == []


@pytest.mark.parametrize(
    ("letter", "name", "verdict"),
    [
        ("A", "missing-contiguous", SEEN),  # it raises
        ("A", "missing-transpose", SEEN),  # a shape after the split
        ("A", "wrong-split-order", UNSEEN),  # of the right shape
        ("B", "wrong-split-order", SEEN),
        ("B", "single-precision-softmax", UNSEEN),  # of the lesson's own precision, and on both sides of 2e-5 in float64
        ("C1", "missing-scale", UNSEEN),  # heads of width 1
        ("C2", "missing-scale", SEEN),
        ("C1", "double-scale", UNSEEN),
        ("C1", "mask-dropped-in-training", SEEN),  # both modes
        ("C5", "mask-dropped-in-training", UNSEEN),  # evaluation alone
        ("C3", "wrong-merge-order", UNSEEN),  # one query
        ("C4", "wrong-merge-order", SEEN),
        ("C4", "mask-never-used", UNSEEN),  # no mask
        ("C5", "mask-never-used", SEEN),
        ("C6", "mask-never-used", SEEN),
        ("C6", "wrong-split-order", UNSEEN),  # one head
        ("C2", "turned-the-other-way", BEYOND),  # rotary
        ("C5", "window-one-too-wide", BEYOND),  # a causal layer can be asked, but for no window
        ("C5", "causal-only-with-a-cache", SEEN),  # without a cache, which needs no words
        ("D", "softmax-over-queries", UNSEEN),
        ("E", "softmax-over-queries", SEEN),
    ],
)
def test_one_check_on_one_fault(letter: str, name: str, verdict: str) -> None:
    assert CHECK[letter](find(name)) == verdict


def test_inputs_are_made_anew() -> None:
    for made in (replayed.of_module_info(), replayed.of_keras_numbers(), replayed.of_keras_masks()):
        for make in made:
            first, second = make(), make()
            for name, tensor in first.tensors().items():
                tensor.fill_(False)  # as a fault may do
                assert second.tensors()[name].any() or name.startswith("b_")


def test_the_shapes_are_those_of_the_tests_that_are_replayed() -> None:
    assert {make().scores_shape for make in replayed.of_module_info()} == {(1, 3, 3, 3)}
    assert {make().d_head for make in replayed.of_module_info()} == {1}
    assert {make().scores_shape for make in replayed.of_torch_encoder()} == {(2, 2, 5, 5), (2, 2, 2, 2)}
    assert {make().scores_shape[2] for make in replayed.of_torch_reference()} == {1}
    assert {make().scores_shape[3] for make in replayed.of_torch_reference()} <= set(range(2, 11))
    assert {make().scores_shape for make in replayed.of_keras_masks()} == {(3, 2, 5, 3), (2, 2, 5, 5)}
    assert {make().scores_shape for make in replayed.of_a_language_model()} == {(1, 1, 6, 6)}


def test_the_numbers_of_keras_give_what_its_test_expects() -> None:
    layer = subject()
    for make in replayed.of_keras_numbers():
        inputs = make()
        result = layer.layer(inputs).run(inputs, False)
        scores = result.need_weights()
        assert torch.allclose(scores[0, :, 0, 0], torch.tensor(0.1691, dtype=scores.dtype), atol=1e-4)
        assert torch.allclose(scores[0, :, 0, 1], torch.tensor(0.1187, dtype=scores.dtype), atol=1e-4)
        expected = torch.tensor([2.406, 2.440, 2.473, 2.504, 2.535, 2.568, 2.602, 2.633], dtype=scores.dtype)
        assert torch.allclose(result.output[0, :, :8], expected[:, None], atol=1e-2), "as in float16"


def test_a_layer_is_asked_only_what_it_has_words_for() -> None:
    causal, crossed = replayed.of_a_language_model()[0](), replayed.of_module_info()[0]()
    taken = {clean.__name__ for clean in DECLARED if expressible(causal, subject(clean))}
    assert taken == {"MultiHeadAttention", "CachedAttention", "WindowAttention"}
    assert {clean.__name__ for clean in DECLARED if expressible(crossed, subject(clean))} == {"MultiHeadAttention"}
    assert not expressible(replace(causal, mask=None), subject(next(c for c in DECLARED if c.__name__ == "CachedAttention")))


FEW = ("wrong-split-order", "missing-contiguous", "turned-the-other-way")


def test_a_page_that_says_something_else_is_stale(tmp_path: Path) -> None:
    verdicts = judge(FEW, workers=1)
    page_path, readme = tmp_path / "docs" / "other-checks.md", tmp_path / "README.md"
    assert stale(verdicts, page_path, readme) is None  # an installed package has no pages
    page_path.parent.mkdir()
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    assert COMMAND in (stale(verdicts, page_path, readme) or "")
    write(verdicts, page_path, readme)
    assert stale(verdicts, page_path, readme) is None
    written = readme.read_text(encoding="utf-8")
    assert written.startswith(f"before\n{BEGIN}\n\n| kind of check, on 3 faults") and written.endswith(f"{END}\nafter\n")
    other = Verdicts(verdicts.checks, {name: (UNSEEN,) * len(CHECKS) for name in FEW}, verdicts.family)
    assert "README.md" in (stale(other, page_path, readme) or "") and "other-checks.md" in (stale(other, page_path, readme) or "")
    page_path.write_text(page(other), encoding="utf-8")
    assert "README.md" not in (stale(verdicts, page_path, readme) or "")
    assert with_table("no place", verdicts) == "no place"


def test_the_totals_are_those_of_the_verdicts() -> None:
    verdicts = judge(FEW, workers=1)
    assert verdicts.of["missing-contiguous"][0] == SEEN
    assert [verdicts.count(0, verdict) for verdict in (SEEN, UNSEEN, BEYOND)] == [1, 1, 1]
    assert verdicts.count(0, SEEN, "rotary") == 0 and verdicts.count(0, BEYOND, "rotary") == 1
    assert verdicts.seen_by_others() == 2
    assert totals(verdicts).splitlines()[-2:] == ["| all of these together | 2 |  |", "| these properties | 3 |  |"]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["others", "WrongSplitOrder", "--workers", "1"]) == 0
    assert "| the shape assertions of the lesson | 0 |" in capsys.readouterr().out
    assert command.main(["others", "wrong-split-order", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wrong-split-order"]["C6"] == UNSEEN
    assert command.main(["others", "wrong-split-order", "--write"]) == 2
    assert "name none" in capsys.readouterr().err
