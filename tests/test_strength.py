"""How strong the properties are: set cover, who is alone and first, how severe a fault is, and the page about it."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from faults import __main__ as command
from faults.catalog import catalog
from faults.coverage import smallest_set, standings
from faults.fault import Fault
from faults.kills import LACKING, Kill, unnoticed
from faults.matrix import Row
from faults.mistakes import read
from faults.severity import Severity, cell, figure, severity, showing, words
from faults.strength import COMMAND, KEPT, PAGE, UNSEEABLE, Strength, page, problems, stale
from properties.case import Case
from properties.laws import PROPERTIES

NAMES = tuple("abcdefg")
matrices = st.lists(st.frozensets(st.sampled_from(NAMES)), max_size=9)


def row(name: str, killers: str, first: str = "", lost: tuple[str, ...] = ()) -> Row:
    kills = tuple(Kill(killer, 1, Case(), "off") for killer in killers)
    return Row(name, "made up", "score", "", "silent", 1, kills, tuple(first), lost)


# A smallest set.


@given(matrices)
def test_a_smallest_set_kills_all_and_no_smaller_one_does(matrix: list[frozenset[str]]) -> None:
    killers = {str(number): names for number, names in enumerate(matrix)}
    found = smallest_set(killers, NAMES)
    killed = [names for names in matrix if names]

    def covers(chosen: tuple[str, ...]) -> bool:
        return all(names & set(chosen) for names in killed)

    assert covers(tuple(found))
    assert found == sorted(set(found))
    assert not any(covers(fewer) for size in range(len(found)) for fewer in itertools.combinations(NAMES, size))


@given(matrices, st.randoms(use_true_random=False))
def test_it_does_not_depend_on_the_order_of_the_faults(matrix: list[frozenset[str]], random: Random) -> None:
    killers = list(enumerate(matrix))
    shuffled = random.sample(killers, len(killers))
    assert smallest_set({str(n): names for n, names in killers}, NAMES) == smallest_set(
        {str(n): names for n, names in shuffled}, NAMES
    )


def test_it_is_quick_on_a_matrix_of_this_size() -> None:
    random = Random(0)
    names = [str(number) for number in range(90)]
    killers = {str(fault): random.sample(names, random.choice([1, 1, 2, 3, 5, 8, 15, 30, 50])) for fault in range(140)}
    found = smallest_set(killers, names)
    assert all(set(killing) & set(found) for killing in killers.values())


def test_greed_does_not_find_it() -> None:
    killers = {"1": "ab", "2": "ab", "3": "ac", "4": "ac", "5": "bd", "6": "cd"}
    assert smallest_set({**killers, "7": "b", "8": "c"}, NAMES) == ["b", "c"]


# Alone and first.


def test_alone_is_what_nothing_else_kills_and_several_can_be_first() -> None:
    rows = [row("x", "ab", "ab"), row("y", "a", "a"), row("z", "bc", "b"), row("survivor", "")]
    a, b, c, d = standings(rows, "abcd")
    assert (a.kills, a.alone, a.first, a.needs_a_reason) == (2, ("y",), 2, False)
    assert (b.kills, b.alone, b.first, b.needs_a_reason) == (2, (), 2, False)
    assert (c.kills, c.alone, c.first, c.needs_a_reason) == (1, (), 0, True)
    assert (d.kills, d.needs_a_reason) == (0, True)


def test_what_fails_first_and_kills_nothing_measured_is_not_counted() -> None:
    (a,) = standings([row("x", "b", "a")], "a")
    assert a.first == 0


def test_first_are_those_that_fail_on_the_very_case(monkeypatch: pytest.MonkeyPatch) -> None:
    from faults import matrix

    fault = catalog()["missing-scale"]
    fails = {"output_is_the_formula": True, "weights_are_the_formula": False, "a_batch_of_none_works": True}
    monkeypatch.setattr(matrix, "failure", lambda p, subject, case: "off" if fails.get(p.name) else None)
    drawn, first = matrix._first(fault, {"output_is_the_formula", "weights_are_the_formula"}, seed=0)
    assert drawn is not None and first == ("output_is_the_formula",)
    assert matrix._first(fault, {"weights_are_the_formula"}, seed=0) == (
        drawn,
        ("output_is_the_formula", "a_batch_of_none_works"),
    )


# What goes unseen.


def test_what_a_black_box_hides() -> None:
    def lost(name: str) -> tuple[str, ...]:
        return unnoticed(catalog()[name], read()[name]["killers"])

    no_loading, no_weights, neither = LACKING
    assert lost("missing-scale") == (no_loading, neither)
    assert lost("only-the-returned-weights-averaged") == (no_weights, neither)
    assert lost("averaged-heads") == ()
    assert lost("wrong-merge-order") == ()


def test_what_is_told_of_a_black_box_is_what_it_hides() -> None:
    for name in list(read())[::30]:
        hidden = "its weights cannot be loaded" in unnoticed(catalog()[name], read()[name]["killers"])
        assert hidden == (not read()[name]["killers_without_weights"]), name


# Severity.


class Twice(Fault):
    root_cause = "score: implementation"

    def project_out(self, merged: Tensor) -> Tensor:
        return 2 * super().project_out(merged)

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class Harmless(Twice):
    def project_out(self, merged: Tensor) -> Tensor:
        return super(Twice, self).project_out(merged)


class SometimesNone(Twice):
    def project_out(self, merged: Tensor) -> Tensor:
        if merged.shape[1] > 2:
            raise ValueError("too many")
        return super().project_out(merged) if merged.shape[1] == 1 else super().project_out(merged) * torch.nan


class WrongShape(Twice):
    def project_out(self, merged: Tensor) -> Tensor:
        return super().project_out(merged)[:, :, None]


class Barely(Twice):
    def project_out(self, merged: Tensor) -> Tensor:
        return super(Twice, self).project_out(merged) * (1 + 3e-8)


class LeftToChance(Twice):
    def project_out(self, merged: Tensor) -> Tensor:
        return super().project_out(merged) * torch.rand(())


class Detached(Twice):
    def project_out(self, merged: Tensor) -> Tensor:
        return super(Twice, self).project_out(merged.detach())


class TwiceInTraining(Twice):
    def project_out(self, merged: Tensor) -> Tensor:
        return super().project_out(merged) if self.training else super(Twice, self).project_out(merged)


class Counting(Twice):
    calls = 0

    def project_out(self, merged: Tensor) -> Tensor:
        self.calls += 1
        return self.calls * super(Twice, self).project_out(merged)


class ClearsItsInput(Twice):
    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project_in(x, context)
        with torch.no_grad():
            (x if context is None else context).detach().zero_()
        return q.clone(), k.clone(), v.clone()

    def project_out(self, merged: Tensor) -> Tensor:
        return super(Twice, self).project_out(merged)


class ZeroInHalf(Twice):
    def project_out(self, merged: Tensor) -> Tensor:
        output = super(Twice, self).project_out(merged)
        return output if output.dtype == torch.float64 else 0 * output


class HalvedWeights(Twice):
    def forward(self, x, attn_mask=None, *, context=None, is_causal=False):  # type: ignore[no-untyped-def, override]
        output, weights = super().forward(x, attn_mask, context=context, is_causal=is_causal)
        return output / 2, weights / 2


def measured(fault: type[Fault]) -> Severity:
    return severity(fault, showing(fault))


def test_twice_the_output_is_an_error_of_one() -> None:
    found = measured(Twice)
    assert found.median == pytest.approx(1.0) and found.largest == pytest.approx(1.0)
    assert found.unusable == 0 and not found.chance and found.wrong == ()
    assert words(found) == "1, the median relative error of the output."
    assert cell(found) == "1"


def test_what_is_right_is_off_by_nothing() -> None:
    found = measured(Harmless)
    assert (found.median, found.largest, found.wrong) == (0.0, 0.0, ())


def test_raising_and_nan_are_counted_and_not_averaged() -> None:
    cases = [Case(queries=n, seed=n) for n in (1, 2, 3, 4)]
    found = severity(SometimesNone, cases)
    assert (found.cases, found.unusable) == (4, 3)
    assert found.median == pytest.approx(1.0)
    assert words(found).endswith("; on 3 of 4 random cases it raises or gives NaN.")
    none = severity(SometimesNone, cases[1:])
    assert none.median is None and cell(none) == "-"
    assert words(none) == "No output: on all 3 random cases it raises or gives NaN."


def test_another_shape_is_no_output() -> None:
    found = measured(WrongShape)
    assert found.median is None and found.unusable == found.cases > 0


def test_where_the_right_output_is_zero_there_is_no_relative_error() -> None:
    nothing_seen = Case(mask="empty")
    assert severity(Twice, [nothing_seen, Case()]).cases == 1
    assert words(severity(Twice, [nothing_seen])) == "Not measured: wherever it shows, the right output is zero."


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (Detached, ("the gradient",)),
        (TwiceInTraining, ("the output in training",)),
        (Counting, ("the output of a later call",)),
        (ClearsItsInput, ("the gradient", "what was passed in")),
        (ZeroInHalf, ("the output in a coarser dtype or for large scores",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_where_the_output_is_right_it_says_what_is_not(fault: type[Fault], wrong: tuple[str, ...]) -> None:
    found = measured(fault)
    assert (found.median, found.largest) == (0.0, 0.0)
    assert found.wrong == wrong
    assert words(found) == f"0: the output of a first call in evaluation is right; wrong: {', '.join(wrong)}."


def test_wrong_weights_are_no_wrong_output() -> None:
    class OfRightOutput(HalvedWeights):
        def project_out(self, merged: Tensor) -> Tensor:
            return super(Twice, self).project_out(merged) * 2

    assert measured(OfRightOutput).wrong == ("the returned weights",)


def test_a_small_error_is_given_by_its_power_of_ten() -> None:
    found = measured(Barely)
    assert found.median == pytest.approx(3e-8, rel=1e-6)
    assert cell(found) == "<1e-7"


def test_what_is_left_to_chance_is_said_to_be() -> None:
    found = measured(LeftToChance)
    assert found.chance and "left to chance" in words(found)
    assert cell(found).startswith("<")


@pytest.mark.parametrize(
    ("error", "written"),
    [(0.0, "0"), (1.0, "1"), (0.4949, "0.49"), (12.34, "12"), (1234.0, "1200"), (0.0012345, "0.0012"), (9.9e-4, "below 0.001")],
)
def test_a_figure_has_two_digits(error: float, written: str) -> None:
    assert figure(error) == written


@given(st.integers(1, 9999), st.integers(-7, 0), st.floats(-1e-15, 1e-15))
def test_rounding_does_not_change_a_figure(digits: int, power: int, noise: float) -> None:
    """Not even at a tie, as of an output that is off by exactly 7/8."""
    error = digits * 10.0**power
    assert figure(error) == figure(error * (1 + noise))


# The page, and the reasons on it.


ROWS = [row("x", "ab", "ab", tuple(LACKING)), row("y", "a", "a")]


def test_who_is_never_alone_and_never_first_needs_a_reason() -> None:
    strength = Strength.of(ROWS, "abc")
    assert problems(strength, kept=["c"], unseeable=["x"]) == []
    (missing,) = problems(strength, kept=[], unseeable=[])
    assert missing == "c is never alone and never first: say why it is kept, in KEPT"
    (surplus,) = problems(strength, kept=["b", "c"], unseeable=[])
    assert surplus == "KEPT has a reason for b, which needs none: take it out"
    (seen,) = problems(strength, kept=["c"], unseeable=["y"])
    assert seen == "UNSEEABLE has y, which is no fault, or is seen: take it out"


def test_reasons_are_about_properties_and_faults_that_there_are() -> None:
    assert KEPT.keys() <= {property_.name for property_ in PROPERTIES}
    assert UNSEEABLE.keys() <= catalog().keys()
    assert all(reason.endswith(".") and "TODO" not in reason for reason in [*KEPT.values(), *UNSEEABLE.values()])


def test_a_page_that_says_something_else_is_stale(tmp_path: Path) -> None:
    strength, path = Strength.of(ROWS, "abc"), tmp_path / "docs" / "strength.md"
    assert stale(strength, path) is None  # an installed package has no pages
    path.parent.mkdir()
    assert COMMAND in (stale(strength, path) or "")
    path.write_text(page(strength), encoding="utf-8")
    assert stale(strength, path) is None
    assert COMMAND in (stale(Strength.of(ROWS[:1], "abc"), path) or "")


@pytest.mark.skipif(not PAGE.exists(), reason=f"there is no page yet: {COMMAND}")
def test_the_page_has_every_property_and_a_reason_where_one_is_needed() -> None:
    """That the figures are those of now is tested with the catalog, all of which is measured there."""
    row = r"^\| (\w+) *\| +(\d+) *\| *(\d*) *\| *(\d*) *\| (.*?) ?\|$"
    table = re.findall(row, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, *_ in table] == [property_.name for property_ in PROPERTIES], f"run `{COMMAND}`"
    for name, _, alone, first, reason in table:
        needed = "" if alone or first else KEPT.get(name, "missing")
        assert reason == needed, f"{name}: see KEPT in faults/strength.py, and run `{COMMAND}`"


# The command.


def measuring(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command find that these are the rows of the whole catalog."""
    monkeypatch.setattr(command, "catalog", lambda: {row.name: Fault for row in rows})
    monkeypatch.setattr(command, "rows", lambda names, seed, workers, look: rows)


def test_strength_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    measuring([row("x", ["output_is_the_formula"])], monkeypatch)  # type: ignore[arg-type]
    assert command.main(["strength", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["smallest_set"] == ["output_is_the_formula"]
    assert printed["properties"][0] == {"name": "output_is_the_formula", "kills": 1, "alone": ["x"], "first": 0}
    assert printed["unnoticed"] == {words: [] for words in LACKING}


def test_strength_prints_what_it_would_write(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("x", ["output_is_the_formula"])]  # type: ignore[arg-type]
    measuring(rows, monkeypatch)
    assert command.main(["strength"]) == 0
    assert capsys.readouterr().out == page(Strength.of(rows))


def test_writing_asks_for_the_reasons_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [row("x", [p.name for p in PROPERTIES], [p.name for p in PROPERTIES])]  # type: ignore[arg-type]
    measuring(rows, monkeypatch)
    path = tmp_path / "strength.md"
    monkeypatch.setattr(command, "PAGE", path)
    monkeypatch.setattr(command, "problems", lambda strength: [])
    assert command.main(["strength", "--write"]) == 0
    assert path.read_text(encoding="utf-8") == page(Strength.of(rows))
    monkeypatch.setattr(command, "problems", lambda strength: ["a reason is missing"])
    assert command.main(["strength", "--write"]) == 1
    assert "faults/strength.py: a reason is missing" in capsys.readouterr().err
