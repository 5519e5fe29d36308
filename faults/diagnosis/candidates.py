"""What the mistake could be: faults of the catalog, and two of them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from attn import MultiHeadAttention
from faults.catalog import catalog
from faults.diagnosis.sights import Viewer
from faults.fault import Fault, family_of, name_of, step_of, subject_of
from faults.subject import clean_class, subject
from properties.case import Case
from properties.subject import Subject
from properties.supports import Supports
from properties.unseen import Mistakes, known_mistakes


@dataclass(frozen=True, eq=False)
class Candidate:
    """One fault, or two made together, in the class of `attn` that the subject is compared with."""

    faults: tuple[type[Fault], ...]
    attention: type[MultiHeadAttention]
    viewer: Viewer
    visible: Callable[[Case], bool]  # False only where it cannot show

    @property
    def name(self) -> str:
        return " and ".join(name_of(fault) for fault in self.faults)


def singles(attention: type[MultiHeadAttention], subject_: Subject) -> list[Candidate]:
    """The faults that can be made in this class, in what the subject declares.

    A fault of a plainer class is made in this one, unless this one does that step otherwise.
    """
    found = []
    impossible = known_mistakes() - set(Mistakes.of(subject_, ()).possible)
    for fault in catalog().values():
        if name_of(fault) in impossible or (family_of(fault) == "dropout" and not subject_.supports.dropout):
            continue
        own = clean_class(fault)
        if own is attention:
            found.append(Candidate((fault,), fault, viewer(fault, subject_.supports), fault.visible))
        elif issubclass(attention, own) and getattr(attention, step_of(fault)) is getattr(own, step_of(fault)):
            made = _together(fault, attention)
            found.append(Candidate((fault,), made, viewer(made, subject_.supports), lambda case: True))
    return found


def pair(first: Candidate, second: Candidate, subject_: Subject) -> Candidate | None:
    """Both mistakes in one; None if they are made in the same step, or do not fit."""
    if {step_of(fault) for fault in first.faults} & {step_of(fault) for fault in second.faults}:
        return None
    made = _together(first.attention, second.attention)
    return Candidate(
        (*first.faults, *second.faults),
        made,
        viewer(made, subject_.supports),
        lambda case: first.visible(case) or second.visible(case),
    )


def viewer(attention: type[MultiHeadAttention], theirs: Supports) -> Viewer:
    """What looks at a class of `attn`, or at one made from it, as if it declared no more of dtypes and weights than another."""
    alike: dict[str, Any] = {name: getattr(theirs, name) for name in ("dtypes", "floors", "weights", "training_weights")}
    key = (attention, repr(alike))
    if key not in _VIEWERS:
        ours = subject_of(attention) if issubclass(attention, Fault) else subject(attention)
        _VIEWERS[key] = Viewer(replace(ours, supports=replace(ours.supports, **alike)))
    return _VIEWERS[key]


_VIEWERS: dict[tuple[type, str], Viewer] = {}  # what was seen for one subject serves for the next


def _together(first: type[MultiHeadAttention], second: type[MultiHeadAttention]) -> type[MultiHeadAttention]:
    name = f"{first.__name__}And{second.__name__}"
    if name not in globals():  # where what is pickled is looked for
        globals()[name] = type(name, (first, second), {"__module__": __name__})
    return globals()[name]  # type: ignore[no-any-return]
