"""Running a property on a subject: on one case, or on as many as Hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from properties.case import Case
from properties.property import Property
from properties.subject import Subject
from properties.surroundings import seeded, undisturbed
from properties.time_limit import OutOfTime, Patience, time_limit


@dataclass(frozen=True)
class Counterexample:
    """A case on which a subject breaks a law, and the evidence."""

    property: Property
    subject: Subject
    case: Case
    evidence: str
    hung: bool = False  # it was still running when the time was up

    def __str__(self) -> str:
        return "\n".join([f"{self.subject.name} breaks a law of attention: {self.property.summary}", *self.details()])

    def details(self) -> list[str]:
        """The case, the evidence, what to do about it perhaps, and how to see it again."""
        return [
            f"  on {self.case!r}",
            f"  {self.evidence}",
            *([f"  {hint}"] if (hint := self.hint()) else []),
            "  to see it again:",
            *(f"    {line}" for line in self.reproduction().splitlines()),
        ]

    def reproduction(self) -> str:
        """Python to paste."""
        replay = f"properties.replay({self.subject.expression}, {self.property.name!r}, properties.{self.case!r})"
        return "\n".join((*self.subject.imports, "import properties", replay))

    def hint(self) -> str:
        """What to declare, if the subject refuses what it was not made for; the case, being the smallest, says what that is."""
        if " raised " not in self.evidence:
            return ""
        case = self.case
        if any(word in self.evidence for word in ("dtype", "Double", "Half", "BFloat16")):
            return "If it only takes some dtypes, declare them, like dtypes=('float32',)."
        refused = [declaration for at, declaration in _REFUSALS if at(case)]
        return f"If it is not meant to take this, declare {' or '.join(refused)}." if refused else ""


# What a case asks for beyond the simplest, and how a subject declares that it has no such thing.
_REFUSALS: tuple[tuple[Callable[[Case], bool], str], ...] = (
    (lambda case: case.keys is not None, "cross_attention=False"),
    (lambda case: case.num_kv_heads is not None, "grouped_heads=False"),
    (lambda case: case.mask.startswith("is_causal"), "masks without is_causal"),
    (lambda case: case.mask != "none", "masks, those that it takes"),
    (lambda case: case.mask != "none" and case.encoding != "bool", "encodings=('bool',)"),
    (lambda case: case.dropout > 0, "dropout=False"),
    (lambda case: case.num_heads > 2 or case.d_head in (1, 3), "num_heads or d_heads, the sizes that it takes"),
)


def failure(property_: Property, subject: Subject, case: Case) -> str | None:
    """Run the law on one case; return the evidence if the subject breaks it, None if the law holds.

    Whatever the subject does, raising in the middle of a backward pass included, is a verdict about the subject.
    """
    found = judge(property_, subject, case, Patience())
    return None if found is None else found.evidence


def judge(property_: Property, subject: Subject, case: Case, patience: Patience) -> Counterexample | None:
    """Run the law on one case, not longer than there is patience; what the subject leaves changed around it is put back."""
    if not property_.about(case, subject):
        raise ValueError(f"{property_.name} is not about {case!r}, or {subject.name} does not support it")
    try:
        with undisturbed(), time_limit(patience.seconds), seeded(case.seed):  # dropout draws the same for the same case
            torch.set_num_threads(1)  # small tensors: on a busy machine a second thread takes twenty times as long as it saves
            property_.law(subject, case)
    except AssertionError as error:
        return Counterexample(property_, subject, case, str(error))
    except OutOfTime:
        evidence = f"it has not ended after {patience.seconds:g} seconds"
        patience.lose()
        return Counterexample(property_, subject, case, evidence, hung=True)
    except Exception as error:
        return Counterexample(property_, subject, case, f"it raised {type(error).__name__}: {error}")
    return None


class _Stop(BaseException):
    """Not an Exception: Hypothesis does not shrink what has hung, it would take for ever."""


def check(property_: Property, subject: Subject, patience: Patience | None = None) -> None:
    """Run the law on the cases that Hypothesis draws by the loaded profile; raise AssertionError with the smallest failure."""
    __tracebackhide__ = True  # for pytest: the message says it all
    found = _search(property_, subject, _as_loaded(), patience or Patience())
    if found is not None:
        raise AssertionError(str(found))


def hypothesis_test(subject: Subject, patience: Patience) -> Callable[[Property], None]:
    """Return `check` of the subject as a Hypothesis test, for whatever looks for those, as HypoFuzz does.

    A fuzzer finds in it the test of one case, and draws the cases itself. When called, it has Hypothesis draw them for that same
    test, which therefore has one name in Hypothesis's database: what one finds, the other replays.
    """
    strategies: dict[str, st.SearchStrategy[Case]] = {}  # of each law, made once: that takes as long as to judge a case

    def test_of_one_case(found: list[Counterexample] | None) -> Callable[[Property, st.DataObject], None]:
        """Return a test that puts what it finds into the list; without a list it is a fuzzer's."""

        def one_case(law: Property, data: st.DataObject) -> None:
            if law.name not in strategies:
                strategies[law.name] = law.cases(subject)
            failed = judge(law, subject, data.draw(strategies[law.name]), patience)
            if failed is not None:
                if found is not None:
                    found.append(failed)
                    if failed.hung:
                        raise _Stop  # never in a fuzzer: it would end the whole process
                raise AssertionError(str(failed))

        return one_case

    fuzzed = test_of_one_case(None)

    def test(law: Property) -> None:
        __tracebackhide__ = True
        found: list[Counterexample] = []
        one_case = wraps(fuzzed)(test_of_one_case(found))  # to Hypothesis the same test, with all that pytest has told it
        smallest = _smallest(lambda: _as_loaded()(given(data=st.data())(one_case))(law), found)
        if smallest is not None:
            raise AssertionError(str(smallest))

    vars(test).update(vars(given(data=st.data())(fuzzed)))  # not wraps: pytest would look in tracebacks for what is wrapped
    return test


def _as_loaded() -> settings:
    phases = [phase for phase in settings().phases if phase != Phase.explain]  # our own explanation is better, and quicker
    return settings(deadline=None, phases=phases)  # a slow subject is no wrong one


def falsify(
    property_: Property,
    subject: Subject,
    *,
    max_examples: int = 500,
    patience: Patience | None = None,
    watch: Callable[[Case], None] = lambda case: None,
) -> Counterexample | None:
    """Search for a case on which the subject breaks the law, and shrink it; None if there is none among `max_examples`.

    The same every time: it does not depend on the profile, on a seed, or on what was found before. `watch` sees every case.
    """
    always = settings(
        max_examples=max_examples,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    return _search(property_, subject, always, patience or Patience(), watch)


def _search(
    property_: Property,
    subject: Subject,
    how: settings,
    patience: Patience,
    watch: Callable[[Case], None] = lambda case: None,
) -> Counterexample | None:
    found: list[Counterexample] = []

    def law(case: Case) -> None:
        watch(case)
        failed = judge(property_, subject, case, patience)
        if failed is not None:
            found.append(failed)
            raise _Stop if failed.hung else AssertionError

    law.__name__ = property_.name  # what Hypothesis calls it, should it have something to say
    return _smallest(how(given(case=property_.cases(subject))(law)), found)


def _smallest(test: Callable[[], None], found: list[Counterexample]) -> Counterexample | None:
    """Run the Hypothesis test, which puts what it finds into the list; return the smallest of it, if there is any."""
    try:
        test()
    except Flaky:
        return replace(found[-1], evidence=f"{found[-1].evidence}; it does not fail every time: it is left to chance")
    except (AssertionError, _Stop):
        return found[-1]  # Hypothesis runs the smallest one last
    return None
