"""The subjects of a campaign, by names that any process can import."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from properties.loading import load
from properties.printed import keep_printed
from properties.subject import Subject
from properties.wrap import as_subject, black_box

Declared = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Asked:
    """A subject, by what `module:name` names, asked in one of its dtypes as if it had no wider one."""

    name: str
    path: str
    number: int  # of those that the name stands for
    dtype: str
    declared: Declared = ()
    as_black_box: bool = False

    def subject(self) -> Subject:
        """The subject; made once in a process."""
        return _made(self)

    @property
    def what(self) -> dict[str, Any]:
        """All that makes it what it is: anything else that goes by its name is another subject."""
        return {
            "path": self.path,
            "number": self.number,
            "dtype": self.dtype,
            "declared": [f"{name}={value!r}" for name, value in self.declared],
            "black box": self.as_black_box,
            "source": digest(_source(self.path)),
        }


def asked(path: str, *, as_black_box: bool = False, **declared: Any) -> dict[str, Asked]:
    """Return what `module:name` names, in each of its dtypes, by name; it may also be a list of what `check_attention` takes.

    Raises ValueError, TypeError, LookupError or ImportError for what cannot be asked.
    """
    found: dict[str, Asked] = {}
    fixed = tuple(declared.items())
    for number, subject in enumerate(_subjects(path, fixed, as_black_box)):
        for dtype in subject.supports.dtypes:
            name = f"{subject.name} in {dtype}"
            if name in found:
                raise ValueError(f"{path} has two subjects that are called {subject.name}: results go by name")
            found[name] = Asked(name, path, number, dtype, fixed, as_black_box)
    return found


@functools.cache
def _made(asked: Asked) -> Subject:
    subject = _subjects(asked.path, asked.declared, asked.as_black_box)[asked.number]
    floors = {dtype: floor for dtype, floor in subject.supports.floors.items() if dtype == asked.dtype}
    options = "".join(f", {name}={value!r}" for name, value in asked.declared)
    options += ", as_black_box=True" if asked.as_black_box else ""
    return replace(
        subject,
        supports=replace(subject.supports, dtypes=(asked.dtype,), floors=floors),
        expression=f"properties.campaign.asked({asked.path!r}{options})[{asked.name!r}].subject()",
        imports=("import properties.campaign",),
    )


@functools.cache
def _subjects(path: str, declared: Declared, as_black_box: bool) -> list[Subject]:
    thing = load(path)
    several = isinstance(thing, Iterable) and not isinstance(thing, str | type) and not callable(thing)
    wrap = black_box if as_black_box else as_subject
    with keep_printed():
        return [wrap(one, **dict(declared)) for one in (thing if several else [thing])]


def digest(*files: Path) -> str:
    """A few letters that change when one of these files does."""
    contents = hashlib.sha256()
    for path in sorted(files):
        contents.update(path.name.encode() + path.read_bytes())
    return contents.hexdigest()[:12]


def _source(path: str) -> Path:
    """The file in which `module:name` stands."""
    return Path(sys.modules[path.partition(":")[0]].__file__ or "")


def sources(*packages: str) -> str:
    """The same of all that stands in these packages, but not in packages within."""
    folders = [Path(sys.modules[name].__file__ or "").parent for name in packages]
    return digest(*(file for folder in folders for file in folder.glob("*.py")))
