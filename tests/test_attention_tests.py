"""`attention_tests`, as another project's pytest meets it."""

from __future__ import annotations

import re
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test
from own import Own

from properties import PROPERTIES
from properties.testing import attention_tests

ROOT = Path(__file__).parent.parent
SUITE = """
from own import Own
from properties.testing import attention_tests
from torch import nn

class Doubled(Own):
    def forward(self, x, mask=None):
        return 2 * super().forward(x, mask)

test_right = attention_tests(Own)
test_doubled = attention_tests(Doubled, expected_failures={"output_is_the_formula": "ticket 17", "no_weight_is_negative": "t"})
"""


def run(folder: Path, *options: str) -> tuple[str, list[str]]:
    """pytest's output there, and the ids of the tests with their outcomes."""
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-v", "-p", "no:cacheprovider", "--color=no", *options]
    paths = f"{ROOT}:{ROOT / 'tests'}"
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env={"PYTHONPATH": paths})
    lines = re.findall(r"^\S+::(\S+ [A-Z]+)", done.stdout, flags=re.MULTILINE)
    return done.stdout, lines


def suite(folder: Path, text: str = SUITE) -> Path:
    (folder / "test_own.py").write_text(text)
    (folder / "conftest.py").write_text(
        "from hypothesis import settings\n"
        "settings.register_profile('few', max_examples=3, database=None, derandomize=True)\n"
        "settings.load_profile('few')\n"
    )
    return folder


def test_one_test_for_each_property_with_stable_ids(tmp_path: Path) -> None:
    _, first = run(suite(tmp_path, SUITE.replace('"no_weight_is_negative": "t"', "")), "-k", "right and causality")
    _, again = run(tmp_path, "-k", "right and causality")
    assert first == again
    assert first == [
        "test_right[causality-the_future_does_not_change_the_past] PASSED",
        "test_right[causality-no_gradient_flows_from_hidden_keys] PASSED",
        "test_right[causality-a_prefix_gives_the_first_rows] PASSED",
        "test_right[causality-the_flag_means_its_mask] SKIPPED",
    ]
    ids = [mark.args[1] for mark in attention_tests(Own).pytestmark]  # type: ignore[attr-defined]
    assert [parameter.id for parameter in ids[0]] == [f"{law.family}-{law.name}" for law in PROPERTIES]


def test_known_failures_are_strict_xfails_and_others_fail_with_the_message(tmp_path: Path) -> None:
    doubled = SUITE.replace('"no_weight_is_negative": "t"', '"strides_do_not_matter": "ticket 18"')
    output, outcomes = run(suite(tmp_path, doubled), "-k", "doubled and (reference or rows or strides or linearly)", "-rxXs")
    by_id = dict(line.split() for line in outcomes)
    assert by_id["test_doubled[reference-output_is_the_formula]"] == "XFAIL"
    assert by_id["test_doubled[contract-strides_do_not_matter]"] == "FAILED"  # it holds
    assert by_id["test_doubled[algebra-values_enter_linearly]"] == "PASSED"
    assert by_id["test_doubled[rows-constant_values_come_back]"] == "FAILED"
    assert "ticket 17" in output
    assert "[XPASS(strict)] ticket 18" in output
    assert "not applicable: it returns no weights" in output
    assert "breaks a law of attention: If every value is the same vector, that vector is what every query gets" in output
    assert "properties.replay(properties.of_class(test_own.Doubled), 'constant_values_come_back', properties.Case(" in output
    assert "Falsifying example" not in output


def test_an_expectation_without_a_reason_or_a_property_stops_the_collection(tmp_path: Path) -> None:
    output, _ = run(suite(tmp_path))
    assert "expected_failures: no_weight_is_negative does not apply to test_own.Doubled (it returns no weights)" in output
    output, _ = run(suite(tmp_path, SUITE.replace("ticket 17", "")))
    assert "expected_failures: output_is_the_formula needs a reason, got ''" in output


def test_the_loaded_profile_decides_how_many_cases(tmp_path: Path) -> None:
    (tmp_path / "test_count.py").write_text(
        "from own import Own\n"
        "from properties.testing import attention_tests\n"
        "calls = []\n"
        "class Counts(Own):\n"
        "    def forward(self, x, mask=None):\n"
        "        calls.append(x)\n"
        "        return super().forward(x, mask)\n"
        "test_own = attention_tests(Counts)\n"
        "calls.clear()\n"
        "def test_how_many_calls():\n"
        "    assert len(calls) == 3\n"
    )
    _, outcomes = run(suite(tmp_path, ""), "-k", "how_many_calls or contract-the_result")
    assert outcomes == ["test_own[contract-the_result_has_the_shape_of_the_question] PASSED", "test_how_many_calls PASSED"]


def test_what_failed_is_kept_in_the_database_for_its_law_alone(tmp_path: Path) -> None:
    three = ("-k", "doubled and (rows-constant or rows-outputs or algebra-values)")
    suite(tmp_path, SUITE.partition("test_doubled")[0] + "test_doubled = attention_tests(Doubled)\n")
    conftest = tmp_path / "conftest.py"
    conftest.write_text(conftest.read_text().replace("max_examples=3, database=None, derandomize=True", "max_examples=50"))
    _, first = run(tmp_path, *three)
    conftest.write_text(
        "from hypothesis import Phase\n" + conftest.read_text().replace("max_examples=50", "phases=[Phase.reuse]")
    )
    _, replayed = run(tmp_path, *three)
    _, again = run(tmp_path, *three)
    assert [line.split()[1] for line in first] == ["FAILED", "FAILED", "PASSED"]
    assert [line.split()[1] for line in replayed] == ["FAILED", "FAILED", "SKIPPED"]  # there is nothing to replay for the third
    assert again == replayed


def test_they_are_hypothesis_tests_to_whoever_collects_those(tmp_path: Path) -> None:
    _, outcomes = run(suite(tmp_path, SUITE.partition("test_doubled")[0]), "-m", "hypothesis", "-k", "causality-the_f")
    assert len(outcomes) == 2
    tests = attention_tests(Own)
    assert is_hypothesis_test(tests)
    assert list(signature(tests).parameters) == ["law"]


def test_without_a_mask_it_warns() -> None:
    with pytest.warns(UserWarning, match="own.Own is tested without any mask that hides keys: it declares none"):
        attention_tests(Own, masks=("none",))


def test_pytest_is_imported_there_only() -> None:
    code = "import sys, properties, properties.__main__; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, timeout=60).returncode == 0
    imports = re.compile(r"^\s*(import|from) pytest", re.MULTILINE)
    assert [path.name for path in (ROOT / "properties").rglob("*.py") if imports.search(path.read_text())] == ["testing.py"]
