"""Faults that no input tells apart: `python -m faults alike`, and `docs/alike.md`."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from attn import MultiHeadAttention
from faults.catalog import catalog
from faults.diagnosis.sights import CHANCE, Viewer, looks
from faults.fault import Fault, name_of, subject_of, summary_of
from faults.killers import names_of_killers
from faults.subject import DECLARED, clean_class, subject
from properties.case import Case, sample

PAGE = Path(__file__).parents[2] / "docs" / "alike.md"
COMMAND = "python -m faults alike --write"
DRAWN = 400  # cases, the same for all faults of a class of `attn`
COMPARED = 40  # of these, on which both faults show

Group = tuple[str, ...]  # names of faults


def groups(faults: Sequence[type[Fault]] | None = None) -> list[Group]:
    """The faults, of one class of `attn` each, that no drawn case tells apart, by any number or by any law."""
    by_class: dict[type[MultiHeadAttention], list[type[Fault]]] = defaultdict(list)
    for fault in catalog().values() if faults is None else faults:
        by_class[clean_class(fault)].append(fault)
    return [group for attention, members in by_class.items() for group in _groups(attention, members)]


def _groups(attention: type[MultiHeadAttention], faults: Sequence[type[Fault]]) -> Iterator[Group]:
    random, fields = Random(0), DECLARED[attention].fields()
    cases = [sample(random, fields) for _ in range(DRAWN)]
    patterns: dict[tuple[bool, ...], list[type[Fault]]] = defaultdict(list)
    for fault in faults:
        patterns[tuple(map(fault.visible, cases))].append(fault)
    clean = Viewer(subject(attention))
    for pattern, members in patterns.items():
        shown = list(itertools.islice(itertools.compress(cases, pattern), COMPARED))
        alike: list[list[type[Fault]]] = []
        for fault in members:
            home = next((group for group in alike if same(group[0], fault, shown, clean)), None)
            if home is None:
                alike.append([fault])
            else:
                home.append(fault)
        yield from (tuple(map(name_of, group)) for group in alike if len(group) > 1)


def same(one: type[Fault], other: type[Fault], cases: Sequence[Case], clean: Viewer) -> bool:
    """Are they the same on all of these cases, and do the same laws kill both?"""
    if names_of_killers(one) != names_of_killers(other):
        return False
    first, second = Viewer(subject_of(one)), Viewer(subject_of(other))
    dtype = clean.subject.dtype
    return all(
        first.see(look, case).same(second.see(look, case), clean.see(look, case), dtype)
        for case in cases
        for look in looks(clean.subject.supports, case)
        if look != CHANCE or case.dropout
    )


def page(found: Sequence[Group]) -> str:
    """The page, in Markdown."""
    parts = [_PAGE.format(command=COMMAND, faults=len(catalog()), drawn=DRAWN, compared=COMPARED, groups=len(found))]
    for group in found:
        parts.append("\n".join(f"- `{name}`: {summary_of(catalog()[name])}" for name in group))
    return "\n\n".join(parts) + "\n"


_PAGE = """\
# Faults that no input tells apart

Measured by `{command}`; do not edit. Two faults of the {faults} are alike if they show on the same of {drawn}
random cases, are killed by the same properties, and, on {compared} cases on which they show, give the same numbers
(output, weights, gradients, in training, in later calls, from a cache, in coarser dtypes), rounding aside, or raise on the same.
`python -m faults diagnose` has one answer for them. Faults of different classes of `attn` are not compared.

Of such groups there are {groups}."""
