"""What is known to fail in other libraries, and why: the files in `findings/`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "findings"
KINDS = {
    "defect": "Defects",
    "limitation": "Limits, said or found",
    "design": "Designs, documented or deliberate",
}


@dataclass(frozen=True)
class Known:
    """One thing that fails, for some subjects."""

    package: str
    breaks: dict[str, list[str]]  # which laws, by subject
    kind: str  # of KINDS
    title: str
    explanation: str
    dtypes: tuple[str, ...] = ()  # in which nothing can be said about these subjects for it; for benchmarks/false_alarms.py
    reproduction: str = ""  # Python without this project, whose assertions hold as long as it is so


def load() -> list[Known]:
    """All of them, by package."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["finding"]:
            entry = {name: value.strip() if isinstance(value, str) else value for name, value in entry.items()}
            found.append(Known(package=path.stem.replace("_", "-"), **entry))
            if entry["kind"] not in KINDS:
                raise ValueError(f"{path.name}: kind must be one of {', '.join(KINDS)}, got {entry['kind']!r}")
    return found


def unexpected(known: Iterable[Known], subject: str, broken: set[str]) -> list[str]:
    """What speaks against the findings, if a subject broke these laws: one that is not known to break, or a finding not met.

    Of the laws that notice a finding some do so on rare cases only: one of them is enough.
    """
    concerned = [finding for finding in known if subject in finding.breaks]
    strangers = broken - {law for finding in concerned for law in finding.breaks[subject]}
    unmet = [finding.title for finding in concerned if not broken & set(finding.breaks[subject])]
    return [f"{subject} breaks {law}, and is not known to" for law in sorted(strangers)] + [
        f"{subject} is known for this, and was not found out: {title}" for title in unmet
    ]
