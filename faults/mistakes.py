"""What `properties` is told of the catalog, so that a report can say which mistakes it would not have seen.

`properties` knows nothing of this package, so it is told in a file: `properties/known_mistakes.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

from faults.fault import Fault, name_of, subject_of
from faults.kills import kills
from properties.case import sample
from properties.laws import PROPERTIES
from properties.unseen import FILE

_CASES = 60  # of each kind of mask, and without each of the needs; what is visible at all is visible far more often
_WITHOUT: dict[str, dict[str, tuple[Any, ...]]] = {
    "cross_attention": {"keys": (None,)},
    "grouped_heads": {"num_kv_heads": (None,)},
    "bias": {"bias": (False,)},
    "dropout": {"dropout": (0.0,)},
    "windowed": {"window": (None,)},
    "explicit_positions": {"positions": ("counted",)},
}


def mistake(fault: type[Fault], killers: Iterable[str]) -> dict[str, Any]:
    """What there is to know of a fault: on which masks it shows, what it needs to show, and what notices it."""
    subject = subject_of(fault)
    supports, killers = subject.supports, list(killers)
    black_box = replace(subject, supports=replace(supports, loads_weights=False))
    needs = [need for need, fields in _WITHOUT.items() if getattr(supports, need) and not _shows(fault, fields)]
    needs += [need for need in ("capped", "sinks", "qk_norm") if getattr(supports, need)]
    if supports.cache and all("cache" in property_.needs for property_ in PROPERTIES if property_.name in killers):
        needs.append("cache")
    placings = [] if supports.placings == ("none",) else supports.placings
    return {
        "masks": [mask for mask in supports.masks if _shows(fault, {"mask": (mask,)})],
        "placings": [placing for placing in placings if _shows(fault, {"placing": (placing,)})],
        "needs": needs,
        "killers": killers,
        "killers_without_weights": [kill.property for kill in kills(fault, black_box)],
    }


def write(mistakes: dict[str, dict[str, Any]], keep: bool) -> bool:
    """Write them to the file of `properties`, and return whether anything changed; `keep` entries that are not given."""
    before = read()
    after = dict(sorted({**(before if keep else {}), **mistakes}.items()))
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in after.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return after != before


def read() -> dict[str, dict[str, Any]]:
    """What the file says."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def _shows(fault: type[Fault], fields: dict[str, tuple[Any, ...]]) -> bool:
    random, taken = Random(f"{name_of(fault)} {fields}"), subject_of(fault).supports.fields()
    narrowed = {**taken, **{name: [v for v in values if v in taken.get(name, values)] for name, values in fields.items()}}
    return all(narrowed.values()) and any(fault.visible(sample(random, narrowed)) for _ in range(_CASES))
