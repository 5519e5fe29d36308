"""How often a property fails on an attention that is correct, which should be never: `python benchmarks/false_alarms.py FILE`.

A campaign over the clean classes and the shipped adapters of every package that is installed (all of them in the environment
`wild`), each in every dtype that it declares. What is known to fail, and explained in `tests/wild/findings`, is left out. Go on
with the same command; `python -m properties campaign report FILE` says what came of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from properties.adapters import ADAPTERS
from properties.campaign import Asked, asked, processes, run
from properties.campaign.command import told

FINDINGS = Path(__file__).parents[1] / "tests" / "wild" / "findings"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--cases", type=int, default=1_000_000, help="altogether")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    subjects: dict[str, Asked] = asked("faults.subject:SUBJECTS")
    for adapter, package in ADAPTERS.items():
        try:
            subjects |= asked(f"properties.adapters.{adapter}:SUBJECTS")
        except ImportError as error:
            print(f"without {package}: {error}", file=sys.stderr)
    known = _findings()
    left_out: dict[str, set[str]] = {}
    for name, of in list(subjects.items()):
        for finding in known:
            if broken := finding["breaks"].get(of.subject().name):
                left_out.setdefault(name, set()).update(broken)
                if of.dtype in finding.get("dtypes", ()):
                    subjects.pop(name, None)
    with told(Path(options.file)) as tell:
        progress = run(
            options.file, subjects, cases=options.cases, leave_out=left_out, workers=processes(options.workers), tell=tell
        )
    print(f"{len(subjects)} subjects, {progress.cases} cases more in {progress.seconds:.0f} s")


def _findings() -> list[dict[str, Any]]:
    files = (path.read_text(encoding="utf-8") for path in sorted(FINDINGS.glob("*.toml")))
    return [finding for text in files for finding in tomllib.loads(text)["finding"]]


if __name__ == "__main__":
    main()
