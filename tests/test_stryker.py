"""The report for Stryker's viewers: what it says of a fault, and of mutmut's mutants, is what stands in the sources."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attn import SoftCapAttention, masks
from faults import __main__ as command
from faults.catalog import catalog, equivalents
from faults.fault import family_of, step_of
from faults.kills import Kill
from faults.matrix import Row
from faults.pages import command as report_command
from faults.pages.mutants import MutantsError, read_mutants
from faults.pages.stryker import attn_sources, report
from properties.case import Case
from properties.laws import PROPERTIES

SOURCES = attn_sources()


def row(name: str, *killers: str, cases: int | None = 1, symptom: str = "silent") -> Row:
    kills = tuple(Kill(killer, 1, Case(queries=2), "off by 1") for killer in killers)
    return Row(name, "", "", "", symptom, cases, kills)


def mutants_of(told: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """File and mutant, by its id."""
    return {mutant["id"]: (file, mutant) for file, entry in told["files"].items() for mutant in entry["mutants"]}


def at(source: str, location: dict[str, Any]) -> tuple[str, str, str]:
    """What stands before, in and behind the location."""
    lines = source.splitlines(keepends=True)
    begin, end = (
        sum(map(len, lines[: place["line"] - 1])) + place["column"] - 1 for place in (location["start"], location["end"])
    )
    return source[:begin], source[begin:end], source[end:]


# Faults.


def test_every_fault_is_a_mutant_and_its_replacement_fits_where_it_is() -> None:
    told = report([row(name) for name in catalog()])
    found = mutants_of(told)
    assert sorted(found) == sorted(catalog())
    for name, (file, mutant) in found.items():
        before, old, behind = at(told["files"][file]["source"], mutant["location"])
        step = step_of(catalog()[name])
        assert f"def {step}(" in mutant["replacement"]
        assert old.startswith(("def ", "@", "class "))
        mutated = ast.parse(before + mutant["replacement"] + behind)
        assert ast.dump(mutated) != ast.dump(ast.parse(told["files"][file]["source"])), name
        assert mutant["mutatorName"] == family_of(catalog()[name])


def test_a_fault_stands_where_the_clean_step_does() -> None:
    told = report([row("wrong-split-order", "rows_sum_to_one")])
    ((file, mutant),) = mutants_of(told).values()
    assert file == "attn/multihead.py" and set(told["files"]) == {file}
    _, old, _ = at(SOURCES[file], mutant["location"])
    assert old.startswith("def split_heads(self, x: Tensor) -> Tensor:\n") and old.endswith("# [B, h, T, d_head]")
    assert mutant["replacement"].endswith("# the shape asked for, and no token in it")
    assert mutant["description"].startswith("wrong-split-order: Split the heads with one `view`")
    assert mutant["status"] == "Killed" and mutant["killedBy"] == ["rows_sum_to_one"]
    assert mutant["statusReason"] == "rows_sum_to_one, on Case(queries=2): off by 1"


def test_a_step_that_is_torch_s_is_put_into_the_class() -> None:
    (name,) = [name for name, fault in catalog().items() if step_of(fault) == "__setstate__"]
    ((file, mutant),) = mutants_of(report([row(name)])).values()
    _, old, _ = at(SOURCES[file], mutant["location"])
    assert old.startswith("class ") and old.endswith(":") and "\n" not in old
    assert mutant["replacement"].startswith(f"{old}\n    def __setstate__(")


def test_the_properties_are_the_tests() -> None:
    told = report([row("turned-the-other-way", "output_is_the_formula")])
    tests = {test["id"]: (file, test) for file, entry in told["testFiles"].items() for test in entry["tests"]}
    assert set(tests) == {property_.name for property_ in PROPERTIES}
    for name, (file, test) in tests.items():
        line = told["testFiles"][file]["source"].splitlines()[test["location"]["start"]["line"] - 1]
        assert line.startswith(f"def {name}(")
    (mutant,) = [mutant for _, mutant in mutants_of(told).values()]
    assert set(mutant["killedBy"]) <= set(mutant["coveredBy"]) <= set(tests)
    assert "permuted_tokens_give_permuted_rows" not in mutant["coveredBy"], "it does not apply where order matters"


def test_survivors_and_equivalents() -> None:
    right = next(iter(equivalents()))
    unmet = row("wrong-merge-order", "rows_sum_to_one", cases=None)
    rows = [row("wrong-split-order"), unmet, row(right, symptom="correct"), row("attn.MultiHeadAttention", symptom="correct")]
    found = {name: mutant["status"] for name, (_, mutant) in mutants_of(report(rows)).items()}
    assert found == {"wrong-split-order": "Survived", "wrong-merge-order": "Survived", right: "Ignored"}
    flagged = row(right, "rows_sum_to_one", symptom="correct")
    assert mutants_of(report([flagged]))[right][1]["status"] != "Ignored"


# mutmut's mutants.


def leave(directory: Path, change: Callable[[str], str] = lambda source: source) -> Path:
    """What mutmut leaves behind of two functions, one of them a method."""
    (directory / "attn").mkdir(parents=True)
    whole, method = inspect.getsource(masks.causal_mask), inspect.getsource(SoftCapAttention.cap)
    place = "x_causal_mask__mutmut_"
    text = [whole.replace("causal_mask(", f"{place}orig(", 1)]
    text += [whole.replace("causal_mask(", f"{place}1(", 1).replace("queries < 0 or", "queries < 0 and")]
    text += [whole.replace("causal_mask(", f"{place}2(", 1).replace("keys - queries", "keys + queries")]
    write(
        directory,
        "masks",
        change("\n\n".join(text)),
        {"attn.masks.x_causal_mask__mutmut_1": 0, "attn.masks.x_causal_mask__mutmut_2": 1},
    )
    place = "xǁSoftCapAttentionǁcap__mutmut_"
    lines = [
        method.replace("def cap(", f"def {place}orig(", 1),
        method.replace("def cap(", f"def {place}1(", 1).replace("tanh", "sinh"),
    ]
    write(directory, "soft_cap", "class SoftCapAttention(Base):\n" + "\n".join(lines), {f"attn.soft_cap.{place}1": 36})
    tests = {"attn.masks.x_causal_mask": ["tests/test_masks.py::test_a", "tests/test_masks.py::test_b[1]"]}
    (directory / "tests").mkdir()
    (directory / "tests/test_masks.py").write_text("\n\ndef test_a(): ...\n\ndef test_b(n): ...\n", encoding="utf-8")
    (directory / "mutmut-stats.json").write_text(json.dumps({"tests_by_mangled_function_name": tests}), encoding="utf-8")
    return directory


def write(directory: Path, module: str, text: str, codes: dict[str, int]) -> None:
    (directory / f"attn/{module}.py").write_text(text, encoding="utf-8")
    (directory / f"attn/{module}.py.meta").write_text(json.dumps({"exit_code_by_key": codes}), encoding="utf-8")


def test_mutants_are_read_where_mutmut_left_them(tmp_path: Path) -> None:
    told = report([], leave(tmp_path / "mutants"))
    found = mutants_of(told)
    assert {name: mutant["status"] for name, (_, mutant) in found.items()} == {
        "attn.masks.x_causal_mask__mutmut_1": "Survived",
        "attn.masks.x_causal_mask__mutmut_2": "Killed",
        "attn.soft_cap.xǁSoftCapAttentionǁcap__mutmut_1": "Timeout",
    }
    file, mutant = found["attn.masks.x_causal_mask__mutmut_1"]
    before, old, behind = at(told["files"][file]["source"], mutant["location"])
    assert old == "if queries < 0 or keys < 0:" and mutant["replacement"] == "if queries < 0 and keys < 0:"
    tests = {test["id"]: test for test in told["testFiles"]["tests/test_masks.py"]["tests"]}
    assert [(tests[number]["name"], tests[number]["location"]["start"]["line"]) for number in mutant["coveredBy"]] == [
        ("test_a", 3),
        ("test_b[1]", 5),
    ]
    assert "killedBy" not in mutant, "mutmut does not say"
    file, mutant = found["attn.soft_cap.xǁSoftCapAttentionǁcap__mutmut_1"]
    _, old, _ = at(told["files"][file]["source"], mutant["location"])
    assert old.replace("tanh", "sinh") == mutant["replacement"] != old
    assert mutant["description"] == "in attn.soft_cap.SoftCapAttention.cap"


def test_a_mutant_that_is_listed_as_equivalent_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "tests/mutation").mkdir(parents=True)
    (tmp_path / "tests/mutation/equivalents.toml").write_text(
        '[[equivalent]]\nfunction = "attn.masks.causal_mask"\nold = "if queries < 0 or keys < 0:"\n'
        'new = "if queries < 0 and keys < 0:"\nbecause = "for this test"\nshown_by = ""\n',
        encoding="utf-8",
    )
    first, *others = read_mutants(leave(tmp_path / "mutants"), SOURCES)
    assert (first.status, first.reason) == ("Ignored", "for this test")
    assert [mutant.status for mutant in others] == ["Killed", "Timeout"]


def test_mutants_of_another_attn_are_refused(tmp_path: Path) -> None:
    other = leave(tmp_path / "mutants", lambda text: text.replace("device=device", "device=None"))
    with pytest.raises(MutantsError, match="another attn/masks.py than the one here"):
        list(read_mutants(other, SOURCES))
    (tmp_path / "empty").mkdir()
    with pytest.raises(MutantsError, match="mutmut-stats.json"):
        list(read_mutants(tmp_path / "empty", SOURCES))
    write(other, "gone", "", {})
    with pytest.raises(MutantsError, match="gone.py, which is not there any more|another"):
        list(read_mutants(other, SOURCES))


# The command.


def test_the_command_writes_what_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stryker, markdown = tmp_path / "report.json", tmp_path / "summary.md"
    files = ["--stryker", str(stryker), "--markdown", str(markdown)]
    assert (
        command.main(["report", "WrongSplitOrder", *files, "--mutants", str(leave(tmp_path / "mutants")), "--workers", "1"]) == 0
    )
    told = json.loads(stryker.read_text(encoding="utf-8"))
    assert told["schemaVersion"] == "2" and len(mutants_of(told)) == 4
    assert "**1 of 1 faults killed**" in markdown.read_text(encoding="utf-8")
    assert capsys.readouterr().out == ""


def test_the_command_fails_for_a_survivor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report_command, "rows", lambda *_: iter([row("wrong-split-order", cases=None)]))
    assert command.main(["report", "wrong-split-order", "--markdown", "-"]) == 1
    assert "### Survivors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to write"),
        (["--markdown", "-", "--mutants", "mutants"], "--mutants is for --stryker"),
        (["--stryker", "-", "--mutants", "nowhere"], "nowhere is not what mutmut leaves behind"),
        (["--stryker", "-", "wrong-splt-order"], "did you mean wrong-split-order"),
    ],
)
def test_the_command_says_what_to_mend(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["report", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["report", "wrong-split-order", "--markdown", str(tmp_path), "--workers", "1"]) == 2
    assert "cannot write" in capsys.readouterr().err
