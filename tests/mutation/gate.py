"""Mutate `attn` with mutmut, and fail for every mutant that gets away.

mutmut itself exits 0 whatever survives. Here a mutant has to be killed, unless `equivalents.toml` lists it, with the test that
shows why no input could tell it from the original. Timeouts and mutants that no test reaches have got away too.

Run by `tox -e mutation`.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOG = ROOT / "mutation.log"


@dataclass(frozen=True)
class Mutant:
    """What a mutant is known by: the numbers that mutmut gives them shift whenever a function is edited."""

    function: str  # attn.multihead.MultiHeadAttention.mask
    old: str  # the line as it is
    new: str  # the line as it was mutated

    def __str__(self) -> str:
        return f"{self.function}\n    - {self.old}\n    + {self.new}"


@dataclass(frozen=True)
class Equivalent:
    """A mutant that is no mistake."""

    mutant: Mutant
    because: str
    shown_by: str  # a test, by its pytest id


def main() -> int:
    equivalents = read_equivalents((ROOT / "tests/mutation/equivalents.toml").read_text("utf-8"))
    wrong = [
        f"{name} is decorated, and mutmut leaves decorated functions alone"
        for path in sorted((ROOT / "attn").rglob("*.py"))
        for name in decorated(path.read_text("utf-8"))
    ]
    print(f"mutating attn; progress goes to {LOG.name}", flush=True)
    verdicts, seconds = run()
    escaped = {name: verdict for name, verdict in verdicts.items() if verdict != "killed"}
    wrong += judge({read_diff(name, mutmut("show", name)): verdict for name, verdict in escaped.items()}, equivalents)
    shown = sorted({equivalent.shown_by for equivalent in equivalents})
    if shown and subprocess.run([sys.executable, "-m", "pytest", "-q", *shown], cwd=ROOT).returncode != 0:
        wrong.append("a test that should show an equivalence fails, or is not there")
    if not verdicts:
        wrong.append("there are no mutants")
    print(*wrong, sep="\n")
    killed = len(verdicts) - len(escaped)
    print(f"{len(verdicts)} mutants in {seconds:.0f} s: {killed} killed, {len(equivalents)} listed as equivalent")
    return 1 if wrong else 0


def run() -> tuple[dict[str, str], float]:
    """Test every mutant, from scratch; return what became of each, by its mutmut name, and the seconds it took."""
    shutil.rmtree(ROOT / "mutants", ignore_errors=True)  # mutmut would keep its verdicts, also when the tests have changed
    start = time.monotonic()
    with LOG.open("w", encoding="utf-8") as log:
        done = subprocess.run([*MUTMUT, "run", "--max-children", "2"], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        print(LOG.read_text("utf-8", "replace").replace("\r", "\n")[-5000:])
        raise SystemExit("mutmut could not run; if it says no more than that, `pytest` will")
    results = mutmut("results", "--all", "true")
    return dict(re.findall(r"^\s*(\S+): (.+)$", results, re.MULTILINE)), time.monotonic() - start


MUTMUT = (sys.executable, "-m", "mutmut")


def mutmut(*arguments: str) -> str:
    return subprocess.run([*MUTMUT, *arguments], cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout


def judge(escaped: dict[Mutant, str], equivalents: list[Equivalent]) -> list[str]:
    """Say what is wrong: mutants that got away and are not listed, and entries of the list that are not needed."""
    listed = {equivalent.mutant for equivalent in equivalents}
    got_away = [f"{verdict}: {mutant}" for mutant, verdict in escaped.items() if verdict != "survived" or mutant not in listed]
    stale = [f"listed as equivalent, but no such mutant survives: {mutant}" for mutant in listed if mutant not in escaped]
    return got_away + stale


def read_equivalents(text: str) -> list[Equivalent]:
    return [
        Equivalent(Mutant(entry["function"], entry["old"], entry["new"]), entry["because"], entry["shown_by"])
        for entry in tomllib.loads(text).get("equivalent", [])
    ]


def read_diff(name: str, diff: str) -> Mutant:
    """The mutant that mutmut calls `name`, and shows as this diff."""
    module, _, function = name.rpartition("__mutmut_")[0].rpartition(".")
    function = function.removeprefix("x_") if function.startswith("x_") else ".".join(function.split("ǁ")[1:])
    changed = {sign: "\n".join(re.findall(rf"^\{sign}(?!{re.escape(sign * 2)})\s*(.*)$", diff, re.MULTILINE)) for sign in "-+"}
    return Mutant(f"{module}.{function}", changed["-"], changed["+"])


def decorated(source: str) -> Iterator[str]:
    """The names of the functions in this source that have a decorator, and of classes that have one and functions in them."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        empty = isinstance(node, ast.ClassDef) and not any(isinstance(part, functions) for part in node.body)
        if isinstance(node, (*functions, ast.ClassDef)) and node.decorator_list and not empty:
            yield node.name


if __name__ == "__main__":
    sys.exit(main())
