"""Which properties are known to kill a fault: what its docstring says, where `bless` has written it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from faults.fault import Fault, sections_of
from properties.laws import PROPERTIES
from properties.property import Property

# The formula says that the numbers are wrong, but not why; of those behind it even less can be read.
SAY_LITTLE = ("reference", "training", "tools", "derivatives", "modes", "dropout", "graphs", "precision")


def known_killers(fault: type[Fault]) -> list[Property]:
    """The properties that its docstring names."""
    text = sections_of(fault).get("Killed by", "")
    whole, named = set(re.findall(r"^(\w+): all$", text, re.MULTILINE)), set(re.findall(r"\w+", text))
    return [p for p in PROPERTIES if p.name in named or p.family in whole]


def names_of_killers(fault: type[Fault]) -> set[str]:
    """Their names."""
    return {property_.name for property_ in known_killers(fault)}


def telling_first(properties: Iterable[Property]) -> list[Property]:
    """Those first that say best what is wrong."""
    return sorted(properties, key=lambda p: SAY_LITTLE.index(p.family) if p.family in SAY_LITTLE else -1)
