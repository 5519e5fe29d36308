"""The catalog: every `Fault` in the modules of this package, the families of FIRST before the others."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil

import faults
from faults.fault import Equivalent, Fault, FaultError, kebab, name_of

NO_FAMILIES = ("testing",)  # has no faults, and needs pytest
FIRST = ("lesson",)  # the six mistakes of the lesson come first, the other families by name


@functools.cache
def catalog() -> dict[str, type[Fault]]:
    """All faults by name."""
    return {name_of(fault): fault for fault in _classes() if not issubclass(fault, Equivalent)}


@functools.cache
def equivalents() -> dict[str, type[Fault]]:
    """All variants that look wrong and are right, by name."""
    return {name_of(fault): fault for fault in _classes() if issubclass(fault, Equivalent)}


def find(name: str) -> type[Fault]:
    """Return the entry of this name, or of the class of this name; or raise LookupError with the nearest names."""
    known = catalog() | equivalents()
    for entry in (name, kebab(name)):
        if entry in known:
            return known[entry]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`python -m faults list` names them all"
    raise LookupError(f"there is no fault {name!r}: {hint}")


def _classes() -> list[type[Fault]]:
    modules = [module.name for module in pkgutil.iter_modules(faults.__path__) if not module.name.startswith("_")]
    modules = [name for name in modules if name not in NO_FAMILIES]
    modules.sort(key=lambda name: (name not in FIRST, name))
    classes: list[type[Fault]] = []
    for name in modules:
        module = importlib.import_module(f"faults.{name}")
        own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
        classes += [c for c in own if issubclass(c, Fault) and c not in (Fault, Equivalent) and not c.__name__.startswith("_")]
    names = [name_of(fault) for fault in classes]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise FaultError(f"two faults are called {', '.join(sorted(twice))}")
    return classes
