"""Which faults compute the same numbers as a subject, on the cases on which it is wrong."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from attn import MultiHeadAttention
from faults.diagnosis.candidates import Candidate, pair, singles, viewer
from faults.diagnosis.domain import Fields, comparable, inside, shared_fields
from faults.diagnosis.sights import CHANCE, Viewer, looks
from faults.fault import sections_of
from faults.looks import PASSED_IN
from faults.subject import DECLARED
from properties.case import Case, sample
from properties.loading import read_case
from properties.subject import Subject
from properties.time_limit import Patience

Place = tuple[str, Case]  # a look, and the case on which it is taken

_RANDOM = 24  # cases besides those on which something failed, and the smallest ones of all faults
_TINY = 6  # with dropout, small enough to see all that it may give
_GLANCE = 12  # places at which every candidate is tried; those that fit at none are not tried further
_PAIRED = 30  # places at which it is found out which two could go together
_PAIRS = 300  # pairs that are tried at most
_FITTING = 8  # that fit; then no more are looked for
_RIGHT = 40  # of the places where the subject is right, so many are asked of a candidate
_APART = 200  # cases drawn to tell candidates apart that were the same so far


@dataclass(frozen=True, eq=False)
class Match:
    """How the numbers of a candidate compare with those of the subject."""

    candidate: Candidate
    same: int  # places where the subject is wrong, and the candidate by the same numbers, or neither returns any
    returned: int  # those of them at which both return
    other: int  # places where the subject is wrong, and the candidate is right, or wrong by other numbers
    one: int  # places where only one of the two returns anything that can be compared
    apart: int  # places where the subject is right, and the candidate is not
    looks: tuple[str, ...]  # what was wrong, and the same
    twins: tuple[Candidate, ...] = ()  # others that were the same wherever they were looked at

    @property
    def identical(self) -> bool:
        """Does it compute the same wherever both return, and do both return more often than one alone?"""
        return not self.other and not self.apart and self.same > self.one

    @property
    def share(self) -> float:
        """Of the places where either is wrong, those where both are, by the same numbers."""
        return self.returned / max(self.same + self.other + self.one + self.apart, 1)


class Comparison:
    """A subject beside a class of `attn` that it should be like, and beside every fault that can be made in that class."""

    def __init__(self, subject_: Subject, attention: type[MultiHeadAttention], met: Iterable[Case], patience: Patience) -> None:
        """`met` are cases on which a law failed."""
        self.subject = subject_
        self.candidates = singles(attention, subject_)
        self.fields: Fields = shared_fields(subject_.supports, DECLARED[attention]) or {}
        self._theirs, self._clean = Viewer(subject_, patience), viewer(attention, subject_.supports)
        caches = subject_.supports.cache and DECLARED[attention].cache
        self._declared = replace(subject_.supports, cache=caches, reorders=caches, static_cache=False)
        places = [(look, case) for case in self._cases(met) for look in looks(self._declared, case)]
        self.wrong = [place for place in places if self._same(self._theirs, self._clean, place) is not True]
        wrong = set(self.wrong)
        self.right = [place for place in places if place not in wrong]

    def matches(self) -> list[Match]:
        """The candidates that are wrong by the same numbers somewhere, the likeliest first."""
        glance = _spread(self.wrong, _GLANCE)
        found = [self.match(c) for c in self.candidates if any(self._explains(c, place) for place in glance)]
        if not any(match.identical for match in found) and self.wrong:
            found += itertools.islice((m for m in map(self.match, self._pairs()) if m.identical), _FITTING)
        identical = [match for match in found if match.identical]
        others = [match for match in found if not match.identical]
        return [*self._told_apart(identical), *sorted(others, key=lambda match: -match.share)]

    def match(self, candidate: Candidate) -> Match:
        """Compare at every place where the subject is wrong, and at some where it is right."""
        verdicts = {place: self._explains(candidate, place) for place in self.wrong}
        asked = [place for place in self.right if place[0] not in (CHANCE, PASSED_IN) and candidate.visible(place[1])]
        beside = [self._same(candidate.viewer, self._clean, place) for place in _spread(asked, _RIGHT)]
        counts, alike = Counter(verdicts.values()), [place for place, same in verdicts.items() if same]
        return Match(
            candidate,
            same=len(alike),
            returned=sum(self._theirs.see(*place).usable(self._clean.see(*place)) for place in alike),
            other=counts[False],
            one=counts[None] + beside.count(None),
            apart=beside.count(False),
            looks=tuple(dict.fromkeys(look for look, _ in alike)),
        )

    def _cases(self, met: Iterable[Case]) -> list[Case]:
        random = Random(0)
        drawn = [sample(random, self.fields) for _ in range(_RANDOM)]
        plain = [replace(case, dropout=0.0) for case in (*met, *drawn)]
        documented = [sections_of(candidate.faults[0]).get("Smallest case") for candidate in self.candidates]
        smallest = [read_case(text) for text in documented if text]  # a new entry may have none yet
        cases = dict.fromkeys([*met, *smallest, *drawn, *plain, *self._dropping(random)])
        return [case for case in cases if inside(case, self.fields) and comparable(case, self.subject.supports)]

    def _dropping(self, random: Random) -> list[Case]:
        """Cases with dropout that are small enough to see all that it may give."""
        wanted = {"batch": (1, 2), "queries": (1, 2), "keys": (None, 1, 2), "num_heads": (1, 2), "dropout": (0.25, 0.5)}
        few = {name: [v for v in values if v in self.fields.get(name, values)] for name, values in wanted.items()}
        if not all(few.values()) or None not in self.fields.get("num_kv_heads", (None,)):
            return []
        small = (sample(random, {**self.fields, **few, "num_kv_heads": (None,)}) for _ in range(200))
        return list(itertools.islice((case for case in small if CHANCE in looks(self._declared, case)), _TINY))

    def _same(self, one: Viewer, other: Viewer, place: Place) -> bool | None:
        return one.see(*place).same(other.see(*place), self._clean.see(*place), self.subject.dtype)

    def _explains(self, candidate: Candidate, place: Place) -> bool | None:
        return candidate.visible(place[1]) and self._same(self._theirs, candidate.viewer, place)

    def _pairs(self) -> Iterator[Candidate]:
        """Two together, of which each alone gives the numbers of the subject wherever the other cannot show."""
        places = set(_spread(self.wrong, _PAIRED))
        shows = [{place for place in places if c.visible(place[1])} for c in self.candidates]
        alone = [{place for place in shown if self._explains(c, place)} for c, shown in zip(self.candidates, shows, strict=True)]
        likely = []
        for one, other in itertools.combinations(range(len(self.candidates)), 2):
            both = shows[one] & shows[other]
            if shows[one] | shows[other] == places and shows[one] - both <= alone[one] and shows[other] - both <= alone[other]:
                likely.append((len(alone[one] | alone[other]), one, other))
        likely.sort(key=lambda pair: (-pair[0], pair[1:]))
        for _, one, other in likely[:_PAIRS]:
            made = pair(self.candidates[one], self.candidates[other], self.subject)
            if made is not None and all(self._explains(made, place) is not False for place in _spread(self.wrong, _PAIRED)):
                yield made

    def _told_apart(self, identical: Sequence[Match]) -> list[Match]:
        """Ask the subject on cases on which these differ from each other; those that are left are twins."""
        fewest = min((match.one for match in identical), default=0)
        left, out = ([m for m in identical if (m.one == fewest) is best] for best in (True, False))
        out.sort(key=lambda match: match.one)
        random = Random(1)
        for _ in range(_APART):
            if len(left) < 2:
                break
            case = sample(random, self.fields)
            if not comparable(case, self.subject.supports):
                continue
            for place in [(look, case) for look in looks(self._declared, case)]:
                viewers = [match.candidate.viewer for match in left]
                if all(self._same(viewers[0], viewer, place) is not False for viewer in viewers[1:]):
                    continue
                fitting = [self._same(self._theirs, viewer, place) is not False for viewer in viewers]
                out += [replace(m, apart=m.apart + 1) for m, fits in zip(left, fitting, strict=True) if not fits]
                left = [match for match, fits in zip(left, fitting, strict=True) if fits]
        if not left:
            return out
        return [replace(left[0], twins=tuple(match.candidate for match in left[1:])), *out]


def _spread(places: Sequence[Place], number: int) -> list[Place]:
    """So many of them, from all over."""
    return [places[i * len(places) // number] for i in range(number)] if len(places) > number else list(places)
