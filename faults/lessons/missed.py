"""Why tests usually miss a fault: what people test, against what it takes to see it. Derived from what is known, not written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from faults.fault import Fault, sections_of, subject_of
from faults.killers import known_killers, names_of_killers
from properties.case import FIELDS, sample
from properties.laws import PROPERTIES

CASES = 60  # of each kind
LOOSE = 0.02  # a relative error that a tolerance like rtol=1e-2 lets pass, more or less

# What people test with, in words that follow "with" or stand alone.
HABITS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "one token": {"queries": (1,), "keys": (None, 1)},
    "one head": {"num_heads": (1,), "num_kv_heads": (None,)},
    "one sample": {"batch": (1,)},
    "as many keys as queries": {"keys": (None,)},
    "no mask": {"mask": ("none", "is_causal")},
    "masks that hide nothing": {"mask": ("none", "full"), "encoding": ("bool",)},
    "boolean masks": {"encoding": ("bool",)},
    "heads of one feature": {"d_head": (1,)},
    "as many key/value heads as heads": {"num_kv_heads": (None,)},
    "no dropout": {"dropout": (0.0,)},
    "contiguous inputs": {"layout": ("contiguous",)},
    "no window": {"window": (None,)},
    "a power of two of heads": {"num_heads": (1, 2, 4), "num_kv_heads": (None,)},
    "positions counted from 0": {"positions": ("counted",)},
    "positions that are not stretched": {"stretch": (1.0,)},
    "one token at a time": {"chunk": (1,), "prefill": (0, 1)},
    "a cache that grows": {"spare": (None,)},
    "scores of usual size": {"score_scale": (1.0,)},
}


def why_missed(fault: type[Fault]) -> list[str]:
    """Sentences, those that say most first."""
    sections = sections_of(fault)
    said = []
    symptom = sections.get("Symptom", "").partition(":")[0]
    if symptom == "Silent":
        shapes = "the_result_has_the_shape_of_the_question" not in names_of_killers(fault)
        said.append(f"Nothing is raised{', and every shape is right' if shapes else ''}: a test that it runs passes.")
    elif symptom == "Either":
        said.append("Where the shapes do not fit it raises; where they happen to fit it is silently wrong.")
    elif symptom == "Loud":
        said.append("Wherever it shows it raises, so any test that gets there sees it.")
    severity = " ".join(sections.get("Severity", "").split())
    if "a first call in evaluation is right" in severity:
        wrong = severity.partition("wrong: ")[2].rstrip(".")
        said.append(
            "The output of one call in evaluation, which is all that most tests look at, is right"
            + (f"; wrong is {wrong}." if wrong else ".")
        )
    blind = blind_habits(fault)
    if blind:
        said.append(f"It never shows with {_joined(blind)}.")
    share = share_visible(fault)
    said.append(f"On {share} of 100 random cases it can show{'' if share < 100 else ', if one looks'}.")
    error = re.match(r"(below )?([0-9.e-]+), the median relative error", severity)
    if error and float(error[2]) <= LOOSE:
        said.append(
            f"Where it does, the output is off by {error[1] or ''}{error[2]} of itself: to a loose tolerance that is rounding."
        )
    number = len(known_killers(fault))
    said.append(f"{number} of the {len(PROPERTIES)} properties see{'s' if number == 1 else ''} it.")
    return said


def blind_habits(fault: type[Fault]) -> list[str]:
    """The habits under which it cannot show, on any of so many random cases; what a subject does not have is no habit."""
    fields = subject_of(fault).supports.fields()
    found = []
    for words, restricted in HABITS.items():
        narrowed = {
            name: [value for value in fields.get(name, FIELDS[name]) if value in values] for name, values in restricted.items()
        }
        widths = [set(fields.get(name, FIELDS[name])) - set(values) for name, values in narrowed.items()]
        if all(narrowed.values()) and any(widths) and _visible(fault, {**fields, **narrowed}, CASES, words) == 0:
            found.append(words)
    return found


def share_visible(fault: type[Fault]) -> int:
    """On how many of 100 random cases it can show."""
    return _visible(fault, dict(subject_of(fault).supports.fields()), 100, "any")


def _visible(fault: type[Fault], fields: Mapping[str, Any], number: int, stream: str) -> int:
    random = Random(f"0 {stream}")
    try:
        return sum(fault.visible(sample(random, fields)) for _ in range(number))
    except ValueError:  # no such case
        return number


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, or {words[-1]}"
