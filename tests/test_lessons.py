"""The lesson of a fault: its worked example, the code beside the clean one, and what is derived."""

from __future__ import annotations

import math

import pytest
import torch

from faults.catalog import catalog, equivalents, find
from faults.fault import family_of, sections_of
from faults.killers import names_of_killers
from faults.lessons.drawing import text
from faults.lessons.examples import smallest_case
from faults.lessons.explain import explain
from faults.lessons.habits import blind_habits
from faults.lessons.laws import broke_off, counterexample, raises_where
from faults.lessons.missed import why_missed
from faults.lessons.sides import diff, side_by_side
from faults.lessons.width import WIDTH, width
from faults.lessons.worked import _WORKED, NO_EXAMPLE, Drawn, Worked, printed, worked
from faults.matrix import glance
from faults.pages.lesson import lesson
from properties.case import Case


def drawn(name: str, title: str) -> Drawn:
    return next(d for d in worked(find(name)).drawn if d.title.startswith(title))


# What is drawn.


def test_a_wrong_split_shows_which_token_went_where() -> None:
    found = worked(find("wrong-split-order"))
    assert found.step == "split_heads (queries)"
    split = drawn("wrong-split-order", "split_heads")
    assert split.rows == ("head 0, token 0", "head 0, token 1", "head 1, token 0", "head 1, token 1")
    assert split.right == ((0, 0.1), (1, 1.1), (0.2, 0.3), (1.2, 1.3))
    assert split.wrong == ((0, 0.1), (0.2, 0.3), (1, 1.1), (1.2, 1.3))
    assert "Head 0, token 1 has what belongs to head 1, token 0" in found.remark


def test_merged_heads_are_told_apart_by_their_columns() -> None:
    merged = drawn("wrong-merge-order", "merge_heads")
    assert merged.columns == ("h0 f0", "h0 f1", "h1 f0", "h1 f1")
    assert "Token 0, head 1 has what belongs to token 1, head 0" in worked(find("wrong-merge-order")).remark


@pytest.mark.parametrize(
    ("name", "step", "words"),
    [
        ("softmax-over-queries", "softmax", "and should sum to 1. It is the columns that sum to 1."),
        ("missing-scale", "score", "Every number of score is 1.41 times what it should be."),
        ("causal-off-by-one", "mask", "Key 1 is no longer hidden from query 0."),
        ("causal-off-by-one", "mask", "gives 0.52 of its weight to key 1, which is hidden from it."),
        ("empty-rows-nan", "softmax", "are NaN"),
        ("keys-and-values-in-one-buffer", "append (keys)", "These are the values."),
        ("detached-keys", "score", "every step returns what it should. All of the gradient of w_k is 0."),
        ("single-precision-softmax", "softmax", "The two differ by less than 1e-"),
        ("heads-start-alike", "__init__", "Row 2 is row 0 once more."),
        ("mask-in-the-default-dtype", "softmax", "softmax returns float32, and should return float16."),
        ("cache-read-before-it-is-written", "append (keys)", "returns the shape [1, 1, 0, 2], and should return [1, 1, 1, 2]."),
    ],
)
def test_what_is_to_be_seen_is_said(name: str, step: str, words: str) -> None:
    found = worked(find(name))
    assert found.step == step
    assert words in found.remark


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing-transpose", "Called once, in evaluation."),  # with as many tokens as heads it is silent
        ("dropout-not-rescaled", "Called once, in training."),
        ("mask-inverted-in-place", "the caller looks at what was passed in"),
        ("scale-accumulates", "this is the second call"),
        ("rolled-when-full", "one at a time, through a cache"),
        ("beams-copied-in-place", "the samples change places"),
        ("layer-counts-the-tokens", "in turns with another request"),
        ("positions-in-half", "at position 300"),
        ("out-projection-bypassed", "hook"),
        ("values-not-initialised", "as it was built"),
    ],
)
def test_it_is_shown_where_it_shows(name: str, words: str) -> None:
    assert words in worked(find(name)).inputs


def test_what_raises_says_so() -> None:
    found = worked(find("missing-contiguous"))
    assert found.raised.startswith("RuntimeError: view size is not compatible")
    assert found.step == "merge_heads"
    assert drawn("missing-contiguous", "merge_heads").wrong is None


SOME = [*list(catalog())[::8], *list(equivalents())[::6], "tiled-kv-heads"]


@pytest.mark.parametrize("name", SOME)
def test_an_example_can_be_seen_by_eye(name: str) -> None:
    """Of a fault something drawn is wrong, or it raised, or the words say why there is nothing to see."""
    found = worked(find(name))
    differs = any(d.wrong is None or _differ(d) for d in found.drawn)
    if name in equivalents():
        assert "The output is the same." in found.remark or "another draw" in found.remark
    else:
        assert differs or found.raised or "The two differ by less than" in found.remark
    _check_shape(found)


def _differ(d: Drawn) -> bool:
    assert d.wrong is not None
    pairs = zip(sum(d.right, ()), sum(d.wrong, ()), strict=True)
    return any(a != b and not (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def _check_shape(found: Worked) -> None:
    assert found.drawn
    for d in found.drawn:
        for numbers in (d.right, d.wrong or d.right):
            assert len(numbers) == len(d.rows)
            assert all(len(row) == len(d.columns) for row in numbers)
    assert all(len(line) <= WIDTH for line in text(found).splitlines())


def test_as_many_digits_are_shown_as_it_takes() -> None:
    shown = drawn("half-precision-softmax", "softmax")
    assert shown.wrong != shown.right
    assert worked(find("half-precision-softmax")).step == "softmax"


def test_nan_that_should_be_there_is_no_difference() -> None:
    found = worked(find("nan-taken-for-an-empty-row"))
    assert found.step == "softmax"


def test_figures_do_not_depend_on_how_a_machine_rounds() -> None:
    value = torch.tensor([[0.125, 2.675, 1.005, 0.0]], dtype=torch.float64)
    for noise in (1e-15, -1e-15):
        assert printed(value * (1 + noise) + noise, 2) == printed(value, 2)
    assert str(printed(torch.tensor([[-0.001]]), 2)) == "((0.0,),)"


def test_draws_do_not_depend_on_the_global_random_numbers() -> None:
    fault, found = find("dropout-shared-by-queries"), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        _WORKED.pop(fault, None)
        found.append(worked(fault))
    assert found[0] == found[1]


def test_the_smallest_case_is_read_from_the_docstring() -> None:
    assert smallest_case(find("causal-off-by-one")) == Case(queries=2, mask="is_causal")
    assert smallest_case(find("cap-folded-into-the-scale")).soft_cap is not None


# The code.


def test_the_step_stands_beside_the_clean_one() -> None:
    lines = side_by_side(find("missing-scale")).splitlines()
    assert lines[0].split() == ["clean", "broken"]
    (changed,) = (line for line in lines if " | " in line)
    assert changed.split(" | ")[0].strip() == "return (q / math.sqrt(self.d_head)) @ k.mT"
    assert changed.split(" | ")[1].strip() == "return q @ k.mT"


@pytest.mark.parametrize("name", [*catalog(), *equivalents()])
def test_side_by_side_shows_all_that_has_changed(name: str) -> None:
    fault = find(name)
    lines = side_by_side(fault).splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    right, left = ("".join("".join(half(line, side).split()) for line in lines).replace("#", "") for side in (1, 0))
    for line in diff(fault).splitlines():
        column = {"+": right, "-": left}.get(line[:1])
        if column is not None:
            assert "".join(line[1:].split()).replace("#", "") in column


def half(line: str, side: int) -> str:
    return line[51:] if side else line[:48]


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("name", ["transposed-mask", "fill-overflow-in-half", "weights-bound-in-the-constructor"])
def test_what_still_runs_is_not_marked_as_gone(name: str, columns: int) -> None:
    lines = side_by_side(find(name), columns).splitlines()
    marks = {line[49:50] if columns == WIDTH else line[:1] for line in lines}
    assert ">" in marks and not marks & {"<", "|"}
    assert lines[-1].strip() == "super() is the clean step: it still runs, where it is called."
    assert "super() is" not in side_by_side(find("missing-scale"), columns)


def test_numbers_of_weights_that_were_never_loaded_are_explained() -> None:
    assert "drawn at random when the layer was built" in worked(find("weights-bound-in-the-constructor")).remark


def test_where_it_is_narrow_one_stands_below_the_other() -> None:
    lines = side_by_side(find("missing-scale"), 80).splitlines()
    assert [line for line in lines if line.startswith("|")] == [
        "|     return (q / math.sqrt(self.d_head)) @ k.mT",  # its comment below it
        "|     return q @ k.mT",
    ]
    assert lines.index("  clean") < lines.index("  broken")


@pytest.mark.parametrize("columns", [70, 80])
def test_a_lesson_keeps_to_the_terminal(columns: int) -> None:
    """But for what is to be pasted, or is as it was raised."""
    said = explain(find("wrong-merge-order"), columns).partition("Found just now")[0]
    assert max(map(len, said.splitlines())) <= columns


def test_a_lesson_is_as_wide_as_the_terminal_and_not_wider_than_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert width() == WIDTH  # no terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for columns, expected in (("80", 80), ("200", WIDTH), ("10", 40)):
        monkeypatch.setenv("COLUMNS", columns)
        assert width() == expected


def test_a_diff_may_be_short() -> None:
    whole, short = diff(find("transposed-mask")), diff(find("transposed-mask"), 1)
    assert "@@" not in whole
    assert short.startswith("@@\n")
    assert "+        attn_mask = attn_mask.mT" in short


# Why tests miss it.


def test_habits_that_hide_a_fault_are_found_by_its_condition() -> None:
    assert blind_habits(find("missing-scale")) == ["a single key", "heads of one feature"]
    assert "one sample" in blind_habits(find("mask-tiled-over-heads"))
    assert "as many keys as queries" in blind_habits(find("causal-top-left"))
    assert blind_habits(find("surplus-projection-bias")) == []


def test_what_is_said_depends_on_the_fault() -> None:
    assert any("one call in evaluation" in line and "the gradient" in line for line in why_missed(find("detached-keys")))
    assert any("loose tolerance" in line for line in why_missed(find("cost-divided-with-the-scores")))
    assert any("any test that gets there sees it" in line for line in why_missed(find("missing-contiguous")))
    assert any(line.startswith("1 of the") for line in why_missed(find("nothing-for-no-tokens")))


def test_killers_are_those_of_the_docstring() -> None:
    assert names_of_killers(find("nothing-for-no-tokens")) == {"no_queries_get_no_rows"}
    assert "weights_are_the_formula" in names_of_killers(find("wrong-split-order"))  # by "reference: all"
    assert "weights_are_the_formula" not in names_of_killers(find("wrong-merge-order"))


# What raises only on ways that an ordinary call does not take.


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("context-accumulated-in-place", "under autocast"),
        ("cache-for-every-query-head", "from a cache"),
        ("cache-grows-in-recomputation", "under checkpointing"),
        ("kv-heads-forgotten-on-loading", "in a copy"),
        ("mask-on-the-default-device", "while another device is torch's default"),
    ],
)
def test_what_raises_elsewhere_is_not_said_to_raise_nowhere(name: str, where: str) -> None:
    said = " ".join(explain(find(name)).split())
    assert f"An ordinary call is right; {where} it raises." in said
    assert f"nothing is raised; {where} it raises" in said
    assert "Nothing is raised" not in said and "Silent: nothing is raised" not in said
    example = worked(find(name))
    assert example.raised and example.where == where


def test_no_lesson_says_that_nothing_is_raised_below_an_example_that_raised() -> None:
    """Of the families that have ways besides the ordinary call, by the examples alone."""
    for fault in (fault for fault in catalog().values() if family_of(fault) in ("cache", "tools", "kernel", "window")):
        example = worked(fault)
        where = raises_where(fault, example, "", "")
        if example.raised:
            assert not any(line.startswith("Nothing is raised") for line in why_missed(fault, example, where))
        assert bool(where) == (example.raised != "" and "Silent" in sections_of(fault)["Symptom"])


def test_a_law_by_which_it_raised_is_named_as_the_place() -> None:
    fault = find("missing-scale")  # silent, and so is its example
    assert raises_where(fault, worked(fault), "it raised RuntimeError: no", "autocast_rounds_and_no_more") == "under autocast"
    assert raises_where(fault, worked(fault), "output = 1, should be 2", "autocast_rounds_and_no_more") == ""


def test_where_the_dtype_makes_it_raise_shapes_are_not_blamed() -> None:
    for name in ("fill-overflow-in-half", "mask-in-the-default-dtype"):
        said = " ".join(why_missed(find(name), worked(find(name))))
        assert "depends on the dtype: in float16 it does" in said and "shapes" not in said


def test_a_shape_on_the_way_is_not_the_shape_of_the_result() -> None:
    """Of what goes wrong in a cache no shape is called right; of what an ordinary call gets wrong it is."""
    for name in ("position-never-advanced", "unwritten-slots-seen"):
        assert "shape" not in " ".join(why_missed(find(name)))
    assert "the result has the right shape" in " ".join(why_missed(find("wrong-merge-order")))


def test_nan_that_is_missing_is_said_to_be() -> None:
    assert worked(find("nan-taken-for-an-empty-row")).remark == "3 of the 6 numbers should be NaN, and are 0."


def test_weights_are_many() -> None:
    assert "The weights have shape [1, 2, 2, 4]" in worked(find("tokens-repeated-for-kv-heads")).remark


# The law.


def test_the_law_is_shown_where_it_speaks() -> None:
    """It raises on the smallest case; on another one the law says what is wrong."""
    found = counterexample(find("transposed-mask"))
    assert found is not None and not broke_off(found.evidence) and found.evidence.startswith("sum of weights")


def test_a_lesson_asks_for_no_declaration_and_gives_no_advice_of_torch() -> None:
    lines = explain(find("cache-grows-in-recomputation")).splitlines()
    evidence = next(number for number, line in enumerate(lines) if line.startswith("  it raised CheckpointError"))
    assert lines[evidence + 1] == "  to see it again:"
    assert "Any law that gets there" not in "\n".join(lines)  # one does
    assert "declare" not in explain(find("mask-shape-mismatch")).partition("The law that catches it")[2]


# The lesson.


HEADINGS = ["Why it is wrong", "The code", "A worked example", "How you meet it", "Why tests miss it", "The law that catches it"]


def test_a_lesson_has_all_its_parts_in_order() -> None:
    lines = explain(find("wrong-merge-order")).splitlines()
    places = [lines.index(heading) for heading in [*HEADINGS, "Seen in the wild"]]
    assert places == sorted(places)
    assert lines[lines.index("The law that catches it") + 3] == (
        "The returned weights, times the values, merged and projected, are the output."
    )


def test_a_lesson_may_have_to_do_without_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """What shows in no scene is explained, and put on the page, all the same."""
    fault = find("missing-scale")
    monkeypatch.setattr("faults.lessons.worked.SCENES", ())
    monkeypatch.setattr("faults.lessons.worked._WORKED", {})
    lines = explain(fault).splitlines()
    assert lines[lines.index("A worked example") + 3] == "There is none: it shows in no scene of faults/lessons/scenes.py."
    assert any(line.startswith("Found just now, by ") for line in lines)
    told = lesson(fault, glance(fault, 0))
    assert (told.inputs, told.step, told.pictures) == (NO_EXAMPLE, "", ()) and told.found is not None


def test_an_equivalent_has_a_lesson_too() -> None:
    said = explain(find("dropped-key-bias"))
    assert "Every number of project_in is 0.5 too small. The output is the same." in said
    assert "None, and none should" in said
    assert "Found just now" not in said
