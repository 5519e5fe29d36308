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
    reproduction: str  # Python without this project, whose assertions hold as long as it is so


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


def expected(known: Iterable[Known], subject: str) -> dict[str, str]:
    """The laws that a subject is known to break, each with the titles of what is behind it."""
    reasons: dict[str, list[str]] = {}
    for finding in known:
        for law in finding.breaks.get(subject, ()):
            reasons.setdefault(law, []).append(finding.title)
    return {law: "; ".join(titles) for law, titles in reasons.items()}
