"""What `attention_tests` returns is fuzzed by HypoFuzz as it is, and pytest replays what that has found."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase
from running import needed

from properties import PROPERTIES, of_class

sys.path.append(str(Path(__file__).parents[1]))
from own import Own  # noqa: E402

needed("hypofuzz")
ROOT = Path(__file__).parents[2]
LIMIT = 180  # seconds to wait for what takes five
INPUTS = 200  # that the right one is to get past: those of the first two laws that HypoFuzz goes to
# Breaks most laws: HypoFuzz goes from one to another as it likes, two seconds each, and is to be at one of those soon.
BROKEN = """
class Broken(Own):
    calls = 0
    def forward(self, x, mask=None):
        self.calls += 1
        return super().forward(x, mask) + self.calls * x.flip(0, 1)
"""
# `replay` finds nothing by itself: it only runs what is in the database.
CONFTEST = """
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

settings.register_profile("fuzzed", database=DirectoryBasedExampleDatabase("examples"), derandomize=False)
settings.register_profile("replay", settings.get_profile("fuzzed"), phases=[Phase.reuse, Phase.shrink])
settings.load_profile("fuzzed")
"""


def project(folder: Path) -> Path:
    (folder / "pytest.ini").write_text("[pytest]\n")  # the root: tests are known in the database by their path from there
    (folder / "conftest.py").write_text(CONFTEST)
    start = "from own import Own\nfrom properties.testing import attention_tests\n"
    (folder / "test_right.py").write_text(f"{start}test_right = attention_tests(Own)\n")
    (folder / "test_broken.py").write_text(f"{start}{BROKEN}\ntest_broken = attention_tests(Broken)\n")
    return folder


def environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}


@contextmanager
def fuzzing(folder: Path, *tests: str) -> Iterator[Path]:
    """`hypothesis fuzz` at work, which never ends by itself; yield what it prints into."""
    command = [str(Path(sys.executable).with_name("hypothesis")), "fuzz", "--no-dashboard", "-n", "1", "--", *tests]
    printed = folder / f"{tests[0]}.txt"
    with printed.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield printed
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(what: Callable[[], bool], printed: Path) -> None:
    end = time.monotonic() + LIMIT
    while not what():
        assert time.monotonic() < end, f"waited in vain; HypoFuzz printed:\n{printed.read_text()}"
        time.sleep(0.2)


def inputs(folder: Path) -> dict[str, int]:
    """How many inputs each target has had, of those that have reported."""
    from hypofuzz.database import HypofuzzDatabase, test_keys_key

    database = HypofuzzDatabase(DirectoryBasedExampleDatabase(folder / "examples"))
    reports = [report for key in database.fetch(test_keys_key) for report in database.reports.fetch(key)]
    return {one.nodeid: max(sum(r.status_counts.values()) for r in reports if r.nodeid == one.nodeid) for one in reports}


def failed(folder: Path) -> set[str]:
    """The targets with a failing input in Hypothesis's database, whether HypoFuzz has got to shrinking it or not."""
    from hypofuzz.database import FailureState, HypofuzzDatabase, test_keys_key

    database = HypofuzzDatabase(DirectoryBasedExampleDatabase(folder / "examples"))
    states = [database.failures(state=state) for state in (FailureState.SHRUNK, FailureState.UNSHRUNK)]
    return {
        report.nodeid
        for key in database.fetch(test_keys_key)
        if any(True for state in states for _ in state.fetch(key))
        for report in database.reports.fetch(key)
    }


def test_every_law_is_a_target_a_broken_one_is_caught_and_pytest_replays_it(tmp_path: Path) -> None:
    folder = project(tmp_path)
    applicable = sum(law.not_applicable(of_class(Own)) is None for law in PROPERTIES)
    targets = f"using 1 process to fuzz {applicable} tests (skipped {len(PROPERTIES) - applicable} tests)"

    with fuzzing(folder, "test_right.py") as printed:
        wait_for(lambda: sum(inputs(folder).values()) >= INPUTS, printed)
    assert targets in printed.read_text()
    assert not failed(folder)

    with fuzzing(folder, "test_broken.py") as printed:
        wait_for(lambda: bool(failed(folder)), printed)
    assert targets in printed.read_text()
    caught = failed(folder)
    assert all(name.startswith("test_broken.py::test_broken[") for name in caught)

    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--color=no", "--hypothesis-profile=replay"]
    replay = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=LIMIT).stdout
    outcomes = dict(re.findall(r"^(\S+::\S+) ([A-Z]+)", replay, flags=re.MULTILINE))
    assert {name for name, outcome in outcomes.items() if outcome != "SKIPPED"} == caught
    assert {outcomes[name] for name in caught} == {"FAILED"}
    assert "test_broken.Broken breaks a law of attention" in replay
