"""Which known mistakes would go unseen, when some of the properties do not apply.

Known are those of the catalog in `faults`, which another project need not have: what is measured of them is kept in
`known_mistakes.json`, written by `python -m faults bless`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from properties.property import Property
from properties.subject import Subject

FILE = Path(__file__).with_name("known_mistakes.json")


@dataclass(frozen=True)
class Mistakes:
    """Names of known mistakes."""

    known: int
    possible: tuple[str, ...]  # those that show on some case that the subject takes part in
    unseen: tuple[str, ...]  # those of them that none of the properties notices

    @classmethod
    def of(cls, subject: Subject, properties: Collection[Property]) -> Mistakes:
        """The mistakes that a subject which declares the same could have made, and these properties."""
        names = {property_.name for property_ in properties}
        killers = "killers" if subject.supports.loads_weights else "killers_without_weights"
        possible = [name for name, measured in _known().items() if _possible(measured, subject)]
        unseen = [name for name in possible if not names & set(_known()[name][killers])]
        return cls(len(_known()), tuple(possible), tuple(unseen))


def _possible(measured: dict[str, Any], subject: Subject) -> bool:
    supports = subject.supports
    masks = set(measured["masks"]) & set(supports.masks)
    placings = not measured["placings"] or set(measured["placings"]) & set(supports.placings)
    return bool(masks and placings) and all(getattr(supports, need) for need in measured["needs"])


def known_mistakes() -> frozenset[str]:
    """Their names."""
    return frozenset(_known())


@functools.cache
def _known() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
