"""The catalog's mistakes written once more, in other styles, by edits of a correct module."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import tests.styles
from faults.catalog import find
from faults.subject import DECLARED, clean_class
from properties.subject import Subject

HERE = Path(__file__).parent


def styles() -> dict[str, dict[str, tuple[tuple[str, str], ...]]]:
    """The mistakes written in each style: its name, and edits by the name of the fault."""
    names = [module.name for module in pkgutil.iter_modules(tests.styles.__path__)]
    return {
        name: importlib.import_module(f"tests.styles.{name}_mistakes").MISTAKES for name in names if f"{name}_mistakes" in names
    }


def clean(style: str, attention: type) -> Subject:
    """The correct module of this style, for what this class of `attn` declares."""
    return importlib.import_module(f"tests.styles.{style}").subject(style, DECLARED[attention])


def broken(style: str, fault: str) -> Subject:
    """The same with the mistake in it, under a name that does not give it away."""
    module = edited(style, fault)
    return replace(module.subject(f"{style} attention", DECLARED[clean_class(find(fault))]), expression="")


def edited(style: str, fault: str) -> ModuleType:
    """The source of a style after the edits for a fault, as a module of its own."""
    source = (HERE / f"{style}.py").read_text(encoding="utf-8")
    for old, new in styles()[style][fault]:
        if source.count(old) != 1:
            raise ValueError(f"{style}, {fault}: this must be in {style}.py once, and is {source.count(old)} times: {old!r}")
        source = source.replace(old, new)
    name = f"tests.styles._{style}_{fault.replace('-', '_')}"
    module = ModuleType(name)
    module.__file__ = str(HERE / f"{style}.py")
    sys.modules[name] = module  # what is pickled, or decorated, looks itself up there
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module
