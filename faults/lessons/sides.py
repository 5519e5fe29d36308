"""The step of a fault and the clean one it replaces: side by side, and as a diff."""

from __future__ import annotations

import difflib
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator

from attn import MultiHeadAttention
from faults.fault import Equivalent, Fault, step_of
from faults.lessons.width import WIDTH
from faults.subject import clean_class

STILL_RUN = "super() is the clean step: it still runs, where it is called."
TWO_COLUMNS = 92  # in less they would be too narrow for code
CONTEXT = 2  # lines around what has changed


def diff(fault: type[Fault], context: int = 100) -> str:
    """The fault's step against the clean one, without their docstrings; whole, or with so many lines around a change."""
    lines = list(difflib.unified_diff(*sources(fault), n=context, lineterm=""))[2:]
    return "\n".join("@@" if line.startswith("@@") else line for line in lines[context >= len(sources(fault)[0]) :])


def side_by_side(fault: type[Fault], width: int = WIDTH) -> str:
    """What has changed, the clean step at the left, the fault at the right; as in `sdiff`, `|`, `<` and `>` mark a change.

    Where it is too narrow for that, the fault comes below, and the marks stand in front.
    """
    sides = ("clean", "another way" if issubclass(fault, Equivalent) else "broken")
    if width < TWO_COLUMNS:
        blocks = ["\n".join(_below(fault, side, title, width)) for side, title in enumerate(sides)]
        return "\n\n".join([*blocks, *([f"  {STILL_RUN}"] if _goes_on(fault) else [])])
    half = (width - 3) // 2
    lines = [
        _row(sides[0], " ", sides[1], half),
        _row("-" * half, " ", "-" * half, half),
    ]
    for left, mark, right in _rows(fault):
        columns = [_fold(text, half) for text in (left, right)]
        lines += [_row(*row, half) for row in _filled(columns[0], mark, columns[1])]
    if _goes_on(fault):
        lines += ["", STILL_RUN]
    return "\n".join(lines)


def _below(fault: type[Fault], side: int, title: str, width: int) -> Iterator[str]:
    """One of the two, with a mark in front of what is not in the other, or is something else there."""
    yield from (f"  {title}", f"  {'-' * len(title)}")
    goes_on = _goes_on(fault)
    for left, mark, right in _pairs(*sources(fault)):
        if mark != "><"[side]:
            shown = (" " if side == 0 else mark.replace("|", ">")) if goes_on else mark
            for number, line in enumerate(_fold((left, right)[side], width - 2)):
                yield f"{shown if number == 0 else ' '} {line}".rstrip()


def sources(fault: type[Fault]) -> tuple[list[str], list[str]]:
    """The lines of the clean step and of the broken one; what torch does where `attn` does nothing is left to torch."""
    step = step_of(fault)
    clean, broken = getattr(clean_class(fault), step), _source(getattr(fault, step))
    ours = clean.__module__.startswith(f"{MultiHeadAttention.__module__.partition('.')[0]}.")
    return (_source(clean) if ours else [broken[0], "    ...  # as torch does it"]), broken


def _goes_on(fault: type[Fault]) -> bool:
    """Does the broken step hand over to the clean one?"""
    return re.search(rf"super\([^)]*\)\.{step_of(fault)}\(", "\n".join(sources(fault)[1])) is not None


def _rows(fault: type[Fault]) -> Iterator[tuple[str, str, str]]:
    """The lines of both; if the broken step hands over to the clean one, nothing of that is gone, and no mark says so."""
    goes_on = _goes_on(fault)
    for left, mark, right in _pairs(*sources(fault)):
        yield left, {"<": " ", "|": ">"}.get(mark, mark) if goes_on else mark, right


def _pairs(clean: list[str], broken: list[str]) -> Iterator[tuple[str, str, str]]:
    """Lines that belong to each other, with a mark between them where they differ."""
    blocks = difflib.SequenceMatcher(None, clean, broken, autojunk=False).get_opcodes()
    for number, (tag, begin, end, first, last) in enumerate(blocks):
        if tag == "equal":
            lines = clean[begin:end]
            before = CONTEXT if number else 0  # behind the change before
            after = CONTEXT if number < len(blocks) - 1 else 0  # in front of the next
            if len(lines) > before + after + 1:
                lines = [*lines[:before], "..." if before or after else "", *lines[len(lines) - after :]]
                if number == 0:
                    lines = [clean[0], *lines[0 if len(clean[begin:end]) > after + 1 else 1 :]]
            yield from ((line, " ", line) for line in lines)
        else:
            for left, right in itertools.zip_longest(clean[begin:end], broken[first:last]):
                yield left or "", "|" if left is not None and right is not None else "<" if right is None else ">", right or ""


def _fold(line: str, width: int) -> list[str]:
    """A line of code in lines of at most this width; a comment that does not fit goes below what it is about."""
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    code, mark, comment = line.partition("  # ")
    folded = [code]
    if len(code) > width:
        folded = textwrap.wrap(code, width, subsequent_indent=indent + "    ", break_on_hyphens=False, drop_whitespace=True)
    if mark:
        folded += textwrap.wrap(
            comment, width, initial_indent=indent + "# ", subsequent_indent=indent + "# ", break_on_hyphens=False
        )
    return folded


def _filled(left: list[str], mark: str, right: list[str]) -> Iterator[tuple[str, str, str]]:
    for number, (a, b) in enumerate(itertools.zip_longest(left, right, fillvalue="")):
        yield a, mark if number == 0 else " ", b


def _row(left: str, mark: str, right: str, half: int) -> str:
    return f"{left:<{half}} {mark} {right}".rstrip()


def _source(step: Callable[..., object]) -> list[str]:
    lines = [re.sub(r"  # type: ignore.*$", "", line) for line in textwrap.dedent(inspect.getsource(step)).splitlines()]
    if step.__doc__:
        first, last = (i for i, line in enumerate(lines) for _ in range(line.count('"""')))
        del lines[first : last + 1]
    return lines
