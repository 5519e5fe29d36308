"""Run every property on a subject and report: for scripts, notebooks and the command line."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from properties.case import HIDING, Case
from properties.isolated import isolated
from properties.laws import PROPERTIES
from properties.printed import keep_printed
from properties.property import Property
from properties.report import EXPECTED, FAILED, HELD, NOT_APPLICABLE, Finding, Report
from properties.runner import falsify, judge
from properties.subject import Subject
from properties.time_limit import TIME_LIMIT, Patience
from properties.wrap import as_subject

CASES = 25  # of each property: every known mistake fell to the first 20 on each of a thousand seeds


def check_attention(
    attention: object,
    *,
    cases: int = CASES,
    only: str = "",
    expected_failures: Mapping[str, str] | None = None,
    time_limit: float = TIME_LIMIT,
    in_processes: bool = False,
    diagnose: bool = False,
    **declared: Any,
) -> Report:
    """Run the properties on an attention and report what became of each. The same every time.

    Args:
        attention: a class like the lesson's (see `of_class`), a function of q, k and v (see `of_function`), or a `Subject`, as
            `of_module` and `black_box` make them.
        cases: random cases for each property; a failure takes more, to find a small one, unless one on which another property
            failed will do.
        only: run only properties whose family and name, as `family-name`, contain this.
        expected_failures: names of properties that are known to fail, each with the reason. One that holds is a failure then.
        time_limit: seconds that one case may take.
        in_processes: run the subject in a process of its own, so that even compiled code which crashes or never returns is a
            verdict; on systems that can fork.
        diagnose: also say which known mistake it is, if any property fails; by the catalog, the package `faults` beside this one.
        declared: what the attention supports, fields of `Supports`, and options of `of_class` or `of_function`.

    Raises ValueError or TypeError for what cannot be checked or declared; never for what the subject does.
    """
    if not isinstance(cases, int) or cases < 1:
        raise ValueError(f"cases must be a whole number, at least 1, got {cases!r}")
    if not isinstance(only, str):
        raise ValueError(f"only must be part of a property's name, like 'causality', got {only!r}")
    catalog = _catalog() if diagnose else None
    start = time.perf_counter()
    with keep_printed() as printed:
        subject = as_subject(attention, **declared)
    chosen = [law for law in PROPERTIES if only in law.full_name]
    if not chosen:
        raise ValueError(
            f"only={only!r} is part of no property's name; the names are {', '.join(law.full_name for law in PROPERTIES)}"
        )
    expected = check_expected(expected_failures or {}, subject)
    patience = Patience(time_limit)

    met: list[Case] = []  # the smallest cases of failures so far: what fails on one law often fails on others

    def run(law: Property, watch: Callable[[Case], None] = lambda case: None) -> Finding:
        finding = _run(law, subject, cases, patience, expected.get(law.name), met, watch)
        if finding.counterexample and finding.counterexample.case not in met:
            met.append(finding.counterexample.case)
        return finding

    with keep_printed() as also_printed:
        findings = isolated(run, chosen, subject, patience) if in_processes else map(run, chosen)
        found = tuple(findings)
    report = Report(subject, found, time.perf_counter() - start, printed.getvalue() + also_printed.getvalue())
    if catalog is None:
        return report
    with keep_printed():
        return replace(report, diagnosis=catalog.of_report(report, time_limit))


def _catalog() -> Any:
    """The one thing that this package asks of the catalog, and only where it is there."""
    try:
        return importlib.import_module("faults.diagnosis")
    except ImportError as error:
        raise ValueError("diagnose=True needs the catalog, the package `faults`, which is not installed") from error


def replay(attention: object, law: str, case: Case, **declared: Any) -> None:
    """Run one property on one case; raise AssertionError, with evidence, if it fails. Reports say how to call it."""
    subject = as_subject(attention, **declared)
    found = judge(find(law), subject, case, Patience())
    if found is not None:
        raise AssertionError(str(found))


def find(name: str) -> Property:
    """The property of this name, with or without its family; LookupError, with the likely ones, if there is none."""
    name = name.rpartition("-")[2]
    by_name = {law.name: law for law in PROPERTIES}
    if name not in by_name:
        like = get_close_matches(name, by_name, n=3, cutoff=0.4)
        raise LookupError(f"there is no property {name!r}" + (f"; did you mean {' or '.join(like)}?" if like else ""))
    return by_name[name]


def check_expected(expected_failures: Mapping[str, str], subject: Subject) -> Mapping[str, str]:
    """Return the expected failures; ValueError if one has no reason, is no property, or one that does not apply."""
    if not isinstance(expected_failures, Mapping):
        raise ValueError(f"expected_failures must be a mapping of names to reasons, got {expected_failures!r}")
    for name, reason in expected_failures.items():
        try:
            why = find(name).not_applicable(subject)
        except LookupError as error:
            raise ValueError(f"expected_failures: {error}") from None
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"expected_failures: {name} needs a reason, got {reason!r}")
        if why:
            raise ValueError(f"expected_failures: {name} does not apply to {subject.name} ({why}); take it off the list")
    return expected_failures


def _run(
    law: Property,
    subject: Subject,
    cases: int,
    patience: Patience,
    expected: str | None,
    met: Sequence[Case],
    watch: Callable[[Case], None],
) -> Finding:
    start = time.perf_counter()
    why = law.not_applicable(subject)
    if why:
        return Finding(law, NOT_APPLICABLE, why)
    drawn: list[Case] = []

    def see(case: Case) -> None:
        drawn.append(case)
        watch(case)

    found = None
    for case in met:
        if found is None and law.about(case, subject):
            see(case)
            found = judge(law, subject, case, patience)
    found = found or falsify(law, subject, max_examples=cases, patience=patience, watch=see)
    masked = sum(case.mask in HIDING for case in drawn)
    seconds = time.perf_counter() - start
    if found is None and expected is not None:
        evidence = f"it was expected to fail ({expected}), and held on {len(drawn)} cases; take it off the list"
        return Finding(law, FAILED, expected, evidence, None, len(drawn), masked, seconds)
    status = HELD if found is None else FAILED if expected is None else EXPECTED
    return Finding(law, status, expected or "", "" if found is None else found.evidence, found, len(drawn), masked, seconds)
