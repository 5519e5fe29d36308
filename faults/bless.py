"""Write what is measured of a fault into its docstring, under the headings that are not written by hand."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from pathlib import Path

from faults.fault import MEASURED, Fault, FaultError
from faults.matrix import Row
from faults.severity import words
from faults.smallest import smallest
from properties.laws import PROPERTIES

_SYMPTOMS = {
    "silent": "Silent: nothing is raised, the result is wrong.",
    "loud": "Loud: it raises wherever it shows.",
    "either": "Either: on some cases it raises, on others the result is silently wrong.",
}


def measured_sections(fault: type[Fault], row: Row) -> dict[str, str]:
    """The text of each measured heading."""
    return {
        "Symptom": _SYMPTOMS[row.symptom],
        "Severity": words(row.severity) if row.severity else "",
        "Smallest case": repr(smallest(fault)),
        "Killed by": killers_text(row),
    }


def killers_text(row: Row) -> str:
    """The killers, a line for each family."""
    killers = {kill.property for kill in row.kills}
    lines = []
    for family, group in itertools.groupby(PROPERTIES, key=lambda property_: property_.family):
        names = [property_.name for property_ in group]
        killing = [name for name in names if name in killers]
        if killing:
            lines.append(f"{family}: {'all' if len(killing) == len(names) > 1 else ', '.join(killing)}")
    return "\n".join(lines)


def bless(fault: type[Fault], sections: Mapping[str, str]) -> bool:
    """Rewrite the measured part of the fault's docstring in its source file; return whether anything changed."""
    path = Path(inspect.getsourcefile(fault) or "")
    source = path.read_text(encoding="utf-8")
    start, end = _place(fault.__name__, source)
    opening = source.find('"""', start, end)
    closing = source.find('"""', opening + 3, end)
    if not fault.__doc__ or inspect.cleandoc(source[opening + 3 : closing]) != inspect.cleandoc(fault.__doc__):
        raise FaultError(f"{fault.__name__} in {path.name} needs a docstring between triple double quotes")
    before = source[opening:closing]
    written = before
    for heading in MEASURED:
        written = written.split(f"\n    {heading}:\n")[0]
    after = written.rstrip() + "\n" + "".join(_section(h, text) for h, text in sections.items()) + "    "
    path.write_text(source[:opening] + after + source[closing:], encoding="utf-8")
    return after != before


def _place(name: str, source: str) -> tuple[int, int]:
    """Where a class begins and ends in a source, which may have been rewritten since it was imported."""
    (found,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    lines = source.splitlines(keepends=True)
    start = sum(map(len, lines[: found.lineno - 1]))
    return start, start + sum(map(len, lines[found.lineno - 1 : found.end_lineno]))


def _section(heading: str, text: str) -> str:
    lines = [textwrap.fill(line, 122, subsequent_indent="    ", break_on_hyphens=False) for line in text.splitlines()]
    return f"\n    {heading}:\n" + textwrap.indent("\n".join(lines), "        ") + "\n"
