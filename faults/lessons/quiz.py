"""`python -m faults quiz`: a broken step without its name, and the laws that it breaks; which mistake is it?

The laws come from the vague to the telling. The first says little more than that the numbers are wrong; each further one fails
on fewer of the mistakes to choose from, so that it always rules something out, and there is something to be had from thinking
before asking for the next.
"""

from __future__ import annotations

import argparse
import functools
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random, SystemRandom

from faults.catalog import catalog, find
from faults.elsewhere import alike, differences
from faults.fault import Fault, FaultError, family_of, name_of, sections_of, step_of, subject_of, summary_of
from faults.killers import SAY_LITTLE, known_killers, names_of_killers
from faults.lessons.sides import diff
from faults.lessons.source import clean_step, disguised
from faults.lessons.width import width
from faults.subject import clean_class, subject
from properties.case import sample
from properties.laws import PROPERTIES
from properties.property import Property
from properties.runner import falsify

CHOICES = 5
POINTS = 3  # for a name at once; each further law, look at the clean step, or wrong name takes one
LAWS = 3  # that are told in any case, if there are so many
EXAMPLES = 100  # cases in which a counterexample is searched
DRAWN = 200  # cases on which two mistakes that are one are visible alike, ...
TOLD_APART = 6  # ... and so many, on which both are, on which they do the same
# That the numbers are not those of the formula can be said of most; that what follows from them is wrong, of most, too.
_KEYS = "a number or a name; h: another law that it breaks; c: the clean step; s: show me; q: enough"

Ask = Callable[[str], str]
Say = Callable[[str], None]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    quiz_ = commands.add_parser(
        "quiz",
        help="name the mistake: a broken step, and one after another the laws that it breaks",
        description="Shows a broken step and a law that it breaks, with a counterexample; you say which mistake it is. "
        "`h` for another law that it breaks, `c` for the clean step, `s` to be told, `q` to end.",
    )
    quiz_.add_argument("--rounds", type=int, default=3, metavar="N", help="how many mistakes (default: 3)")
    quiz_.add_argument("--seed", default=None, type=int, metavar="K", help="the same quiz again; each one says its own")
    quiz_.add_argument("--family", metavar="FAMILY", help="only mistakes of this family, like 'rotary'")
    quiz_.add_argument("--name", action="append", default=[], metavar="NAME", help="this mistake (may be given several times)")
    quiz_.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    seed = SystemRandom().randrange(10_000) if options.seed is None else options.seed
    pool = chosen(options.name, options.family)
    quiz(pool, rounds=len(pool) if options.name else options.rounds, seed=seed)
    return 0


def chosen(names: Sequence[str], family: str | None) -> list[type[Fault]]:
    """The faults that a quiz is about; they must have been blessed, since it asks what is known to kill them."""
    if names:
        pool = [find(name) for name in names]
        odd = [name_of(fault) for fault in pool if "Killed by" not in sections_of(fault)]
        if odd:
            raise FaultError(f"nothing is known to kill {', '.join(odd)}: a quiz needs faults that have been blessed")
        return pool
    pool = [fault for fault in catalog().values() if "Killed by" in sections_of(fault)]
    if family is None:
        return pool
    families = dict.fromkeys(map(family_of, pool))
    wanted = family.replace("_", " ").replace("-", " ")
    if wanted not in families:
        raise LookupError(f"there is no family {family!r}; there are {', '.join(families)}")
    return [fault for fault in pool if family_of(fault) == wanted]


@dataclass
class Score:
    """How it went."""

    points: list[int] = field(default_factory=list)  # of each mistake that was named, or told
    guessed: bool = False  # was a wrong name given?

    def __str__(self) -> str:
        if not self.points:
            return "Guessed, but not named: nothing scored." if self.guessed else "Nothing answered, nothing scored."
        at_once = sum(points == POINTS for points in self.points)
        return f"{sum(self.points)} of {POINTS * len(self.points)} points; {at_once} of {len(self.points)} named at once."


def quiz(pool: Sequence[type[Fault]], *, rounds: int, seed: int, ask: Ask = input, say: Say = print) -> Score:
    """Ask about so many of these faults, or all if there are fewer, and return how it went.

    It ends when `ask` raises EOFError or KeyboardInterrupt, as `input` does when the terminal is closed, or on Ctrl-C.
    """
    if rounds < 1:
        raise FaultError(f"--rounds must be at least 1, got {rounds}")
    random = Random(seed)
    score = Score()
    faults = random.sample(list(pool), min(rounds, len(pool)))
    again = f"--seed {seed} --rounds {rounds} asks the same again"
    say(_indented(f"{len(faults)} {'mistake' if len(faults) == 1 else 'mistakes'} to name ({again})."))
    say(_indented(f"Answer with {_KEYS}."))
    say(
        _indented(f"A name at once is worth {POINTS} points; each further law, the clean step, and each wrong name take one off.")
    )
    try:
        for number, fault in enumerate(faults, 1):
            say(f"\n--- {number} of {len(faults)} ---\n")
            score.points.append(_round(fault, choices(fault, random), ask, say, score))
    except (EOFError, KeyboardInterrupt, _Enough):
        say(f"\n\nIt was {name_of(faults[len(score.points)])}.")
    say(f"\n{score}")
    return score


class _Enough(Exception):
    """No more questions."""


def _round(fault: type[Fault], names: list[str], ask: Ask, say: Say, score: Score) -> int:
    """One question; return the points."""
    say("One step is wrong here:\n")
    say(textwrap.indent(disguised(fault), "    "))
    laws = hints(fault, names)
    say("\nA law that it breaks:\n")
    say(next(laws))
    say("\nWhich mistake is it?\n")
    for number, name in enumerate(names, 1):
        say(f"  {number}  {name}")
    points, looked = POINTS, False
    while True:
        answer = ask("\n> ").strip()
        match answer.lower():
            case "":
                say(_indented(f"Answer with {_KEYS}."))
            case "q":
                raise _Enough
            case "s":
                say(f"\n{_answer(fault)}")
                return 0
            case "c":
                points -= not looked
                looked = True
                say(f"\nThe clean step:\n\n{textwrap.indent(clean_step(fault), '    ')}")
            case "h":
                law = next(laws, None)
                points -= law is not None
                say(f"\n{law}" if law else "That was all: no further law tells more.")
            case _:
                named = _named(answer, names)
                if isinstance(named, str):
                    say(named)
                elif named is fault:
                    said = {1: ": one point", 2: ": two points", 3: ": three points"}.get(points, "")
                    say(f"\n{_answer(fault, f'Yes{said}. ')}")
                    return max(points, 0)
                else:
                    points -= 1
                    score.guessed = True
                    say(_indented(f"No. {name_of(named)} would be: {summary_of(named)}"))


def _named(answer: str, names: Sequence[str]) -> type[Fault] | str:
    """The fault that is meant, by number or name; or what to say if there is none."""
    if answer.isdecimal():
        number = int(answer)
        return find(names[number - 1]) if 1 <= number <= len(names) else f"There are numbers from 1 to {len(names)}."
    try:
        return find(answer)
    except LookupError as error:
        return f"{str(error.args[0])[0].upper()}{error.args[0][1:]}\n{_indented(f'Answer with {_KEYS}.')}"


def _answer(fault: type[Fault], first: str = "") -> str:
    name = name_of(fault)
    report = sections_of(fault)["Seen in the wild"].split()[0]
    return "\n".join(
        [
            _indented(f"{first}It is {name}: {summary_of(fault)}"),
            "",
            textwrap.indent(diff(fault), "    "),
            "",
            f"Why it is wrong, when it shows, and what else notices: `python -m faults explain {name}`.",
            f"Somebody who made it: {report}",
        ]
    )


def hints(fault: type[Fault], names: Sequence[str]) -> Iterator[str]:
    """The laws that it breaks, each with a counterexample, the vague ones first, until none of the choices is left but one."""
    killers = {name: names_of_killers(find(name)) for name in names}
    left, told = set(names), 0
    laws = [law for law in known_killers(fault) if law.not_applicable(subject_of(fault)) is None]
    while laws:
        law = min(laws, key=lambda law: _vagueness(law, killers, left, first=not told))
        laws.remove(law)
        fails_on = {name for name in left if law.name in killers[name]}
        if fails_on == left and told >= LAWS:
            continue  # it rules nothing out
        found = falsify(law, subject_of(fault), max_examples=EXAMPLES)
        if found is None:
            continue
        left = fails_on
        many = sum(law.name in killers[name] for name in names)
        yield "\n".join(
            [
                _indented(f"{law.summary} ({law.full_name})", 2),
                _indented(f"on {found.case!r}", 4),
                _indented(found.evidence, 4),
                _indented(f"Of the {len(names)} mistakes {'above' if told else 'below'}, {many} break it.", 2),
            ]
        )
        told += 1
    if not told:
        yield "  (none was found just now)"


def _indented(text: str, by: int = 0) -> str:
    return textwrap.indent(textwrap.fill(text, width() - by, break_on_hyphens=False), " " * by)


def _vagueness(law: Property, killers: dict[str, set[str]], left: Collection[str], first: bool) -> tuple[object, ...]:
    """What comes first: what fails on most that is left, though not on all, but for the first; then what can be read best.

    For the first law the other way round: what says little comes first.
    """
    fails_on = sum(law.name in killers[name] for name in left)
    says_little = SAY_LITTLE.index(law.family) if law.family in SAY_LITTLE else len(SAY_LITTLE) if first else -1
    return (law.slow, not first and fails_on == len(left), -fails_on, says_little, PROPERTIES.index(law))


def choices(fault: type[Fault], random: Random, number: int = CHOICES) -> list[str]:
    """The name of the fault among others that it could be taken for, in random order.

    First other faults of the same step, and of the same family; of both those that break the same laws. What does the same on
    random cases is no choice beside it: who sees one of them cannot know which it is.
    """
    taken = [fault]
    for other in _near_misses(fault, random):
        if not any(_same(frozenset(map(name_of, (one, other)))) for one in taken):
            taken.append(other)
        if len(taken) == number:
            break
    names = [name_of(one) for one in taken]
    random.shuffle(names)
    return names


def _near_misses(fault: type[Fault], random: Random) -> Iterator[type[Fault]]:
    """The others, the likeliest first: of the same step and of the same family by turns, from the nearer half at random."""
    own = names_of_killers(fault)

    def distance(other: type[Fault]) -> float:
        others = names_of_killers(other)
        return 1 - len(own & others) / max(1, len(own | others))

    others = sorted((f for f in catalog().values() if f is not fault and "Killed by" in sections_of(f)), key=distance)
    step = [f for f in others if step_of(f) == step_of(fault) and clean_class(f) is clean_class(fault)]
    family = [f for f in others if family_of(f) == family_of(fault) and f not in step]
    # Twice as many of the step as of the family, as long as there are any: a name may tell which step it is not.
    ranks = [(number, f) for number, f in enumerate(_half_shuffled(step, random))]
    ranks += [(2 * number + 1, f) for number, f in enumerate(_half_shuffled(family, random))]
    near = [f for _, f in sorted(ranks, key=lambda rank: rank[0])]
    yield from near
    yield from (f for f in others if f not in near and clean_class(f) is clean_class(fault))
    yield from (f for f in others if f not in near and clean_class(f) is not clean_class(fault))


def _half_shuffled(ranked: list[type[Fault]], random: Random) -> list[type[Fault]]:
    """The nearest of them in random order, the others behind."""
    front = max(CHOICES, len(ranked) // 2)
    return [*random.sample(ranked[:front], min(front, len(ranked))), *ranked[front:]]


@functools.cache
def _same(names: frozenset[str]) -> bool:
    """Would nobody know which of the two is shown: are they written alike, or do they do the same?"""
    one, other = map(find, sorted(names))
    clean = clean_class(one)
    if clean_class(other) is not clean:
        return False
    if step_of(one) == step_of(other) and disguised(one) == disguised(other):
        return True
    random, fields = Random(0), subject_of(one).supports.fields()
    showing = []
    for case in (sample(random, fields) for _ in range(DRAWN)):
        if one.visible(case) != other.visible(case):
            return False
        if one.visible(case):
            showing.append(case)
    cases = showing[:TOLD_APART]
    # What differs from the clean attention in nothing that is looked at here, like what a copy does, is told apart by its source.
    return all(alike(subject_of(one), subject_of(other), case) for case in cases) and any(
        differences(subject_of(one), subject(clean), case) for case in cases
    )
