"""The properties on attention of other libraries: nothing fails that is not known to, everything known does, the page is fresh.

`python tests/wild/gate.py [--write] [adapter ...]`
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from findings import Known, load, unexpected
from page import PAGE, page

from properties import check_attention
from properties.adapters import ADAPTERS, shipped

CASES = 25  # of each property
COMMAND = "tox run -e wild -- --write"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("adapters", nargs="*", metavar="adapter", help=f"some of {', '.join(ADAPTERS)}; without any, all")
    options = parser.parse_args()
    chosen = options.adapters or list(ADAPTERS)
    known = load()
    problems: list[str] = []
    reports: dict[str, list[dict[str, Any]]] = {}
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        jobs = [(adapter, number) for adapter in chosen for number in range(_count(adapter))]
        for (adapter, _), (report, text) in zip(jobs, pool.map(_check, *zip(*jobs, strict=True)), strict=True):
            print(text.partition("\n")[0], flush=True)
            reports.setdefault(ADAPTERS[adapter], []).append(report)
            broken = {found["property"] for found in report["findings"] if found["status"] == "failed"}
            if wrong := unexpected(known, report["subject"], broken):
                problems += [*wrong, text]
        packages = {ADAPTERS[adapter] for adapter in chosen}
        concerned = [finding for finding in known if finding.package in packages]
        problems += [problem for problem in pool.map(_reproduce, concerned) if problem]
    problems += _strangers(known, reports, everything=not options.adapters)
    if not options.adapters:
        text = page(reports, known, COMMAND, CASES)
        if options.write:
            PAGE.write_text(text, encoding="utf-8")
        elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            problems.append(f"{PAGE.name} is not what was found now: {COMMAND}")
    print("\n\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


def _count(adapter: str) -> int:
    import importlib

    return len(importlib.import_module(f"properties.adapters.{adapter}").SUBJECTS)


def _check(adapter: str, number: int) -> tuple[dict[str, Any], str]:
    subject = list(shipped(adapter))[number]
    report = check_attention(subject, cases=CASES)
    return report.as_dict(), str(report)


def _reproduce(finding: Known) -> str:
    command = [sys.executable, "-W", "ignore", "-c", finding.reproduction]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return "" if done.returncode == 0 else f"{finding.package}: {finding.title}: its reproduction fails:\n{done.stderr}"


def _strangers(known: Sequence[Known], reports: dict[str, list[dict[str, Any]]], everything: bool) -> list[str]:
    names = {report["subject"] for subjects in reports.values() for report in subjects}
    if len(names) < sum(map(len, reports.values())):
        return ["two subjects have the same name"]
    if not everything:
        return []
    return [f"no subject is called {name}" for finding in known for name in finding.breaks if name not in names]


if __name__ == "__main__":
    sys.exit(main())
