"""Work on a subject in a process of its own, and go on if that dies or never answers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

from properties.case import Case
from properties.printed import keep_printed
from properties.property import Property
from properties.report import FAILED, Finding
from properties.runner import Counterexample
from properties.subject import Subject
from properties.time_limit import Patience

Run = Callable[[Property, Callable[[Case], None]], Finding]  # a property, and what is to be told of every case before it is tried

_GRACE = 5.0  # seconds that a process has, when the time for a case is up, to notice it itself


def isolated(run: Run, laws: Sequence[Property], subject: Subject, patience: Patience) -> Iterator[Finding]:
    """Yield `run(law, ...)` for each law, computed in a child process, and a failure for a law that the child did not survive."""
    if "fork" not in multiprocessing.get_all_start_methods():  # a subject need not be picklable, so it must be inherited
        yield from (run(law, lambda case: None) for law in laws)
        return
    context = multiprocessing.get_context("fork")
    left = list(laws)
    while left:
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(run, left, theirs), daemon=True)
        child.start()
        theirs.close()
        case = None
        while left:
            try:
                answer = ours.recv() if ours.poll(patience.seconds + _GRACE) else TimeoutError()
            except EOFError as error:
                answer = error
            if isinstance(answer, Case):
                case = answer
            elif isinstance(answer, BaseException):
                yield _killed(left.pop(0), subject, case, answer, child, patience)
                break
            else:
                law = left.pop(0)
                finding, found, printed = answer
                print(printed, end="")
                yield replace(
                    finding, property=law, counterexample=None if found is None else Counterexample(law, subject, *found)
                )
        child.kill()
        child.join()
        ours.close()


def _work(run: Run, laws: Sequence[Property], answers: Connection) -> None:
    os.dup2(sys.__stderr__.fileno() if sys.__stderr__ else os.open(os.devnull, os.O_WRONLY), 1)  # what compiled code prints
    for law in laws:
        with keep_printed() as printed:
            finding = run(law, answers.send)
        found = finding.counterexample
        parts = None if found is None else (found.case, found.evidence, found.hung)
        # Neither a subject nor what it is made of need be picklable; the parent has both.
        answers.send((replace(finding, counterexample=None), parts, printed.getvalue()))


def _killed(
    law: Property,
    subject: Subject,
    case: Case | None,
    answer: BaseException,
    child: multiprocessing.process.BaseProcess,
    patience: Patience,
) -> Finding:
    if isinstance(answer, TimeoutError):
        evidence = f"it has not ended after {patience.seconds:g} seconds, and could only be stopped with its process"
        patience.lose()
    else:
        child.join()
        code = child.exitcode or 0
        evidence = f"its process died, of {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
    found = None if case is None else Counterexample(law, subject, case, evidence, hung=True)
    return Finding(law, FAILED, evidence=evidence, counterexample=found)
