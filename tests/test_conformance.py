"""`check_attention` says what is wrong with anything it is handed, and is never wrong itself."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from own import Own
from torch import Tensor, nn

from attn import MultiHeadAttention
from properties import PROPERTIES, Case, Report, check_attention, of_class, of_module, replay
from properties.report import EXPECTED, FAILED, HELD, NOT_APPLICABLE


class Refuses(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        raise RuntimeError("no kernel for this")


class Nothing(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return None


class Generates(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Iterator[Tensor]:  # type: ignore[override]
        yield super().forward(x, mask)


class LosesAnAxis(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return super().forward(x, mask)[0]


class NotANumber(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return super().forward(x, mask) * torch.nan


class WritesIntoItsInput(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return super().forward(x.sub_(1) if not x.requires_grad else x, mask)


class SetsTheSeed(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        torch.manual_seed(0)
        return super().forward(x, mask)


class DrawsFromPython(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        random.random()
        return super().forward(x, mask)


class SetsTheDefaultDtype(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        torch.set_default_dtype(torch.float16)
        return super().forward(x, mask)


class TurnsGradientsOff(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        result = super().forward(x, mask)
        torch.set_grad_enabled(False)
        return result


class KeepsTheFirstMask(Own):
    kept: Tensor | None = None

    def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if self.kept is None:
            self.kept = mask
        return super().mask(scores, self.kept)


class ExitsTheProgram(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        raise SystemExit(3)


class SkipsTheTest(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        pytest.skip("not today")


class LeftToChance(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return super().forward(x, mask) + int.from_bytes(os.urandom(1)) % 2


BROKEN = [
    (Refuses, "output_is_the_formula", "it raised RuntimeError: no kernel for this"),
    (Nothing, "output_is_the_formula", r"it returned None, not an output, or \(output, weights\)"),
    (Generates, "output_is_the_formula", "it returned a generator, not an output"),
    (LosesAnAxis, "the_result_has_the_shape_of_the_question", r"its output has shape \[1, 1\], not \[1, 1, 1\]"),
    (NotANumber, "finite_in_gives_finite_out", r"in float64 the output must be finite, but \[0, 0, 0\] is nan"),
    (WritesIntoItsInput, "nothing_passed_in_is_changed", r"x after the call, in float64,\[0, 0, 0\] = .*, should be"),
    (SetsTheSeed, "nothing_around_it_is_changed", "torch's global random numbers were used, or seeded"),
    (DrawsFromPython, "nothing_around_it_is_changed", "Python's global random numbers were used, or seeded"),
    (SetsTheDefaultDtype, "nothing_around_it_is_changed", "torch's default dtype from torch.float32 to torch.float16"),
    (TurnsGradientsOff, "nothing_around_it_is_changed", "it changed whether gradients are recorded from True to False"),
    (KeepsTheFirstMask, "a_second_call_gives_the_same", "output after other calls"),
    (ExitsTheProgram, "output_is_the_formula", "it raised SystemExit: 3"),
    (SkipsTheTest, "output_is_the_formula", "it raised Skipped: not today"),
]


def finding(report: Report, law: str) -> Any:
    return next(found for found in report.findings if found.property.name == law)


@pytest.mark.parametrize(("broken", "law", "evidence"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_subject_gets_its_verdict_and_the_next_property_runs(broken: type[Own], law: str, evidence: str) -> None:
    report = check_attention(broken, cases=8, empty_rows="nan")
    assert [found.property for found in report.findings] == list(PROPERTIES)
    assert not report.ok
    found = finding(report, law)
    assert found.status == FAILED
    with pytest.raises(AssertionError, match=evidence):
        raise AssertionError(found.evidence)
    with pytest.raises(AssertionError):
        replay(broken, law, found.counterexample.case, empty_rows="nan")
    assert torch.get_default_dtype() == torch.float32


def test_what_it_draws_from_everybody_s_random_numbers_is_put_back() -> None:
    ours, torchs = random.getstate(), torch.get_rng_state()
    for broken in (DrawsFromPython, SetsTheSeed):
        check_attention(broken, cases=3, only="contract", empty_rows="nan")
    assert random.getstate() == ours
    assert torch.equal(torch.get_rng_state(), torchs)


def test_what_is_left_to_chance_is_said_to_be() -> None:
    report = check_attention(LeftToChance, cases=40, empty_rows="nan")
    assert any("left to chance" in found.evidence for found in report.of(FAILED))


def test_a_right_one_holds_and_the_report_counts_and_says_why() -> None:
    report = check_attention(Own, cases=10)
    assert report.ok, str(report)
    ran, left_out = report.of(HELD), report.of(NOT_APPLICABLE)
    assert len(ran) + len(left_out) == len(PROPERTIES)
    first, second, *_ = str(report).splitlines()
    assert first == f"own.Own: {len(ran)} properties ran, {len(ran)} held, 0 failed; {len(left_out)} did not apply"
    cases = sum(found.cases for found in report.findings)
    assert second.startswith(f"({cases:,} cases, ")
    for found in left_out:
        assert found.reason in str(report)
        assert found.property.name in str(report)
    for line in ("its weights: qkv.weight = w_q over w_k over w_v, out.weight = w_o", "it returns no weights", "gets NaN"):
        assert line in str(report)


def test_the_lesson_s_own_class_is_held_to_all_that_it_takes() -> None:
    report = check_attention(MultiHeadAttention, cases=3)
    assert report.ok
    left_out = {found.property.family: found.reason for found in report.of(NOT_APPLICABLE)}
    mechanisms = {"positions", "decoding", "variants"}  # it has none of them
    # The others are promises, made by those who declare them.
    assert left_out.keys() - mechanisms == {"masking", "dependence", "contract", "tools", "graphs"}, left_out


def test_it_takes_less_than_five_seconds_of_a_processor() -> None:
    start = time.process_time()
    check_attention(Own)
    assert time.process_time() - start < 5


def test_a_report_is_plain_data_as_well() -> None:
    report = check_attention(NotANumber, cases=5)
    data = json.loads(json.dumps(report.as_dict()))
    assert data["subject"] == "test_conformance.NotANumber"
    assert not data["ok"]
    assert data["counts"][FAILED] == len(report.of(FAILED)) > 0
    (entry,) = (found for found in data["findings"] if found["property"] == "output_is_the_formula")
    assert entry["counterexample"] == "Case()"
    assert "nan, should be" in entry["evidence"]
    assert entry["reproduction"].splitlines()[-1] == (
        "properties.replay(properties.of_class(test_conformance.NotANumber), 'output_is_the_formula', properties.Case())"
    )


def test_what_a_report_tells_one_to_paste_fails_again() -> None:
    found = finding(check_attention(NotANumber, cases=5), "output_is_the_formula").counterexample
    with pytest.raises(AssertionError, match="nan, should be"):
        exec(found.reproduction(), {})


def test_a_run_without_a_masked_case_says_so() -> None:
    unmasked = check_attention(Own, cases=3, masks=("none", "full"))
    assert "No masked case took part: the masks declared are none, full" in str(unmasked)
    assert "No masked case" not in str(check_attention(Own, cases=3, masks=("none", "causal")))


def test_failures_can_be_expected_with_a_reason() -> None:
    doubled = of_class(Own, name="doubled", scale=lambda d_head: 2.0, empty_rows="nan")
    laws = [found.property.name for found in check_attention(doubled, cases=10).of(FAILED)]
    report = check_attention(doubled, cases=10, expected_failures=dict.fromkeys(laws, "ticket 17"))
    assert report.ok
    assert [found.property.name for found in report.of(EXPECTED)] == laws
    assert "output_is_the_formula: ticket 17" in str(report)
    with_one_more = dict.fromkeys([*laws, "strides_do_not_matter"], "ticket 17")
    strict = check_attention(doubled, cases=10, expected_failures=with_one_more)
    assert not strict.ok
    assert "was expected to fail (ticket 17), and held" in finding(strict, "strides_do_not_matter").evidence


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"output_is_the_formula": " "}, "output_is_the_formula needs a reason, got ' '"),
        ({"output_is_a_formula": "x"}, "no property 'output_is_a_formula'; did you mean output_is_the_formula"),
        ({"rows_sum_to_one": "x"}, r"rows_sum_to_one does not apply to own.Own \(it returns no weights\)"),
    ],
)
def test_an_expectation_that_means_nothing_is_refused(expected: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_attention(Own, expected_failures=expected)


def test_one_family_can_be_chosen() -> None:
    report = check_attention(Own, cases=3, only="causality")
    assert {found.property.family for found in report.findings} == {"causality"}
    with pytest.raises(ValueError, match="only='causallity' is part of no property's name; the names are reference-output_is"):
        check_attention(Own, only="causallity")


def test_what_it_prints_is_kept_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    class Prints(Own):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
            print("tokens:", x.shape[1])
            return super().forward(x, mask)

    capsys.readouterr()
    for in_processes in (False, True):
        report = check_attention(Prints, cases=2, only="reference-output", empty_rows="nan", in_processes=in_processes)
        assert report.ok
        assert report.printed.startswith("tokens: ")
        assert "It printed" in str(report)


class NeverReturns(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        while x.shape[1] > 2:
            with contextlib.suppress(Exception):  # what waits for something often does
                time.sleep(0.01)
        return super().forward(x, mask)


def test_a_call_that_never_ends_is_a_failure_and_the_next_property_runs() -> None:
    report = check_attention(NeverReturns, cases=20, only="contract", time_limit=0.3, empty_rows="nan", weights=False)
    assert "it has not ended after 0.3 seconds" in {found.evidence for found in report.of(FAILED)}
    assert finding(report, "parameters_are_those_of_the_formula").status == HELD
    assert all(found.counterexample.case.queries > 2 for found in report.of(FAILED))


def test_neither_does_it_in_another_thread() -> None:
    reports = []

    def run() -> None:
        declared = {"empty_rows": "nan", "weights": False}
        reports.append(check_attention(NeverReturns, cases=20, only="contract-the_result", time_limit=0.3, **declared))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert "it has not ended after 0.3 seconds" in {found.evidence for found in reports[0].of(FAILED)}


def test_an_alarm_of_somebody_else_still_rings() -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    try:
        signal.setitimer(signal.ITIMER_REAL, 30)
        check_attention(Own, cases=3, only="contract-the_result", empty_rows="nan")
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 30
        signal.raise_signal(signal.SIGALRM)
        assert rung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class CrashesOnFive(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        if x.shape[1] == 5:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().forward(x, mask)


class DeadlocksInCompiledCodeOnFive(Own):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        if x.shape[1] == 5:
            compiled, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # holds on to the interpreter
            compiled.pthread_mutex_lock(lock)
            compiled.pthread_mutex_lock(lock)
        return super().forward(x, mask)


@pytest.mark.parametrize(
    ("broken", "evidence"),
    [
        (CrashesOnFive, "its process died, of SIGSEGV"),
        (DeadlocksInCompiledCodeOnFive, "it has not ended after 0.2 seconds, and could only be stopped with its process"),
    ],
)
def test_what_takes_its_process_with_it_is_a_failure_too(
    broken: type[Own], evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("properties.isolated._GRACE", 1.0)
    report = check_attention(broken, cases=20, only="heads-", time_limit=0.2, empty_rows="nan", in_processes=True)
    assert [found.property.family for found in report.findings] == ["heads"] * len(report.findings)
    failed = [found for found in report.of(FAILED) if found.evidence == evidence]
    assert failed
    assert all(found.counterexample.case.queries == 5 for found in failed)


def test_in_processes_finds_the_same() -> None:
    here = check_attention(NotANumber, cases=5, only="reference")
    there = check_attention(NotANumber, cases=5, only="reference", in_processes=True)
    for one, other in zip(here.findings, there.findings, strict=True):
        assert (one.property, one.status, one.evidence, one.cases) == (other.property, other.status, other.evidence, other.cases)


def test_a_constructor_that_raises_at_some_sizes_is_a_failure() -> None:
    class OneHeadOnly(Own):
        def __init__(self, d_model: int, num_heads: int) -> None:
            if num_heads > 2:
                raise NotImplementedError("more than two heads")
            super().__init__(d_model, num_heads)

    report = check_attention(OneHeadOnly, cases=10, only="reference-output", empty_rows="nan")
    (found,) = report.of(FAILED)
    assert found.evidence == "building it raised NotImplementedError: more than two heads"


def test_a_layer_that_is_no_layer_is_a_failure() -> None:
    nothing = of_module(
        "nothing",
        build=lambda inputs: nn.Identity(),
        parameters=lambda w: {"w": w.w_q},
        arguments=lambda inputs: ((inputs.x,), {}),
    )
    with pytest.raises(AssertionError, match="it raised LookupError: the module has no parameter w"):
        replay(nothing, "output_is_the_formula", Case())


def test_numbers_that_mean_nothing_are_refused() -> None:
    for wrong, message in (
        ({"cases": 0}, "cases must be a whole number, at least 1, got 0"),
        ({"cases": "5"}, "cases must be a whole number, at least 1, got '5'"),
        ({"time_limit": -1}, "time_limit must be a positive number of seconds, got -1"),
        ({"time_limit": "x"}, "time_limit must be a positive number of seconds, got 'x'"),
        ({"only": None}, "only must be part of a property's name, like 'causality', got None"),
        ({"expected_failures": ["rows_sum_to_one"]}, "expected_failures must be a mapping of names to reasons, got "),
    ):
        with pytest.raises(ValueError, match=message):
            check_attention(Own, **wrong)


def test_what_other_threads_print_meanwhile_is_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    inside, printed = threading.Event(), threading.Event()

    class Prints(Own):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
            inside.set()
            printed.wait(10)
            print("mine")
            return super().forward(x, mask)

    reports: list[Report] = []
    thread = threading.Thread(
        target=lambda: reports.append(check_attention(Prints, cases=1, only="reference-output", empty_rows="nan"))
    )
    thread.start()
    assert inside.wait(10)
    print("yours")
    printed.set()
    thread.join(60)
    assert capsys.readouterr().out == "yours\n"
    assert set(reports[0].printed.split()) == {"mine"}


def test_what_failures_have_in_common_is_said_first() -> None:
    class BiasedTwice(MultiHeadAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output, weights = super().forward(*args, **kwargs)
            return output if self.out_proj.bias is None else output + self.out_proj.bias, weights

    text = str(check_attention(BiasedTwice))
    assert "failures are on cases with biases." in text.splitlines()[3]
    wrong = str(check_attention(WritesIntoItsInput, empty_rows="nan"))
    laws = [line for line in wrong.splitlines() if line.endswith("]") and "  [" in line]
    assert "[contract-nothing_passed_in_is_changed]" in laws[0] + laws[1]
    assert "[reference-" in laws[-1]
