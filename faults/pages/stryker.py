"""The catalog, and mutmut's mutants of `attn`, in the mutation testing report schema that Stryker's viewers and dashboards read.

https://github.com/stryker-mutator/mutation-testing-elements/tree/master/packages/report-schema, version 2. A fault is a mutant of
the clean step that it replaces, a property is a test, and so is a pytest of mutmut's. What is equivalent is "Ignored", with the
reason: a score does not count it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import attn
from faults.catalog import equivalents, find
from faults.fault import Fault, family_of, sections_of, step_of, subject_of, summary_of
from faults.kills import quick
from faults.matrix import Row
from faults.pages.mutants import Mutant, read_mutants
from faults.subject import clean_class
from properties.laws import PROPERTIES
from properties.property import Property

VERSION = "2"
_ALL = 100  # percent: one survivor is one too many


def report(rows: Sequence[Row], mutants: Path | None = None) -> dict[str, Any]:
    """The report, of measured rows, and of the directory that mutmut left behind."""
    sources = attn_sources()
    found = [] if mutants is None else list(read_mutants(mutants, sources))
    files = {name: {"language": "python", "source": source, "mutants": []} for name, source in sources.items()}
    for row in rows:
        if row.symptom != "correct" or row.name in equivalents():
            fault = find(row.name)
            file, entry = _of_fault(fault, row)
            files[file]["mutants"].append(entry)  # type: ignore[attr-defined]
    tests, numbers = _pytests(found, mutants)
    for mutant in found:
        files[mutant.file]["mutants"].append(_of_mutmut(mutant, sources[mutant.file], numbers))  # type: ignore[attr-defined]
    return {
        "schemaVersion": VERSION,
        "thresholds": {"high": _ALL, "low": _ALL},
        "files": {name: file for name, file in files.items() if file["mutants"]},
        "testFiles": {**_properties(), **tests},
        "framework": {
            "name": "attention-faults",
            "version": _version("attention-faults"),
            "dependencies": {name: _version(name) for name in ("torch", "hypothesis")},
        },
    }


def attn_sources() -> dict[str, str]:
    """The source of every module of `attn`, by the path that it has in the repository."""
    return {f"attn/{path.name}": path.read_text(encoding="utf-8") for path in sorted(Path(attn.__path__[0]).glob("*.py"))}


def _of_fault(fault: type[Fault], row: Row) -> tuple[str, dict[str, Any]]:
    """Its file, and the mutant."""
    clean = clean_class(fault)
    step = inspect.unwrap(getattr(clean, step_of(fault)))
    replacement = "".join(inspect.getsourcelines(vars(fault)[step_of(fault)])[0])
    if step.__module__.partition(".")[0] == attn.__name__:
        file, (lines, first) = _file(step), inspect.getsourcelines(step)
    else:  # what the clean class has from torch, and the fault a version of its own of: it is put in
        file, (lines, first) = _file(clean), inspect.getsourcelines(clean)
        lines = lines[:1]
        replacement = f"{lines[0]}{replacement}"
    entry: dict[str, Any] = {
        "id": row.name,
        "mutatorName": family_of(fault),
        "description": f"{row.name}: {summary_of(fault)}",  # of the id a viewer shows nothing
        "replacement": replacement.strip(),
        "location": _location(lines, first),
        "status": "Survived" if row.survived else "Killed",
        "coveredBy": [property_.name for property_ in _asked(fault)],
        "killedBy": [kill.property for kill in row.kills],
    }
    if row.symptom == "correct" and not row.kills:
        entry |= {"status": "Ignored", "statusReason": sections_of(fault).get("Why it is right", summary_of(fault))}
    if row.kills:
        entry["statusReason"] = f"{row.kills[0].property}, on {row.kills[0].case!r}: {row.kills[0].evidence}"
    return file, entry


def _asked(fault: type[Fault]) -> list[Property]:
    """The properties that a glance asks: those that apply, and are quick or known to kill."""
    return [property_ for property_ in quick(fault) if property_.not_applicable(subject_of(fault)) is None]


def _of_mutmut(mutant: Mutant, source: str, numbers: dict[str, str]) -> dict[str, Any]:
    lines = source.splitlines(keepends=True)[mutant.first - 1 : mutant.last]
    entry = {
        "id": mutant.name,
        "mutatorName": "mutmut",
        "description": f"in {mutant.function}",
        "replacement": mutant.replacement.strip(),
        "location": _location(lines, mutant.first),
        "status": mutant.status,
        "coveredBy": [numbers[test] for test in mutant.tests],
    }
    return {**entry, "statusReason": mutant.reason} if mutant.status == "Ignored" and mutant.reason else entry


def _location(lines: Sequence[str], first: int) -> dict[str, Any]:
    """From the first character that is no space to the end of the last line; lines and columns count from 1."""
    return {
        "start": {"line": first, "column": len(lines[0]) - len(lines[0].lstrip()) + 1},
        "end": {"line": first + len(lines) - 1, "column": len(lines[-1].rstrip()) + 1},
    }


def _file(thing: Any) -> str:
    return f"{thing.__module__.replace('.', '/')}.py"


def _properties() -> dict[str, Any]:
    """The properties as tests, in the files of their families."""
    files: dict[str, Any] = {}
    for property_ in PROPERTIES:
        module = sys.modules[property_.law.__module__]
        file = files.setdefault(_file(property_.law), {"source": inspect.getsource(module), "tests": []})
        line = inspect.getsourcelines(property_.law)[1]
        start = {"start": {"line": line, "column": 1}}
        file["tests"].append({"id": property_.name, "name": property_.name.replace("_", " "), "location": start})
    return files


def _pytests(found: Iterable[Mutant], mutants: Path | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The tests that run mutants, by file, and the number of each: there are too many of them to be named by every mutant."""
    names = sorted({test for mutant in found for test in mutant.tests})
    numbers = {name: f"t{number}" for number, name in enumerate(names)}
    files: dict[str, Any] = {}
    lines: dict[str, dict[str, int]] = {}
    for name, number in numbers.items():
        path, _, test = name.partition("::")
        if path not in files:
            source = "" if mutants is None else _text(mutants / path)
            lines[path] = {node.name: node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
            files[path] = {"source": source, "tests": []}
        entry: dict[str, Any] = {"id": number, "name": test}
        if (line := lines[path].get(test.partition("[")[0])) is not None:
            entry["location"] = {"start": {"line": line, "column": 1}}
        files[path]["tests"].append(entry)
    return files, numbers


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from a clone that is not installed
        return "0"
