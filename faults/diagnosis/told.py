"""A diagnosis in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from faults.diagnosis.laws import Agreement, failing
from faults.diagnosis.numbers import Match
from faults.fault import family_of, name_of, summary_of
from faults.killers import telling_first

if TYPE_CHECKING:
    from faults.diagnosis.diagnosis import Answer, Diagnosis

SHOWN = 3  # answers, where none is certain
_LAWS = 2  # that it breaks, where none is certain
_WIDTH = 118

# What is a mistake here, and may be what somebody means: then it is to be declared.
CONVENTIONS = {
    "causal-top-left": "causal_alignment='top_left'",
    "inverted-polarity": "polarity='hide'",
    "tiled-kv-heads": "kv_head_map='interleaved'",
    "missing-scale": "scale=lambda d_head: 1.0",
    "empty-rows-nan": "empty_rows='nan'",
    "empty-rows-uniform": "empty_rows='uniform'",
}


def paragraphs(diagnosis: Diagnosis) -> Iterator[str]:
    """What to say, the verdict first."""
    subject, answers = diagnosis.report.subject, diagnosis.answers
    yield f"{subject.name}: {diagnosis.words}."
    if diagnosis.verdict == "correct":
        yield from _limits(diagnosis)
        return
    if diagnosis.verdict in ("identified", "combination"):
        yield "\n".join(_described(answers[0]))
        yield from _conventions(answers[0])
        return
    yield "\n".join(_broken_laws(diagnosis))
    if diagnosis.departs:
        yield _filled(f"Where it departs: {diagnosis.departs}.", "")
    yield from (_filled(remark, "") for remark in diagnosis.remarks)
    likely = [answer for answer in answers if answer.likely][:SHOWN]
    if likely:
        doubt = "" if diagnosis.verdict == "resembles" else ", which need not be it"
        yield f"The likest of the known mistakes{doubt}:"
    else:
        yield "It resembles none of the known mistakes."
    for answer in likely:
        yield "\n".join(_described(answer))


def _limits(diagnosis: Diagnosis) -> Iterator[str]:
    report, mistakes = diagnosis.report, diagnosis.report.mistakes
    unseen = f": {', '.join(mistakes.unseen)}" if mistakes.unseen else ""
    yield _filled(
        f"None of {len(report.of('held'))} properties failed. Of {mistakes.known} known mistakes {len(mistakes.possible)} can be "
        f"made in what it declares, and {len(mistakes.unseen) or 'none'} of these would have gone unseen{unseen}.",
        "",
    )


def _broken_laws(diagnosis: Diagnosis) -> Iterator[str]:
    """Those that say most, each with its smallest case."""
    failed = failing(diagnosis.report.findings)
    yield f"It breaks {len(failed)} of the laws" + (", for instance:" if failed else ".")
    for law in telling_first(finding.property for finding in failed.values())[:_LAWS]:
        found = failed[law.name]
        yield _filled(f"{law.summary}  [{law.full_name}]")
        if found.counterexample:
            yield f"    on {found.counterexample.case!r}"
        yield f"    {found.evidence.partition(chr(10))[0]}"
        if found.counterexample and (hint := found.counterexample.hint()):
            yield f"    {hint}"
    yield "  all of them: python -m properties check, or `report` of the diagnosis"


def _conventions(answer: Answer) -> Iterator[str]:
    for fault in answer.candidate.faults:
        if declaration := CONVENTIONS.get(name_of(fault)):
            yield f"If this is meant so, it is a convention: declare {declaration}."


def _described(answer: Answer) -> Iterator[str]:
    yield f"{answer.candidate.name}  ({', '.join(dict.fromkeys(family_of(fault) for fault in answer.candidate.faults))})"
    for fault in answer.candidate.faults:
        yield _filled(summary_of(fault))
    if answer.match is not None:
        yield _filled(_numbers(answer.match))
    if len(answer.names) > 1:
        yield _filled(f"not told apart from it by any case that was drawn: {', '.join(answer.names[1:])}")
    yield _filled(_laws(answer.laws))
    for fault in answer.candidate.faults:
        yield f"  to read on: python -m faults explain {name_of(fault)}"


def _numbers(match: Match) -> str:
    what = f": {_some(match.looks)}" if match.looks else ""
    compared = match.same + match.other + match.apart
    if match.identical and not match.returned:
        said = f"it raises, or returns nothing of use, in the same {match.same} comparisons{what}"
    elif match.identical:
        said = f"numbers: the same, rounding aside, in all {compared} comparisons in which yours is wrong{what}"
    else:
        said = f"numbers: the same in {match.returned} of {compared} comparisons in which either is wrong{what}"
    return f"{said}; in {match.one} more, only one of the two returns" if match.one else said


def _laws(laws: Agreement) -> str:
    parts = [f"laws: {len(laws.both)} that both break, on the same cases"]
    if laws.only_subject:
        parts.append(f"only yours breaks {_some(laws.only_subject)}")
    if laws.only_fault:
        parts.append(f"only the fault breaks {_some(laws.only_fault)}")
    return "; ".join(parts)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _filled(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=2 * indent, break_on_hyphens=False)
