"""The catalog as two pages, `docs/catalog.md` and `docs/properties.md`: a section for each fault and property, linked both ways.

Everything on them stands in the docstrings; nothing is run. In one file they would be more than some viewers care to show.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from faults.catalog import catalog, equivalents
from faults.fault import Equivalent, Fault, family_of, name_of, sections_of, step_of, summary_of
from faults.killers import known_killers
from faults.lessons.sides import diff
from faults.subject import clean_class
from properties.laws import PROPERTIES
from properties.property import Property

DOCS = Path(__file__).parents[2] / "docs"
FAULTS, LAWS = "catalog.md", "properties.md"
COMMAND = "python -m faults catalog --write"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`python -m faults catalog`."""
    command = commands.add_parser("catalog", help="the catalog as two pages: every fault and every property, linked both ways")
    command.add_argument("--write", action="store_true", help=f"write docs/{FAULTS} and docs/{LAWS}")
    command.set_defaults(run=_run)


def stale(docs: Path = DOCS) -> str | None:
    """Say how to mend the pages if they do not say what the docstrings say; None if they do, or this is no clone."""
    if not docs.is_dir():
        return None
    wrong = [name for name, text in pages().items() if not (docs / name).exists() or (docs / name).read_text("utf-8") != text]
    return f"docs/{' and '.join(wrong)}: not what the docstrings say now; run `{COMMAND}`" if wrong else None


def pages() -> dict[str, str]:
    """The pages by name, in Markdown that can be read as it is."""
    faults, right = list(catalog().values()), list(equivalents().values())
    kills = {name_of(fault): [p.name for p in known_killers(fault)] for fault in faults}
    killed: dict[str, list[str]] = {p.name: [name for name, by in kills.items() if p.name in by] for p in PROPERTIES}
    counts = {"command": COMMAND, "faults": len(faults), "equivalents": len(right), "properties": len(PROPERTIES)}
    first = [_OF_FAULTS.format(**counts), *_contents([*faults, *right], family_of, name_of)]
    for family, group in itertools.groupby([*faults, *right], key=family_of):
        first += [f"## {family.capitalize()}\n", _about(family)]
        first += ["".join(_fault(fault, kills)) for fault in group]
    second = [_OF_PROPERTIES.format(**counts), *_contents(PROPERTIES, lambda p: p.family, lambda p: p.name)]
    for family, laws in itertools.groupby(PROPERTIES, key=lambda p: p.family):
        second += [
            f'<a id="properties-{family}"></a>\n\n## {family.capitalize()}\n',
            _first_line(importlib.import_module(f"properties.laws.{family}")),
        ]
        second += ["".join(_property(p, killed[p.name])) for p in laws]
    return {name: "\n".join([*parts, *_definitions(name), ""]) for name, parts in ((FAULTS, first), (LAWS, second))}


def _definitions(here: str) -> Iterator[str]:
    """Where links lead, from one of the pages."""
    for name in (*catalog(), *equivalents()):
        yield f"[{name}]: {'' if here == FAULTS else FAULTS}#fault-{name}"
    for p in PROPERTIES:
        yield f"[{p.name}]: {'' if here == LAWS else LAWS}#property-{p.name}"


_OF_FAULTS = """\
# The faults

Made by `{command}` from the docstrings; do not edit. {faults} faults, and {equivalents} variants that look wrong and
are right. The {properties} properties are in [properties.md](properties.md), and how a kill is to be read in
[reading-a-kill.md](reading-a-kill.md).

## Contents
"""
_OF_PROPERTIES = """\
# The properties

Made by `{command}` from the docstrings; do not edit. {properties} properties, and which of the {faults} faults each
of them kills. The faults are in [catalog.md](catalog.md).

## Contents
"""
Entry = TypeVar("Entry")


def _contents(entries: Sequence[Entry], family: Callable[[Entry], str], name: Callable[[Entry], str]) -> Iterator[str]:
    for title, group in itertools.groupby(entries, key=family):
        yield f"- **{title}**: {_links(map(name, group))}"
    yield ""


def _fault(fault: type[Fault], kills: dict[str, list[str]]) -> Iterator[str]:
    name, sections = name_of(fault), sections_of(fault)
    yield f'\n<a id="fault-{name}"></a>\n\n### {name}\n\n{summary_of(fault)}\n\n'
    if issubclass(fault, Equivalent):
        yield f"Replaces `{step_of(fault)}` of `{clean_class(fault).__name__}`. Killed by nothing.\n\n"
        yield f"**Why it is right.** {_line(sections['Why it is right'])}\n\n"
    else:
        symptom = sections.get("Symptom", "not measured").partition(":")[0]
        yield f"- {symptom}; severity: {_line(sections.get('Severity', 'not measured.'))}\n"
        yield f"- smallest case: `{_line(sections.get('Smallest case', 'not measured'))}`\n"
        yield f"- replaces `{step_of(fault)}` of `{clean_class(fault).__name__}`; {fault.root_cause}\n\n"
        yield f"**Why it is wrong.** {_line(sections['Why it is wrong'])}\n\n"
        yield f"**When it shows.** {_line(sections['When it shows'])}\n\n"
    yield f"```diff\n{diff(fault, 1)}\n```\n\n"
    if name in kills:
        yield f"Killed by {_killed_by(kills[name])}.\n\n"
    yield f"Seen in the wild: {', '.join(f'<{address}>' for address in sections['Seen in the wild'].split())}\n"


def _killed_by(names: list[str]) -> str:
    """Links, and of families that kill as a whole the family's."""
    parts = []
    for family, laws in itertools.groupby(PROPERTIES, key=lambda p: p.family):
        whole = [p.name for p in laws]
        found = [name for name in whole if name in names]
        if found == whole and len(whole) > 1:
            parts.append(f"[all of {family}]({LAWS}#properties-{family})")
        else:
            parts += [f"[{name}]" for name in found]
    return f"{len(names)} properties: {', '.join(parts)}" if len(names) != 1 else f"1 property: {', '.join(parts)}"


def _property(p: Property, killed: list[str]) -> Iterator[str]:
    yield f'\n<a id="property-{p.name}"></a>\n\n### {p.name}\n\n'
    text = inspect.cleandoc(p.law.__doc__ or "").partition("\n")[2].strip()
    yield f"**{p.summary}**\n\n"
    if text:
        yield f"{text}\n\n"
    yield (
        f"Kills {len(killed)} fault{'' if len(killed) == 1 else 's'}: {_links(killed)}.\n"
        if killed
        else "Kills no fault of the catalog.\n"
    )


def _links(names: Iterable[str]) -> str:
    return ", ".join(f"[{name}]" for name in names)


def _about(family: str) -> str:
    return _first_line(importlib.import_module(f"faults.{family.replace(' ', '_')}"))


def _first_line(module: object) -> str:
    return f"{inspect.cleandoc(getattr(module, '__doc__', '') or '').partition(chr(10))[0]}\n"


def _line(text: str) -> str:
    return " ".join(text.split())


def _run(options: argparse.Namespace) -> int:
    for name, text in pages().items():
        if options.write:
            (DOCS / name).write_text(text, encoding="utf-8")
            print(f"{DOCS / name} written")
        else:
            print(text.rstrip())
    return 0
