"""`python -m faults new`: an entry of the catalog with all that can be known of it, and what is left to write marked as such."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import keyword
import re
import textwrap
from collections import Counter
from pathlib import Path

import faults
from attn import MultiHeadAttention
from faults.catalog import catalog
from faults.fault import ROOT_CAUSES, TO_DO, WRITTEN, FaultError, family_of, kebab, step_of
from faults.lessons.imports import merged, statement_for
from faults.lessons.source import function_lines
from faults.subject import DECLARED, clean_class

PACKAGE = Path(faults.__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_CLASSES = {attention.__name__: attention for attention in DECLARED}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    new = commands.add_parser(
        "new",
        help="begin a new fault: write a class to be filled in",
        description="Write the class of a new fault into the file of its family, with a copy of the clean step to be spoilt.",
    )
    new.add_argument("name", metavar="NAME", help="what is wrong, like wrong-merge-order")
    new.add_argument("--step", required=True, metavar="STEP", help="the step that it replaces, like merge_heads")
    new.add_argument("--family", metavar="FAMILY", help="the file it goes to, like heads (default: where its step is at home)")
    new.add_argument("--of", default="MultiHeadAttention", metavar="CLASS", help="the class of attn that has the step")
    new.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    path = scaffold(options.name, options.step, family=options.family, of=options.of)
    print(next_steps(options.name, path))
    return 0


def scaffold(name: str, step: str, *, family: str | None = None, of: str = "MultiHeadAttention", package: Path = PACKAGE) -> Path:
    """Append the class to the file of its family, which is made if it is new; return the file.

    Raises FaultError, before anything is written, for what cannot be.
    """
    class_name = _class_name(name)
    taken = _defined(package)
    if class_name in taken:
        raise FaultError(f"{class_name} exists already, in {taken[class_name]}: choose another name")
    attention = _attention(of)
    owner = _owner(attention, step)
    path = _file(_usual_family(attention, step) if family is None else family, package)
    before = path.read_text(encoding="utf-8") if path.exists() else f'"""{TO_DO}: what these faults are about."""\n'
    if class_name in _bound(before):
        raise FaultError(f"{path.name} has something else that is called {class_name}: choose another name, or --family")
    written = merged(before, _imports(attention, owner, step, before, path.name))
    entry = _entry(class_name, attention, owner, step)
    path.write_text(f"{written.rstrip()}\n\n\n{entry}", encoding="utf-8")
    return path


def next_steps(name: str, path: Path) -> str:
    """What is left to do."""
    lines = path.read_text(encoding="utf-8").splitlines()
    known = ", ".join(sorted(p.stem for p in path.parent.glob("*.py") if p != path and "Fault" in _bases(p)))
    new = (
        f"{path.parent.name}/{path.name} is a new family, its first line is to be written. If none was meant: there are {known}."
    )
    return "\n".join(
        [
            *([new] if lines[0].startswith(f'"""{TO_DO}') else []),
            f"{path.parent.name}/{path.name} has {_class_name(name)} now, with a copy of the clean step. It is yours:",
            "  1. Make the mistake, as somebody in good faith would, and say it in the first line of the docstring.",
            f"  2. Fill in what says {TO_DO}: the three headings, with the address of a report, and `root_cause`.",
            "  3. Write `visible(case)`, the exact condition under which it can show, in the words of faults/facts.py.",
            f"  4. Run `python -m faults bless {name}`. It says what does not fit, or measures the fault and writes that down.",
        ]
    )


def _class_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise FaultError(f"{name!r} is no name for a fault: small letters, words joined by '-', like wrong-merge-order")
    class_name = "".join(word[0].upper() + word[1:] for word in name.split("-"))
    if kebab(class_name) != name:  # a word of one letter, or one that begins with a digit
        raise FaultError(f"{name!r}: its class, {class_name}, would be listed as {kebab(class_name)!r}; write it so, or in words")
    if keyword.iskeyword(class_name):
        raise FaultError(f"{name!r}: Python has a word {class_name} already")
    return class_name


def _defined(package: Path) -> dict[str, str]:
    """Where each class of the package stands."""
    return {
        name: f"{package.name}/{path.relative_to(package)}"
        for path in sorted(package.rglob("*.py"))
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def _attention(name: str) -> type[MultiHeadAttention]:
    if name not in _CLASSES:
        raise FaultError(f"attn has no class {name!r} to spoil; it has {', '.join(reversed(_CLASSES))}")
    return _CLASSES[name]


def _owner(attention: type[MultiHeadAttention], step: str) -> type[MultiHeadAttention]:
    """The class that the step of this one is written in."""
    own = [c for c in attention.__mro__ if issubclass(c, MultiHeadAttention)]
    for owner in own:
        if inspect.isfunction(vars(owner).get(step)):
            return owner
    steps = dict.fromkeys(name for c in reversed(own) for name, member in vars(c).items() if inspect.isfunction(member))
    others = [c.__name__ for c in reversed(DECLARED) if inspect.isfunction(vars(c).get(step))]
    hint = f" ({', '.join(others)} {'has' if len(others) == 1 else 'have'} it: --of {others[0]})" if others else ""
    raise FaultError(f"{attention.__name__} has no step {step!r}{hint}; it has {', '.join(steps)}")


def _usual_family(attention: type[MultiHeadAttention], step: str) -> str:
    """The family with most faults of this step."""
    known = catalog().values()
    at_home = Counter(family_of(fault) for fault in known if clean_class(fault) is attention and step_of(fault) == step)
    if not at_home:
        raise FaultError(f"no fault replaces {step} of {attention.__name__} yet: say where this one goes, like --family heads")
    if len(at_home) > 1 and (step == "forward" or step.startswith("__")):  # can be spoilt in any way: most say nothing
        where = ", ".join(sorted(at_home))
        raise FaultError(
            f"{step} is at home in no family, its faults are in {where}: say where this one goes, like --family heads"
        )
    return min(at_home, key=lambda family: (-at_home[family], family))


def _file(family: str, package: Path) -> Path:
    """The file of the family, if it may be one."""
    module = family.replace("-", "_").replace(" ", "_")
    path = package / f"{module}.py"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        raise FaultError(f"{family!r} is no name for a family: small letters, words joined by '_', like empty_rows")
    if (package / module).is_dir():
        raise FaultError(f"{package.name}/{module}/ is machinery, no family: choose another name for it")
    bases = _bases(path) if path.exists() else {"Fault"}
    if "Fault" not in bases:
        what = "has what is no fault" if "Equivalent" in bases else "is machinery, no family"
        known = sorted(p.stem for p in package.glob("*.py") if "Fault" in _bases(p))
        raise FaultError(f"{package.name}/{module}.py {what}; there are {', '.join(known)}, or a new one")
    return path


def _bases(path: Path) -> set[str]:
    """What the classes in a file that stand in the catalog are made from: Fault, Equivalent."""
    classes = re.findall(r"^class [A-Z]\w*\((Fault|Equivalent)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    return set() if path.stem == "fault" else set(classes)


def _bound(source: str) -> set[str]:
    """The names that a module binds."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _imports(
    attention: type[MultiHeadAttention], owner: type[MultiHeadAttention], step: str, before: str, file: str
) -> list[str]:
    """The statements that bind what the entry uses."""
    wanted = {"Fault": "from faults.fault import Fault", "Case": "from properties.case import Case"}
    named = [attention] if attention is not MultiHeadAttention else []
    named += [owner] if any(f"super({owner.__name__}" in line for line in _copied(owner, step)) else []
    wanted |= {c.__name__: f"from attn import {c.__name__}" for c in named}
    module = inspect.getmodule(owner)
    source = inspect.getsource(module) if module else ""
    tree = ast.parse(textwrap.dedent("\n".join(_copied(owner, step))))
    for name in sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & _bound(source) - wanted.keys()):
        wanted[name] = statement_for(name, source, owner.__module__)
    bound = _bound(before)
    others = [n for n in sorted(wanted.keys() & bound) if _meant(statement_for(n, before, "")) is not _meant(wanted[n])]
    if others:
        raise FaultError(f"{file} means something else by {', '.join(others)} than the clean step does: choose another --family")
    return ["from __future__ import annotations", *(wanted[name] for name in sorted(wanted.keys() - bound))]


def _meant(statement: str) -> object:
    """What an import statement binds its name to; None for no statement: the name is not imported, but made there."""
    for node in ast.parse(statement).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            return getattr(importlib.import_module(node.module), node.names[0].name)
        if isinstance(node, ast.Import):
            return importlib.import_module(node.names[0].name)
    return None


def _copied(owner: type[MultiHeadAttention], step: str) -> list[str]:
    """The clean step as it stands, but for its docstring; and what it inherits it goes on to inherit from the same class."""
    lines = function_lines(getattr(owner, step), comments=True)
    return [line.replace("super()", f"super({owner.__name__}, self)") for line in lines]


def _entry(class_name: str, attention: type[MultiHeadAttention], owner: type[MultiHeadAttention], step: str) -> str:
    bases = "Fault" if attention is MultiHeadAttention else f"Fault, {attention.__name__}"
    headings = "\n".join(f"\n    {heading}:\n        {TO_DO}: {_ASKED[heading]}" for heading in WRITTEN)
    causes = "\n".join(f"    #   {category}: {', '.join(names)}" for category, names in ROOT_CAUSES.items())
    body = textwrap.indent("\n".join(_copied(owner, step)), "    ")
    return f'''\
class {class_name}({bases}):
    """{TO_DO}: what it does, in one sentence, on this line.
{headings}
    """

    # One of these, written "category: cause", and then without this comment:
{causes}
    root_cause = "{TO_DO}"

{body}

    @staticmethod
    def visible(case: Case) -> bool:
        raise NotImplementedError(
            "{class_name}.visible is not written: "
            "it is to be true for exactly those cases on which the fault can show, like `case.num_heads > 1 and chooses(case)`; "
            "faults/facts.py has the words for it"
        )
'''


_ASKED = {
    "Why it is wrong": "what happens to which numbers, and why nobody notices.",
    "When it shows": "in words what `visible` says.",
    "Seen in the wild": "the address of a report, one a line.",
}
