"""What mutmut left behind in `mutants/`: every mutant of `attn`, where it is, what it changes, and what became of it.

mutmut itself is not needed for that. It writes each mutant as a function of its own beside the original, in `mutants/attn/*.py`;
how the tests ended, in a `.meta` beside it; and which tests run which function, in `mutmut-stats.json`.
"""

from __future__ import annotations

import ast
import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What an exit code of pytest means (mutmut 3.8), in the words of the schema.
_BY_EXIT_CODE = {
    1: "Killed",
    3: "Killed",
    0: "Survived",
    5: "NoCoverage",
    33: "NoCoverage",
    34: "Ignored",
    36: "Timeout",
    -24: "Timeout",
    24: "Timeout",
    152: "Timeout",
    255: "Timeout",
    37: "CompileError",  # caught by the type checker
    None: "Pending",
}


class MutantsError(LookupError):
    """The directory is not what mutmut leaves behind of this `attn`."""


@dataclass(frozen=True)
class Mutant:
    """One of them."""

    name: str  # mutmut's own: attn.masks.x_causal_mask__mutmut_1
    file: str  # attn/masks.py
    function: str  # attn.masks.causal_mask
    first: int  # lines of the original that it replaces, counted from 1, both included
    last: int
    replacement: str  # the lines in their place, "" for none
    status: str  # of the schema
    reason: str  # why it is ignored
    tests: tuple[str, ...]  # that run the function, by their pytest ids


def read_mutants(directory: Path, sources: Mapping[str, str]) -> Iterator[Mutant]:
    """All mutants there; `sources` are the originals, by file, to which the lines refer."""
    stats = directory / "mutmut-stats.json"
    if not stats.exists():
        raise MutantsError(f"{directory} is not what mutmut leaves behind: there is no {stats.name} in it")
    tests: dict[str, list[str]] = json.loads(stats.read_text(encoding="utf-8"))["tests_by_mangled_function_name"]
    excused = _excused(directory.parent / "tests" / "mutation" / "equivalents.toml")
    for meta in sorted(directory.glob("attn/*.py.meta")):
        file = f"attn/{meta.name.removesuffix('.meta')}"
        if file not in sources:
            raise MutantsError(f"{directory} has mutants of {file}, which is not there any more: run the mutation tests again")
        yield from _of_file(meta.with_suffix(""), file, sources[file], json.loads(meta.read_text("utf-8")), tests, excused)


def _of_file(
    mutated: Path,
    file: str,
    source: str,
    meta: Mapping[str, Any],
    tests: Mapping[str, list[str]],
    excused: Mapping[tuple[str, str, str], str],
) -> Iterator[Mutant]:
    text = mutated.read_text(encoding="utf-8")
    variants, lines, original = _functions(text), text.splitlines(), source.splitlines()
    places = _functions(source)
    module = file.removesuffix(".py").replace("/", ".")
    for name, code in meta["exit_code_by_key"].items():
        mangled, _, number = name.rpartition("__mutmut_")
        local = mangled.removeprefix(f"{module}.")
        function = _plain(local)
        own = local if "ǁ" not in local else f"{function.rpartition('.')[0]}.{local}"
        begin, end = _span(variants, f"{own}__mutmut_orig", name)
        old = _body(lines[begin - 1 : end])
        start, stop = _span(places, function, name)
        if _body(original[start - 1 : stop]) != old:
            raise MutantsError(f"{name} is a mutant of another {file} than the one here: run the mutation tests again")
        begin, end = _span(variants, f"{own}__mutmut_{number}", name)
        new = _body(lines[begin - 1 : end])
        first, last, replacement = _change(old, new)
        said, instead = ("\n".join(line.strip() for line in changed) for changed in (old[first:last], replacement))
        status, reason = _BY_EXIT_CODE.get(code, "RuntimeError"), excused.get((f"{module}.{function}", said, instead), "")
        yield Mutant(
            name=name,
            file=file,
            function=f"{module}.{function}",
            first=start + first,
            last=start + last - 1,
            replacement="\n".join(replacement),
            status="Ignored" if status == "Survived" and reason else status,
            reason=reason,
            tests=tuple(sorted(tests.get(mangled, ()))),
        )


def _change(old: list[str], new: list[str]) -> tuple[int, int, list[str]]:
    """The lines of the old that are not in the new, as a slice of them, at least one; and what stands there in the new."""
    blocks = [block for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if block[0] != "equal"]
    first, last = blocks[0][1], blocks[-1][2]
    begin, end = blocks[0][3], blocks[-1][4]
    if first == last:  # lines were put in: there is one before them, the `def`
        first, begin = first - 1, begin - 1
    return first, last, new[begin:end]


def _functions(source: str) -> dict[str, tuple[int, int]]:
    """The lines of every function, and method as Class.name, from its `def` on."""
    found = {}
    for node in ast.parse(source).body:
        owners = [(f"{node.name}.", node.body)] if isinstance(node, ast.ClassDef) else [("", [node])]
        for owner, nodes in owners:
            for part in nodes:
                if isinstance(part, ast.FunctionDef):
                    found[owner + part.name] = (part.lineno, part.end_lineno or part.lineno)
    return found


def _span(functions: Mapping[str, tuple[int, int]], function: str, name: str) -> tuple[int, int]:
    if function not in functions:
        raise MutantsError(f"{name} is a mutant of a function that is not there: run the mutation tests again")
    return functions[function]


def _body(lines: list[str]) -> list[str]:
    """The lines of a function, without its name, which is another for each mutant."""
    head = lines[0]
    return [head[: head.index("def ")] + "def " + head[head.index("(") :], *lines[1:]]


def _plain(mangled: str) -> str:
    """xǁClassǁmethod is Class.method, and x_function is function."""
    return ".".join(mangled.split("ǁ")[1:]) if "ǁ" in mangled else mangled.removeprefix("x_")


def _excused(path: Path) -> dict[tuple[str, str, str], str]:
    """Why a mutant that survives is no mistake, by its function and its lines, old and new."""
    if not path.exists():
        return {}
    listed = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
    return {(entry["function"], entry["old"], entry["new"]): entry["because"] for entry in listed}
