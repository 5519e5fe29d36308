"""How wrong a fault is where it shows: how far its output is from the clean one, on the same weights and typical tokens.

Typical: standard normal, scores of about unit size, float64, one call in evaluation. What is wrong only elsewhere, in training,
in the gradient or after other calls, has an output that is right here: then that is said, and what was found to be wrong.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from faults.elsewhere import also_wrong, near
from faults.fault import Fault, subject_of
from faults.subject import clean_class, subject
from properties.case import Case, sample
from properties.inputs import make_inputs
from properties.subject import Subject
from properties.surroundings import seeded, undisturbed

CASES = 16  # on which the fault shows
DRAWN = 160  # cases drawn to find that many
LOOKED = 6  # of those on which the output is right: to see what else is wrong


@dataclass(frozen=True)
class Severity:
    """||output - clean output|| / ||clean output||, over the cases on which the fault shows and the clean output is not zero."""

    median: float | None  # over the cases on which it returns; None: it never does
    largest: float | None
    cases: int
    unusable: int  # of these cases: it raises, or gives NaN, infinity or another shape
    chance: bool  # two calls on the same differ
    wrong: tuple[str, ...]  # if the output is right on all cases: what is not


def showing(fault: type[Fault], seed: int = 0) -> list[Case]:
    """Random cases on which the fault shows."""
    random, fields = Random(f"{seed} symptom"), subject_of(fault).supports.fields()
    found: list[Case] = []
    for _ in range(DRAWN):
        case = sample(random, fields)
        if fault.visible(case):
            found.append(case)
        if len(found) == CASES:
            break
    return found


def severity(fault: type[Fault], cases: list[Case]) -> Severity:
    """Measure it on these cases, on which the fault shows."""
    broken, right_one = subject_of(fault), subject(clean_class(fault))
    errors: list[float] = []
    right: list[Case] = []
    measured, chance = 0, False
    with undisturbed():
        for case in cases:
            clean = _output(right_one, case, seed=1)
            if clean is None or not clean.any():
                continue
            measured += 1
            got, bound = _output(broken, case, seed=1), right_one.rounding(case).output
            if got is None:
                continue
            if near(got, clean, bound):
                errors.append(0.0)
                right.append(case)
                continue
            errors.append(float((got - clean).norm() / clean.norm()))
            chance = chance or not near(_output(broken, case, seed=2), got, bound)
        wrong = () if any(errors) else also_wrong(broken, right_one, right[:LOOKED])
    median, largest = (statistics.median(errors), max(errors)) if errors else (None, None)
    return Severity(median, largest, measured, measured - len(errors), chance, wrong)


def words(found: Severity) -> str:
    """Say it in a line, by numbers that are the same on every machine."""
    where = f"{found.unusable} of {found.cases}" if found.unusable < found.cases else f"all {found.cases}"
    unusable = f"on {where} random cases it raises or gives NaN" if found.unusable else ""
    if found.median is None or found.largest is None:
        return f"No output: {unusable}." if found.cases else "Not measured: wherever it shows, the right output is zero."
    if found.largest == 0:
        said = f"On{unusable[2:]}; on the others 0" if unusable else "0"
        wrong = f"; wrong: {', '.join(found.wrong)}" if found.wrong else ""
        return f"{said}: the output of a first call in evaluation is right{wrong}."
    if found.median == 0:
        said = f"0 in the median, {figure(found.largest, found.chance)} at most, the relative error of the output"
    else:
        said = f"{figure(found.median, found.chance)}, the median relative error of the output"
    return "; ".join([said, *(["left to chance"] if found.chance else []), *([unusable] if unusable else [])]) + "."


def figure(error: float, chance: bool = False) -> str:
    """Two digits; of what depends on how a machine rounds, or draws, the next power of ten.

    In float64, rounding moves an error by some 1e-15 of itself, which does not change the second digit. An error below 0.001 is
    itself made of roundings, in a coarser dtype, and these are not the same everywhere; nor are the weights that dropout drops.
    """
    if error == 0:
        return "0"
    error = float(f"{error:.9g}")  # at a tie too, as for an output that is off by exactly 7/8
    if chance or error < 0.001:
        above = math.floor(math.log10(error)) + 1
        return f"below {10.0**above:g}" if above > -4 else f"below 1e{above}"
    return f"{float(f'{error:.2g}'):g}"


def cell(found: Severity | None) -> str:
    """The median in a few characters; "-": it returns nothing that could be compared."""
    if found is None or found.median is None:
        return "-"
    return figure(found.median, found.chance).replace("below ", "<")


def _output(subject_: Subject, case: Case, seed: int) -> Tensor | None:
    """The output of a call in evaluation, float64, or None if there is none of this shape, or it is not finite."""
    inputs = make_inputs(case)
    try:
        with torch.no_grad(), seeded(seed):
            output = subject_.layer(inputs).run(inputs, False).output
    except Exception:
        return None
    return output.to(torch.float64) if output.shape == inputs.x.shape and output.isfinite().all() else None
