"""The worked example of a fault: the first step whose result is wrong, and what comes of it, beside what they should be.

Plain data, to be drawn as text or in a page. Numbers are rounded as they are to be printed, to so few digits that they are the
same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from faults.elsewhere import near
from faults.fault import Equivalent, Fault, step_of
from faults.lessons.examples import Example, examples, others, smallest_case
from faults.lessons.names import columns, rows
from faults.lessons.remarks import another_dtype, looks_at_the_hidden, observe
from faults.lessons.scenes import SCENES, Scene
from faults.lessons.trace import Step, Trace
from faults.subject import clean_class
from properties.case import Case

DIGITS = (2, 3, 4, 5)  # behind the point: as few as show the difference
HANDED = 16  # numbers, if what a step is handed is to be drawn as well
_BEFORE_WEIGHTS = ("mask", "hide_distant", "hide_others", "open_prefix", "crop")
NO_EXAMPLE = "There is none: it shows in no scene of faults/lessons/scenes.py."
TRIED = 12  # examples in each scene but the first


Numbers = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Drawn:
    """One tensor as it should be and as it is; its last axis are the columns."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    right: Numbers
    wrong: Numbers | None  # None: there is none, because it raised, or none of this shape


@dataclass(frozen=True)
class Worked:
    """A fault on a small example; of an equivalent, how it goes another way and arrives at the same."""

    case_: Case
    inputs: str  # what went in, and what was done with it, in words
    step: str  # the first step whose result differs; the step that is replaced, if no result of a step does; "": no example
    drawn: tuple[
        Drawn, ...
    ]  # what that step is handed, if it is little (then `wrong` equals `right`), its result, and what came of it
    remark: str  # what is to be seen, in words
    raised: str  # what was raised, if anything
    where: str = ""  # it is not seen in an ordinary call: in a few words, where it is, like "under checkpointing"


@dataclass(frozen=True)
class Seen:
    """A scene in which a fault shows, and what both did in it."""

    scene: Scene
    example: Example
    clean: Trace
    broken: Trace
    result: str  # the first result that differs; empty if it raised


_WORKED: dict[type[Fault], Worked] = {}


def worked(fault: type[Fault]) -> Worked:
    """Return the worked example of a fault, or of an equivalent; found once, it is remembered."""
    if fault not in _WORKED:
        _WORKED[fault] = _worked(fault)
    return _WORKED[fault]


def _worked(fault: type[Fault]) -> Worked:
    seen = _equal(fault) if issubclass(fault, Equivalent) else look(fault)
    if seen is None:
        return Worked(smallest_case(fault), NO_EXAMPLE, step="", drawn=(), remark="", raised="")
    digits = _digits(seen)
    step = _first(seen, digits, step_of(fault))
    drawn, remark = _draw(fault, seen, step, digits)
    raised = seen.broken.raised
    return Worked(
        case_=seen.example.case,
        inputs=f"{seen.example.words} {seen.scene.words.format(pieces=_pieces(seen.example.case))}",
        step=str(step) if step else seen.broken.raised_in or step_of(fault),
        drawn=tuple(drawn),
        remark=remark,
        raised="" if raised is None else f"{type(raised).__name__}: {str(raised).strip().splitlines()[0] if str(raised) else ''}",
        where=seen.scene.where,
    )


def look(fault: type[Fault]) -> Seen | None:
    """Find the first scene in which it shows, and there the plainest example; if in any it returns, one in which it does.

    None if it shows in none.
    """
    near_by = list(examples(fault))
    for scene in SCENES:
        tried = near_by if scene is SCENES[0] else near_by[:TRIED]
        if seen := _look_in(scene, fault, tried):
            return seen
        if scene is SCENES[1] and (seen := _look_in(SCENES[0], fault, list(others(fault)))):
            return seen
    return None


def _look_in(scene: Scene, fault: type[Fault], tried: list[Example]) -> Seen | None:
    loud: Seen | None = None
    for example in filter(scene.about, tried):
        clean, broken = (scene.trace(attention, example) for attention in (clean_class(fault), fault))
        if clean.raised is not None:
            continue
        if broken.raised is not None:
            loud = loud or Seen(scene, example, clean, broken, "")
            continue
        wrong = [name for name in clean.results if not _agrees(scene, example, name, clean, broken)]
        if wrong:
            return Seen(scene, example, clean, broken, next((name for name in wrong if _blank(name, broken)), wrong[0]))
    return loud


def _blank(name: str, broken: Trace) -> bool:
    """A gradient that is not there at all says more than one that is another."""
    return name.startswith("gradient") and not broken.results[name].any()


def _agrees(scene: Scene, example: Example, name: str, clean: Trace, broken: Trace) -> bool:
    got, right = broken.results.get(name), clean.results[name]
    if got is not None and torch.equal(got, right):
        return True  # what the bound is takes longer to find out than everything else
    return _agree(got, right, scene.bound(name, example))


def _equal(fault: type[Fault]) -> Seen:
    """An equivalent in the plainest example; through its cache, if it is about that."""
    tried = list(examples(fault))
    decoded = next(scene for scene in SCENES if "through a cache." in scene.words)
    found: list[Seen] = []
    for scene in (SCENES[0], decoded, SCENES[1]):
        for example in filter(scene.about, tried):
            clean, broken = (scene.trace(attention, example) for attention in (clean_class(fault), fault))
            if clean.raised is None and broken.raised is None:
                found.append(Seen(scene, example, clean, broken, "output"))
                if _first(found[-1], DIGITS[0], step_of(fault)):
                    return found[-1]
    return found[0]


def _agree(got: Tensor | None, right: Tensor, bound: Tensor | float) -> bool:
    if got is None or got.shape != right.shape or not torch.equal(got.isnan(), right.isnan()):
        return False
    return near(got.nan_to_num(0.0), right.nan_to_num(0.0), bound)


# What is drawn.


def _digits(seen: Seen) -> int:
    """How many digits show that the result differs; the fewest, if none of these does."""
    right, wrong = seen.clean.results.get(seen.result), seen.broken.results.get(seen.result)
    if right is None or wrong is None or right.shape != wrong.shape:
        return DIGITS[0]
    return _enough(right, wrong)


def _enough(right: Tensor, wrong: Tensor, least: int = DIGITS[0]) -> int:
    """The fewest digits that show a difference, at least so many; so many if none do."""
    return next((digits for digits in DIGITS if digits >= least and _differ(right, wrong, digits)), least)


def _first(seen: Seen, digits: int, replaced: str) -> Step | None:
    """The first step whose result differs as printed; what the replaced one is made of, in one or the other, does not count."""
    broken = {step.key: step for step in seen.broken.steps}
    if seen.clean.results and all(tensor.dtype == torch.float64 for tensor in seen.clean.results.values()):
        digits = DIGITS[-1]  # so far out there is no rounding
    for step in seen.clean.steps:
        if replaced in step.inside:
            continue
        other = broken.get(step.key)
        if other is not None and (_differ(step.returned, other.returned, digits) or another_dtype(step, other.returned)):
            return step
    return None


def _differ(right: Tensor, wrong: Tensor, digits: int) -> bool:
    return right.shape != wrong.shape or not _alike(printed(right, digits), printed(wrong, digits))


def _alike(a: Numbers | None, b: Numbers | None) -> bool:
    """Equal, NaN being equal to NaN; as text, in which it is."""
    return str(a) == str(b)


def _draw(fault: type[Fault], seen: Seen, step: Step | None, digits: int) -> tuple[list[Drawn], str]:
    clean, broken, example = seen.clean, seen.broken, seen.example
    other = {s.key: s for s in broken.steps}.get(step.key) if step else None
    drawn: list[Drawn] = []
    remarks: list[str] = []
    if step and other:
        shown = _enough(step.returned, other.returned, digits)
        drawn += [
            _drawn(f"{name}, handed to {_title(seen, step)}", name, t, t, example, shown) for name, t in _handed(step, other)
        ]
        drawn.append(_drawn(_title(seen, step), step.name, step.returned, other.returned, example, shown))
        remarks += observe(step, other.returned, seen.clean, example)
        if step.name in _BEFORE_WEIGHTS and "weights" in broken.results:
            remarks += looks_at_the_hidden(broken.results["weights"], example)
    if broken.raised is not None:
        at = next((s for s in clean.steps if s.name == broken.raised_in and s.call == _last_call(broken)), None)
        if at is not None:
            if not drawn:
                given = [(name, tensor) for name, tensor in at.given.items() if _worth_drawing(tensor)]
                drawn += [_drawn(f"{name}, handed to {_title(seen, at)}", name, t, t, example, digits) for name, t in given]
            drawn.append(_drawn(_title(seen, at), at.name, at.returned, None, example, digits))
        elif not drawn:
            name, result = next(iter(clean.results.items()))
            drawn.append(_drawn(f"the {name}", name, result, None, example, digits))
        remarks.append(f"It raises{f' in {broken.raised_in}' if broken.raised_in else ''}.")
    else:
        right, wrong = clean.results[seen.result], broken.results.get(seen.result)
        final = _drawn(f"the {seen.result}", seen.result, right, wrong, example, digits)
        if not drawn or not (_alike(final.right, drawn[-1].right) and _alike(final.wrong, drawn[-1].wrong)):
            drawn.append(final)
        remarks += _of_the_result(fault, seen, step, right, wrong, digits)
    if not remarks and step and step_of(fault) == "__init__":
        remarks.append(
            "It is made of numbers that were drawn at random when the layer was built, and that loading did not replace."
        )
    return drawn, " ".join(dict.fromkeys(remarks))


def _of_the_result(
    fault: type[Fault], seen: Seen, step: Step | None, right: Tensor, wrong: Tensor | None, digits: int
) -> Iterator[str]:
    if issubclass(fault, Equivalent):
        same = wrong is not None and _agree(wrong, right, seen.scene.bound(seen.result, seen.example))
        yield "The output is the same." if same else "What is drawn is another draw; how likely each draw is, is the same."
        return
    tiny = wrong is not None and wrong.shape == right.shape and not _differ(right, wrong, digits)
    if step is None and seen.broken.steps and seen.scene.watched and not tiny:
        yield "Going forward, every step returns what it should."
    if wrong is None:
        yield f"It returns no {seen.result}."
    elif wrong.shape != right.shape:
        have = "have" if seen.result == "weights" else "has"
        yield f"The {seen.result} {have} shape {list(wrong.shape)}, and should have {list(right.shape)}."
    elif tiny:
        error = float((wrong - right).abs().max())
        yield f"The two differ by less than {_power(error)}, which these digits do not show, and rounding does not explain."
    elif step is None and wrong.shape == right.shape:
        made_up = Step(seen.result, "", 0, {}, right)
        yield from observe(made_up, wrong, seen.clean, seen.example)


def _handed(step: Step, other: Step) -> list[tuple[str, Tensor]]:
    """What the step was handed, if it is worth drawing and the same for both."""
    same = {name: t for name, t in step.given.items() if name in other.given and _equal_tensors(t, other.given[name])}
    return [(name, tensor) for name, tensor in same.items() if _worth_drawing(tensor)]


def _equal_tensors(a: Tensor, b: Tensor) -> bool:
    return not _differ(a, b, DIGITS[0])


def _worth_drawing(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dim() >= 3 and 0 < tensor.numel() <= HANDED


def _title(seen: Seen, step: Step) -> str:
    """The step, and in which call it was, if there are several."""
    calls = {s.call for s in seen.clean.steps}
    name = f"{step.name}, {step.what}" if step.what else step.name
    return f"{name} in call {step.call + 1} of {max(calls) + 1}" if len(calls - {-1}) > 1 and step.call >= 0 else name


def _drawn(title: str, name: str, right: Tensor, wrong: Tensor | None, example: Example, digits: int) -> Drawn:
    fits = wrong is not None and wrong.shape == right.shape
    return Drawn(
        title=f"{title}  {_shape(right)}",
        rows=rows(name, right, example),
        columns=columns(name, right, example),
        right=printed(right, digits),
        wrong=printed(wrong, digits) if wrong is not None and fits else None,
    )


def _shape(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def printed(tensor: Tensor, digits: int) -> Numbers:
    """Its numbers in rows, rounded to so many digits behind the point; large ones to three digits in all."""
    flat = tensor.to(torch.float64).reshape(-1, tensor.shape[-1]) if tensor.dim() and tensor.numel() else torch.zeros(0, 0)
    return tuple(tuple(_rounded(number, digits) for number in row) for row in flat.tolist())


def _rounded(number: float, digits: int) -> float:
    if not math.isfinite(number):
        return number
    number = float(f"{number:.9g}")  # at a tie, too, the same everywhere
    return float(f"{number:.2e}") if abs(number) >= 1e5 else round(number, digits) + 0.0  # no -0


def _power(error: float) -> str:
    return f"1e{math.floor(math.log10(error)) + 1}" if error else "0"


def _last_call(trace: Trace) -> int:
    return max((step.call for step in trace.steps), default=0)


def _pieces(case: Case) -> str:
    sizes = case.chunks()
    return "one at a time" if set(sizes) == {1} else f"in pieces of {', '.join(map(str, sizes))}"
