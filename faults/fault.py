"""What a fault is: the clean attention with one step replaced, and what is known about it."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import ClassVar

from attn import MultiHeadAttention
from faults.subject import clean_class, subject
from properties.case import Case
from properties.subject import Subject

WRITTEN = ("Why it is wrong", "When it shows", "Seen in the wild")  # the headings of a fault's docstring
MEASURED = ("Symptom", "Severity", "Smallest case", "Killed by")  # below them; written by `python -m faults bless`, not by hand
OF_EQUIVALENTS = ("Why it is right", "Seen in the wild")
TO_DO = "TODO"  # marks what `python -m faults new` leaves to be written

# The published taxonomy of attention mistakes: seven categories, 25 root causes (arXiv 2508.04925, labels of arXiv 2604.28118).
ROOT_CAUSES = {
    "masking": ("mask generation", "dynamic mask", "mask application"),
    "qkv projection": ("parameter initialization", "head interaction", "dynamic parameter registration", "dimension"),
    "kernel": ("silent fallback", "feature constraints", "hardware incompatibility", "numerical precision", "kernel memory"),
    "positional encoding": ("indexing", "relative position", "interpolation"),
    "score": ("normalization", "implementation", "precision handling"),
    "kv cache": ("invalidation", "update synchronization", "cache position", "memory layout", "distributed synchronization"),
    "variant": ("variant configuration", "dynamic dispatch"),
}


class Fault(MultiHeadAttention):
    """Base of all faults: subclass it in `faults/<family>.py`, replace one step, document it under the headings, and bless.

    A fault of another class of `attn` names that class, too: `class FirstKeyLost(Fault, WindowAttention)`.
    """

    root_cause: ClassVar[str]  # "category: root cause" of ROOT_CAUSES

    @staticmethod
    def visible(case: Case) -> bool:
        """Can the fault show on this case? Exactly then some property fails on it."""
        raise NotImplementedError


class Equivalent(Fault):
    """Base of the variants that look like faults and are none: no input tells them from the clean attention."""

    root_cause = "none"

    @staticmethod
    def visible(case: Case) -> bool:
        return False


class FaultError(Exception):
    """An entry of the catalog is not what an entry must be."""


def name_of(fault: type[Fault]) -> str:
    """The name of a fault, from its class: WrongSplitOrder is wrong-split-order."""
    return kebab(fault.__name__)


def kebab(name: str) -> str:
    """CamelCase to camel-case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def family_of(fault: type[Fault]) -> str:
    """The family of a fault: the module it stands in."""
    return fault.__module__.rpartition(".")[2].replace("_", " ")


def step_of(fault: type[Fault]) -> str:
    """The step of the clean attention that the fault replaces."""
    clean = clean_class(fault)
    steps = [name for name in vars(fault) if inspect.isfunction(getattr(clean, name, None))]
    if len(steps) != 1:
        found = ", ".join(steps) or "none"
        raise FaultError(f"{fault.__name__} must replace exactly one step of {clean.__name__}, it replaces {found}")
    return steps[0]


def summary_of(fault: type[Fault]) -> str:
    """What the fault does, in one sentence."""
    return inspect.cleandoc(fault.__doc__ or "").partition("\n")[0]


def sections_of(fault: type[Fault]) -> dict[str, str]:
    """The text under each heading of the docstring."""
    parts = re.split(r"^([A-Z][^\n:]*):\n", inspect.cleandoc(fault.__doc__ or ""), flags=re.MULTILINE)
    return {heading: textwrap.dedent(text).strip() for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


_SUBJECTS: dict[type[Fault], Subject] = {}


def subject_of(fault: type[Fault]) -> Subject:
    """The fault as a subject of the properties; the same one every time, of which laws remember what is costly to find out."""
    if fault not in _SUBJECTS:
        _SUBJECTS[fault] = subject(fault, name_of(fault))
    return _SUBJECTS[fault]


def check_entry(fault: type[Fault]) -> None:
    """Raise FaultError, saying what to mend, unless the fault is documented and classified as an entry must be."""
    where = f"{fault.__name__} in faults/{fault.__module__.rpartition('.')[2]}.py"
    step_of(fault)
    if TO_DO in f"{fault.__doc__} {getattr(fault, 'root_cause', '')}":
        raise FaultError(f"{where}: its docstring or root_cause says {TO_DO} still: that is to be written by hand")
    if not summary_of(fault).endswith("."):
        raise FaultError(f"{where}: the docstring must begin with one line, a sentence that says what it does")
    written = [heading for heading in sections_of(fault) if heading not in MEASURED]
    if written != list(WRITTEN):
        raise FaultError(f"{where}: the docstring must have the headings {', '.join(WRITTEN)}, in this order; it has {written}")
    if "https://" not in sections_of(fault)["Seen in the wild"]:
        raise FaultError(f"{where}: give the address of at least one report under 'Seen in the wild'")
    category, _, cause = getattr(fault, "root_cause", "").partition(": ")
    if cause not in ROOT_CAUSES.get(category, ()):
        known = "; ".join(f"{name}: {', '.join(causes)}" for name, causes in ROOT_CAUSES.items())
        raise FaultError(f"{where}: root_cause must be one of these, as 'category: cause': {known}")
    if fault.visible is Fault.visible:
        raise FaultError(f"{where}: visible(case) is missing, the exact condition under which it can show")
