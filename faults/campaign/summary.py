"""What a campaign of faults has found so far, from its file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from faults.campaign.plan import KIND
from faults.campaign.race import SEEDS
from faults.campaign.survival import Curve, complete, of_all, percentile
from faults.coverage import smallest_set
from properties.campaign.store import Store
from properties.campaign.told import columns, count, duration
from properties.laws import PROPERTIES

# Killed mutants in 40 Python projects by the number of inputs that their property tests were given: published for such tests in
# general, and here for comparison. An empirical evaluation of property-based testing in Python, OOPSLA 2025.
PUBLISHED = {1: 0.55, 20: 0.76, 100: 0.86, 350: 0.96}
LONGEST = 15  # faults that are named


@dataclass
class Summary:
    """All of it."""

    file: Path
    about: dict[str, str]
    units: int
    cases: int
    seconds: float
    rounds: dict[str, dict[int, int | None]]  # of each fault and seed: the number of cases of the first kill
    killers: dict[str, dict[int, list[str]]]  # and the properties that were seen to kill there

    @classmethod
    def of(cls, file: str | Path) -> Summary:
        """Read it; the run may be going on."""
        with Store.read(Path(file), KIND) as store:
            made = cls(Path(file), store.about, 0, 0, 0.0, {}, {})
            for unit, result, seconds in store.results():
                made.units, made.cases, made.seconds = made.units + 1, made.cases + result["cases"], made.seconds + seconds
                for seed, (number, killers) in enumerate(result["seeds"], unit.block * SEEDS):
                    made.rounds.setdefault(unit.subject, {})[seed] = number
                    made.killers.setdefault(unit.subject, {})[seed] = killers
        return made

    @property
    def within(self) -> int:
        """Cases of each property that were tried at most."""
        return int(self.about["within"])

    @property
    def survivors(self) -> dict[str, int]:
        """The faults that were not killed on some seeds, and on how many."""
        counted = {name: sum(number is None for number in of.values()) for name, of in self.rounds.items()}
        return {name: number for name, number in counted.items() if number}

    @cached_property
    def shared(self) -> dict[str, list[int | None]]:
        """The first kills on those seeds that all faults were tried on."""
        return complete(self.rounds)

    @cached_property
    def curve(self) -> Curve | None:
        """Of all faults together; None if there is no seed that all were tried on."""
        return of_all(list(self.shared.values()), self.within) if any(self.shared.values()) else None

    def of_fault(self, name: str) -> dict[str, Any]:
        """The numbers of one fault."""
        numbers = list(self.rounds[name].values())
        last = percentile(numbers, 1.0)
        return {
            "seeds": len(numbers),
            "survived": sum(number is None for number in numbers),
            "median": percentile(numbers, 0.5),
            "95%": percentile(numbers, 0.95),
            "most": last,
        }

    def histogram(self, name: str) -> dict[str, int]:
        """On how many seeds a fault was first killed by so many cases; "": on none of those that were tried."""
        counted = Counter(self.rounds[name].values())
        return {str(number or ""): counted[number] for number in sorted(counted, key=lambda number: number or self.within + 1)}

    @property
    def whole_rounds(self) -> bool:
        """Are all the killers of each first kill known, and not only one?"""
        return self.about["whole rounds"] == "True"

    @cached_property
    def needed(self) -> list[str]:
        """As few properties as possible that kill every fault as soon as all of them do, on every seed."""
        killers = {f"{name} {seed}": names for name, of in self.killers.items() for seed, names in of.items() if names}
        return smallest_set(killers, [law.name for law in PROPERTIES])

    @cached_property
    def alone(self) -> Counter[str]:
        """On how many faults and seeds a property kills before any other does: without it, the kill would come later."""
        return Counter(names[0] for of in self.killers.values() for names in of.values() if len(names) == 1)

    def longest(self, number: int) -> list[str]:
        """So many faults, those that take longest first: by the 95th percentile, and of equals by the mean."""

        def length(name: str) -> tuple[float, float]:
            numbers = [self.within + 1 if n is None else n for n in self.rounds[name].values()]
            return percentile(numbers, 0.95) or 0, sum(numbers) / len(numbers)

        return sorted(self.rounds, key=length, reverse=True)[:number]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        curve = self.curve
        redundant = {"needed": self.needed, "alone": dict(self.alone.most_common())} if self.whole_rounds else {}
        return {
            "file": str(self.file),
            **self.about,
            "units": self.units,
            "cases": self.cases,
            "seconds": self.seconds,
            "curve": curve and {"share": curve.share, "low": curve.low, "high": curve.high},
            "faults": {name: {**self.of_fault(name), "first kills": self.histogram(name)} for name in self.rounds},
            **redundant,
        }

    def __str__(self) -> str:
        return "\n\n".join(part for part in ("\n".join(lines) for lines in self._parts()) if part)

    def _parts(self) -> Iterable[list[str]]:
        tried = sorted({len(of) for of in self.rounds.values()}) or [0]
        yield [
            f"{self.file}: {count(len(self.rounds), 'fault')} on {' to '.join(map(str, dict.fromkeys((tried[0], tried[-1]))))} "
            f"seeds; {self.cases:,} cases in {count(self.units, 'unit')}, {duration(self.seconds)} of work",
            *([] if self.rounds else ["nothing was tried yet"]),
            *(f"{name} was not killed within {self.within} on {count(n, 'seed')}" for name, n in self.survivors.items()),
        ]
        if self.curve:
            seeds = len(next(iter(self.shared.values())))
            yield [
                f"killed, by cases of each property, on the {count(seeds, 'seed')} that all faults were tried on",
                *self._killed(self.curve),
                "  the band: of these faults on other seeds. published: mutants of 40 Python projects, by inputs of their own",
                "  property tests. There an input is one of one test; here a case is one of every property.",
            ]
        elif self.rounds:
            yield ["no curve: there is no seed yet that all faults were tried on"]
        if self.rounds:
            yield [
                "cases of each property to the first kill" + (", those that take longest" if len(self.rounds) > LONGEST else ""),
                *columns([("", "median", "95 %", "most"), *(self._row(name) for name in self.longest(LONGEST))]),
            ]
        if self.rounds and self.whole_rounds:
            names = [law.name for law in PROPERTIES]
            never = [name for name in names if not self.alone[name]]
            yield [
                f"{count(len(self.needed), 'property').replace('propertys', 'properties')} of {len(names)} suffice to kill each "
                "fault on each seed as soon as all do:",
                *columns((name, f"alone first {self.alone[name]:,} times") for name in self.needed),
            ]
            yield [f"never alone first, {len(never)} properties: {', '.join(never)}"]

    def _killed(self, curve: Curve) -> list[str]:
        rows = [("cases", "killed", "95 % band", "published")]
        for cases in sorted({1, 2, 3, 5, 10, *PUBLISHED, self.within}):
            if cases <= self.within:
                share, low, high = curve.killed(cases)
                published = f"{PUBLISHED[cases]:.0%}" if cases in PUBLISHED else ""
                rows.append((str(cases), f"{share:.2%}", f"{low:.2%} to {high:.2%}", published))
        return columns(rows)

    def _row(self, name: str) -> tuple[str, ...]:
        numbers = self.of_fault(name)
        return (name, *(str(numbers[key] or f"over {self.within}") for key in ("median", "95%", "most")))
