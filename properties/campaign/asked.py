"""The subjects of a campaign, by names that any process can import."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from properties.campaign.unit import CampaignError
from properties.campaign.workers import end, processes
from properties.laws import PROPERTIES
from properties.loading import load
from properties.printed import keep_printed
from properties.subject import Subject
from properties.wrap import as_subject, black_box

_ANSWER = 120.0  # seconds for all that a name stands for, importing it among them

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
    laws: tuple[str, ...] = field(default=(), compare=False, repr=False)  # those that apply
    source: str = field(default="", compare=False)  # of what it stands in, see `source_of`

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
            "source": self.source,
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
            one = Asked(name, path, number, dtype, fixed, as_black_box)
            laws = tuple(law.name for law in PROPERTIES if not law.not_applicable(one.subject()))
            found[name] = replace(one, laws=laws, source=source_of(path))
    return found


def asked_apart(path: str, *, as_black_box: bool = False, **declared: Any) -> dict[str, Asked]:
    """Do the same in a process of its own; CampaignError if that dies of it, or hears nothing."""
    pool = processes(1).make()
    try:
        return pool.submit(_asked, path, as_black_box, declared).result(timeout=_ANSWER)
    except TimeoutError:
        raise CampaignError(f"{path} has not answered within {_ANSWER:g} seconds when asked what it supports") from None
    except BrokenExecutor:
        raise CampaignError(f"{path} ended the process in which it was asked what it supports") from None
    finally:
        end(pool, at_once=True)


def _asked(path: str, as_black_box: bool, declared: dict[str, Any]) -> dict[str, Asked]:
    try:
        return asked(path, as_black_box=as_black_box, **declared)
    except (KeyboardInterrupt, SystemExit) as error:
        raise CampaignError(f"{path} raised {type(error).__name__} when asked what it supports") from error


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


@functools.cache
def source_of(path: str) -> str:
    """The digest of the file in which `module:name` stands, and of those beside it in its package; it is imported already."""
    module = sys.modules[path.partition(":")[0]]
    if not module.__file__:
        return ""
    file = Path(module.__file__)
    return digest(*(file.parent.glob("*.py") if module.__package__ else [file]))


@functools.cache
def sources(*packages: str) -> str:
    """The same of all that stands in these packages, but not in packages within."""
    folders = [Path(sys.modules[name].__file__ or "").parent for name in packages]
    return digest(*(file for folder in folders for file in folder.glob("*.py")))
