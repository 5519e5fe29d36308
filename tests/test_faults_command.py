"""`python -m faults`, as it is called."""

from __future__ import annotations

import json

import pytest

from faults import __main__ as command
from faults import matrix
from faults.catalog import catalog
from faults.fault import Fault
from faults.matrix import Row
from properties.case import Case


def test_list_names_every_fault_with_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in catalog())
    assert "Split the heads with one `view`" in printed


@pytest.mark.parametrize("arguments", [["list", "--json"], ["--json", "list"]])
def test_list_as_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert first["name"] == "wrong-split-order"
    assert first["step"] == "split_heads"


def test_explain_shows_both_codes_and_a_counterexample(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["explain", "missing-contiguous"]) == 0
    printed = capsys.readouterr().out
    assert "\n    heads = heads.transpose(1, 2).contiguous()   |     heads = heads.transpose(1, 2)" in printed
    assert "Case(queries=2, num_heads=2, d_head=2)" in printed.rpartition("Found just now")[2]


def test_the_name_of_the_class_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["explain", "KeepProbabilityForDropProbability"]) == 0
    assert capsys.readouterr().out.startswith("keep-probability-for-drop-probability")


def test_no_workers_are_too_few(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--workers", "0"])
    assert "--workers: must be at least 1, got 0" in capsys.readouterr().err


def test_an_equivalent_cannot_be_blessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["bless", "dropped-key-bias"]) == 2
    assert "dropped-key-bias is an equivalent" in capsys.readouterr().err


def test_a_wrong_name_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["explain", "wrong-splt-order"]) == 2
    assert "did you mean wrong-split-order" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["list", "--help"], ["explain", "--help"], ["bless", "--help"], ["run", "--help"], ["catalog", "--help"]],
)
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main(arguments)
    assert exit_.value.code == 0
    assert "usage: python -m faults" in capsys.readouterr().out


class Harmless(Fault):
    """A fault that is none: it must be reported as a survivor."""

    root_cause = "score: implementation"

    def combine(self, weights, v):  # type: ignore[no-untyped-def]
        return weights @ v

    @staticmethod
    def visible(case: Case) -> bool:
        return True


def run(names: list[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(command, "all_names", lambda: names)
    return command.main([*arguments, "--workers", "1"])


def test_a_run_prints_killers_and_totals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attn.MultiHeadAttention", "wrong-merge-order"], monkeypatch) == 0
    printed = capsys.readouterr().out
    assert "1 of 1 faults killed" in printed
    assert "1 of 1 correct ones" in printed


def test_a_run_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["wrong-merge-order"], monkeypatch, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["faults"]
    assert row["symptom"] == "silent"
    assert any(kill["property"] == "output_is_the_formula" for kill in row["kills"])


def test_a_survivor_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(matrix, "find", lambda name: Harmless)
    assert run(["harmless"], monkeypatch) == 1
    assert "SURVIVED: harmless" in capsys.readouterr().out


def test_a_correct_one_that_is_flagged_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kill = matrix.Kill("output_is_the_formula", 1, Case(), "off")
    monkeypatch.setattr(command, "rows", lambda *_: [Row("attn.MultiHeadAttention", "attn", "", "", "correct", None, (kill,))])
    assert run(["attn.MultiHeadAttention"], monkeypatch) == 1
    assert "FLAGGED: attn.MultiHeadAttention by output_is_the_formula on Case(): off" in capsys.readouterr().out
