"""Another project, `examples/own_attention`, with the built wheel: its tests pass, and its mistake is met as the README shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_attention"
LAW = "two_keys"


def main() -> int:
    where = _run("-c", "import properties; print(properties.__file__)").stdout
    if not where.startswith(sys.prefix):
        return _fail(f"properties must come from the wheel, and comes from {where}")
    passing = _run("-m", "pytest", "-q")
    print(passing.stdout)
    if passing.returncode:
        return _fail("its correct attention does not pass")
    failing = _run("-m", "pytest", "-q", "test_broken.py", "-k", LAW)
    if failing.returncode != 1:
        return _fail(f"its broken attention does not fail:\n{failing.stdout}")
    met = [line.removeprefix("E").strip() for line in failing.stdout.splitlines() if line.startswith("E ")]
    missing = [line for line in shown() if line not in met]
    if missing:
        return _fail("the README shows what is not met:\n  {}\nMet was:\n  {}".format("\n  ".join(missing), "\n  ".join(met)))
    print("its broken attention fails with the message that the README shows")
    unset = _run("-m", "properties", "check", "own_attention:SelfAttention", "--black-box", "-d", "encodings=bool")
    if unset.returncode or "would go unseen" not in unset.stdout:
        return _fail(f"as a black box it should hold, and the report should say what goes unseen:\n{unset.stdout}{unset.stderr}")
    print(unset.stdout.partition("\n")[0])
    return 0


def shown() -> list[str]:
    """The lines of the message in the README."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"\n    AssertionError: own_attention\.Broken.*?\n\n", readme, flags=re.DOTALL)
    return [line.strip() for line in block.strip().splitlines()]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, timeout=600)


def _fail(why: str) -> int:
    print(why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
