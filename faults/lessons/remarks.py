"""What is to be seen in a wrong tensor, in words: whose numbers stand where, what does not sum to 1, who sees what is hidden."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from faults.lessons.examples import Example
from faults.lessons.names import axes, columns, rows
from faults.lessons.trace import Step, Trace

SHOWN = 3  # of what there is more of
_WEIGHTS = ("softmax", "weights")
_MASKS = ("mask", "hide_distant", "hide_others", "open_prefix", "crop")


def observe(step: Step, wrong: Tensor, clean: Trace, example: Example) -> list[str]:
    """Sentences about what a step returned, `wrong`, where it should have returned `step.returned`."""
    right = step.returned
    if wrong.shape != right.shape:
        return [f"{step} returns the shape {list(wrong.shape)}, and should return {list(right.shape)}."]
    if another_dtype(step, wrong):
        return [f"{step} returns {_dtype(wrong)}, and should return {_dtype(right)}."]
    right, wrong = right.to(torch.float64), wrong.to(torch.float64)
    said = list(_not_numbers(right, wrong))
    if said:
        return said
    if step.name in _MASKS:
        return [sentence for sentence in (_shown(step, right, wrong, example),) if sentence]
    if step.name in _WEIGHTS and (sentence := _sums(wrong, example)):
        return [sentence, *looks_at_the_hidden(wrong, example)]
    for look in _FIRST:
        if sentence := look(step, right, wrong, clean, example):
            said.append(sentence)
            break
    return [*said, *(looks_at_the_hidden(wrong, example) if step.name in _WEIGHTS else [])]


def another_dtype(step: Step, wrong: Tensor) -> bool:
    """Is it of another precision? A mask may be boolean or not."""
    right = step.returned
    return right.dtype != wrong.dtype and right.is_floating_point() and wrong.is_floating_point()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _not_numbers(right: Tensor, wrong: Tensor) -> Iterator[str]:
    for word, test in (("NaN", torch.isnan), ("infinite", torch.isposinf)):
        count = int((test(wrong) & ~test(right)).sum())
        if count:
            many = "All" if count == wrong.numel() else str(count)
            yield f"{many} of the {wrong.numel()} numbers {'are' if count > 1 else 'is'} {word}."
    lost = right.isnan() & ~wrong.isnan()
    if lost.any():
        count, instead = int(lost.sum()), wrong[lost]
        what = f", and {'are' if count > 1 else 'is'} {_short(instead[0])}" if bool((instead == instead[0]).all()) else ""
        yield f"{count} of the {wrong.numel()} numbers should be NaN{what or ', and are not'}."


def _another_step(step: Step, right: Tensor, wrong: Tensor, clean: Trace, example: Example) -> str:
    """Is it what another step returned?"""
    for other in clean.steps:
        same_kind = other.call == step.call and other.returned.shape == wrong.shape and other.what
        if same_kind and (other.name == step.name) and other.what != step.what and _same(other.returned.to(wrong.dtype), wrong):
            return f"These are the {other.what}."
    return ""


def _moved_rows(step: Step, right: Tensor, wrong: Tensor, clean: Trace, example: Example) -> str:
    """Is every wrong row another one's right row?"""
    if right.dim() < 2 or right.shape[-1] < 2:
        return ""
    width, names = right.shape[-1], rows(step.name, right, example)
    heads, d_head = example.case.num_heads, example.case.d_head
    if heads > 1 and width == heads * d_head and axes(step.name, right)[-1] == "feature":  # then each head is a row of its own
        width, names = d_head, tuple(f"{name}, head {head}".removeprefix(", ") for name in names for head in range(heads))
    return _moves(right.reshape(-1, width), wrong.reshape(-1, width), names)


def _moved_numbers(step: Step, right: Tensor, wrong: Tensor, clean: Trace, example: Example) -> str:
    """Is every wrong number another place's right number?"""
    down, across = rows(step.name, right, example), columns(step.name, right, example)
    names = [", ".join(filter(None, pair)) for pair in itertools.product(down, across)]
    return _moves(right.reshape(-1, 1), wrong.reshape(-1, 1), names)


def _moves(right: Tensor, wrong: Tensor, names: list[str] | tuple[str, ...]) -> str:
    found = []
    for place, row in enumerate(wrong):
        if _same(row, right[place]):
            continue
        owners = [other for other in range(len(right)) if _same(row, right[other])]
        if not row.any() or not owners or (len(owners) > 1 and len(row) == 1):
            return ""
        found.append(f"{names[place]} has what belongs to {names[owners[0]]}")
    if not found:
        return ""
    more = f"; and so on, {len(found)} in all" if len(found) > SHOWN else ""
    sentence = f"{'; '.join(found[:SHOWN])}{more}."
    return sentence[0].upper() + sentence[1:]


def _exchanged(step: Step, right: Tensor, wrong: Tensor, clean: Trace, example: Example) -> str:
    if right.dim() >= 2 and right.shape[-1] == right.shape[-2] > 1 and _same(wrong, right.mT):
        return "It is the right one with rows and columns exchanged."
    return ""


def _scaled(step: Step, right: Tensor, wrong: Tensor, clean: Trace, example: Example) -> str:
    finite = right.isfinite() & (right.abs() > 1e-9)
    if int(finite.sum()) < 2 or not torch.equal(right.isinf(), wrong.isinf()):
        return ""
    ratios = (wrong / right)[finite]
    if not wrong.any():
        return f"All of {_called(step)} is 0."
    if _same(ratios, ratios[:1].expand_as(ratios)) and _same(wrong[finite], right[finite] * ratios[0]):
        return f"Every number of {_called(step)} is {_short(ratios[0])} times what it should be."
    return ""


def _called(step: Step) -> str:
    """What a step returned goes by its name; a result that is more than one word is spoken of."""
    return f"the {step.name}" if " " in step.name or step.name in ("output", "weights") else step.name


def _repeated(step: Step, right: Tensor, wrong: Tensor, clean: Trace, example: Example) -> str:
    """Is a row the same as one before it, though it should not be?"""
    if right.dim() < 2 or right.shape[-1] < 2:
        return ""
    names = rows(step.name, right, example)
    flat, should = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (wrong, right))
    for number, before in ((i, j) for i in range(len(flat)) for j in range(i)):
        if flat[number].any() and _same(flat[number], flat[before]) and not _same(should[number], should[before]):
            return f"{names[number][:1].upper()}{names[number][1:]} is {names[before]} once more."
    return ""


def _shifted(step: Step, right: Tensor, wrong: Tensor, clean: Trace, example: Example) -> str:
    finite = right.isfinite() & wrong.isfinite()
    if int(finite.sum()) < 2 or not torch.equal(right[~finite], wrong[~finite]):
        return ""
    apart = (wrong - right)[finite]
    if _same(apart, apart[:1].expand_as(apart)):
        return f"Every number of {_called(step)} is {_short(apart[0].abs())} too {'large' if apart[0] > 0 else 'small'}."
    return ""


def _sums(weights: Tensor, example: Example) -> str:
    """Which rows do not sum to 1, where there is no sink to take a share?"""
    if example.case.sinks or weights.dim() < 2:
        return ""
    expected = example.inputs.visible().any(-1)
    sums = weights.sum(-1)
    if sums.shape != expected.shape or bool(((sums - expected.to(sums.dtype)).abs() < 0.005).all()):
        return ""
    said = f"The rows sum to {_many(sums)}, and should sum to {_many(expected.to(sums.dtype))}."
    across = weights.sum(-2)
    return said + (" It is the columns that sum to 1." if bool(((across - 1).abs() < 0.005).all() & expected.all()) else "")


def _many(sums: Tensor) -> str:
    """The numbers, or the one that they all are."""
    numbers = [_short(number) for number in sums.flatten()]
    return numbers[0] if len(set(numbers)) == 1 else ", ".join([*numbers[:6], *(["..."] if len(numbers) > 6 else [])])


def looks_at_the_hidden(weights: Tensor, example: Example) -> list[str]:
    """Who gives weight to what is hidden from it?"""
    seen = example.inputs.visible()
    if weights.shape != seen.shape:
        return []
    looks = ((weights > 0.005) & ~seen).nonzero()
    if not len(looks):
        return []
    place = tuple(int(i) for i in looks[0])
    query = _place(place[0], place[1], f"query {place[2]}", example)
    return [f"{query} gives {_short(weights[place])} of its weight to key {place[3]}, which is hidden from it."]


def _shown(step: Step, right: Tensor, wrong: Tensor, example: Example) -> str:
    """Which keys are hidden that should not be, or the other way about?"""
    if right.dim() < 2 or step.what == "empty rows":
        return ""
    if step.name == "mask":
        hidden = (right == -math.inf, wrong == -math.inf)
    else:
        hidden = (right == 0, wrong == 0)  # boolean masks
    opened, closed = hidden[0] & ~hidden[1], ~hidden[0] & hidden[1]
    parts = []
    for places, words in ((opened, "is no longer hidden from"), (closed, "is hidden from")):
        if places.any():
            *others, query, key = (int(i) for i in places.nonzero()[0])
            where = _place(others[0], others[1], f"query {query}", example) if len(others) == 2 else f"query {query}"
            parts.append(f"key {key} {words} {where[0].lower()}{where[1:]}")
    return f"{'; '.join(parts)[0].upper()}{'; '.join(parts)[1:]}." if parts else ""


def _place(sample: int, head: int, query: str, example: Example) -> str:
    parts = [f"sample {sample}"] * (example.case.batch > 1) + [f"head {head}"] * (example.case.num_heads > 1) + [query]
    return ", ".join(parts)[0].upper() + ", ".join(parts)[1:]


def _same(a: Tensor, b: Tensor) -> bool:
    return bool((((a - b).abs() <= 1e-9 * b.abs().clamp(min=1)) | (a == b)).all())


def _short(number: Tensor) -> str:
    return f"{round(float(f'{float(number):.9g}'), 2) + 0.0:g}"


_Look = Callable[[Step, Tensor, Tensor, Trace, Example], str]
_FIRST: tuple[_Look, ...] = (_another_step, _moved_rows, _exchanged, _moved_numbers, _scaled, _shifted, _repeated)
