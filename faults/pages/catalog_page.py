"""The catalog as a page, `docs/catalog.md`: one section a fault, one a property, linked both ways.

Everything on it stands in the docstrings; nothing is run.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from faults.catalog import catalog, equivalents
from faults.fault import Equivalent, Fault, family_of, name_of, sections_of, step_of, summary_of
from faults.killers import known_killers
from faults.lessons.sides import diff
from faults.subject import clean_class
from properties.laws import PROPERTIES
from properties.property import Property

PAGE = Path(__file__).parents[2] / "docs" / "catalog.md"
COMMAND = "python -m faults catalog --write"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`python -m faults catalog`."""
    command = commands.add_parser("catalog", help="the catalog as a page: every fault, every property, linked both ways")
    command.add_argument("--write", action="store_true", help="write docs/catalog.md")
    command.set_defaults(run=_run)


def stale(path: Path = PAGE) -> str | None:
    """Say how to mend the page if it does not say what the docstrings say; None if it does, or this is no clone."""
    if not path.parent.is_dir() or (path.exists() and path.read_text(encoding="utf-8") == page()):
        return None
    return f"{path.parent.name}/{path.name} is not what the docstrings say now: run `{COMMAND}`"


def page() -> str:
    """The page, in Markdown that can be read as it is."""
    faults, right = list(catalog().values()), list(equivalents().values())
    kills = {name_of(fault): [p.name for p in known_killers(fault)] for fault in faults}
    killed: dict[str, list[str]] = {p.name: [name for name, by in kills.items() if p.name in by] for p in PROPERTIES}
    parts = [
        _HEAD.format(command=COMMAND, faults=len(faults), equivalents=len(right), properties=len(PROPERTIES)),
        *_contents(faults, right),
    ]
    for family, group in itertools.groupby([*faults, *right], key=family_of):
        parts += [f"## {family.capitalize()}\n", _about(family)]
        parts += ["".join(_fault(fault, kills)) for fault in group]
    for family, laws in itertools.groupby(PROPERTIES, key=lambda p: p.family):
        parts += [
            f'<a id="properties-{family}"></a>\n\n## Properties: {family}\n',
            _first_line(importlib.import_module(f"properties.laws.{family}")),
        ]
        parts += ["".join(_property(p, killed[p.name])) for p in laws]
    definitions = [f"[{name}]: #fault-{name}" for name in (*catalog(), *equivalents())]
    definitions += [f"[{p.name}]: #property-{p.name}" for p in PROPERTIES]
    return "\n".join([*parts, *definitions, ""])


_HEAD = """\
# The catalog

Made by `{command}` from the docstrings; do not edit. {faults} faults, {equivalents} variants that look wrong and are right, and
{properties} properties. How a section is to be read: [reading-a-kill.md](reading-a-kill.md).

## Contents
"""


def _contents(faults: list[type[Fault]], right: list[type[Fault]]) -> Iterator[str]:
    for family, group in itertools.groupby([*faults, *right], key=family_of):
        yield f"- **{family}**: {_links(name_of(fault) for fault in group)}"
    for family, laws in itertools.groupby(PROPERTIES, key=lambda p: p.family):
        yield f"- properties, **{family}**: {_links(p.name for p in laws)}"
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
    yield f"```diff\n{diff(fault, 3)}\n```\n\n"
    if name in kills:
        yield f"Killed by {_killed_by(kills[name])}.\n\n"
    yield f"Seen in the wild: {', '.join(f'<{address}>' for address in sections['Seen in the wild'].split())}\n"


def _killed_by(names: list[str]) -> str:
    """Links, and of families that kill as a whole the family's."""
    parts = []
    for family, laws in itertools.groupby(PROPERTIES, key=lambda p: p.family):
        whole = [p.name for p in laws]
        found = [name for name in whole if name in names]
        parts += (
            [f"[all of {family}](#properties-{family})"] if found == whole and len(whole) > 1 else [f"[{name}]" for name in found]
        )
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
    if options.write:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"{PAGE} written")
    else:
        print(page().rstrip())
    return 0
