"""The inputs of a worked example: small, and with numbers that say where they belong.

Token 1, feature 2 is 12. Where such a number turns up in another place, anybody can see where it came from. Random
numbers are for what cannot be seen in these.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from faults.fault import Equivalent, Fault, sections_of, subject_of
from properties.case import MASKS, SAID_OTHERWISE, Case, sample
from properties.inputs import Inputs, Weights, make_inputs

EACH = 8  # cases of one kind
SEEDS = 6  # of masks, documents, positions, and of random numbers
TOKENS = (2, 3)  # without a mask, and with one: so many show its triangle
DRAWN = 100  # cases, if all else fails
# Where an equivalent may go its other way.
_WAYS: tuple[dict[str, Any], ...] = (
    {"bias": True},
    {"num_heads": 4, "num_kv_heads": 2},
    {"mask": "causal"},
    {"mask": "is_causal", "window": 1},
    {"mask": "is_causal"},
    {"mask": "full"},
    {"mask": "empty"},
    {"queries": 5},
    {"dropout": 0.5},
)
_PLAIN = {"bias": False, "dropout": 0.0, "layout": "contiguous", "num_kv_heads": None}
CONTEXT = 50  # what the tokens of a context are numbered from
_DRAWN_MASKS = ("padding", "causal+padding", "is_causal+padding", "sample", "head", "empty", *SAID_OTHERWISE)


@dataclass(frozen=True)
class Example:
    """One set of inputs, and what is said of it."""

    case: Case
    inputs: Inputs
    words: str
    numbered: bool  # do the numbers say which token and feature they are?


def smallest_case(fault: type[Fault]) -> Case:
    """The smallest case that reveals it, as its docstring has it; for an equivalent, a plain case with its mechanisms."""
    text = sections_of(fault).get("Smallest case")
    if text:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError(f"{fault.__name__}: {text!r} is no case")
        return Case(**{keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords})
    given = {name: list(values) for name, values in subject_of(fault).supports.fields().items() if values}
    named: dict[str, Any] = {
        name: given[name][0] for name in ("mask", "placing", "soft_cap", "sinks", "qk_norm") if name in given
    }
    if 2 in given.get("window", ()):
        named["window"] = 2
    return Case(queries=3 if "window" in named else 2, d_head=2, **named)


def examples(fault: type[Fault]) -> Iterator[Example]:
    """Examples on which the fault can show, from the plainest on; the last have random numbers."""
    smallest = smallest_case(fault)
    for case in _variants(fault, smallest):
        yield from (_numbered(case, mixed) for mixed in (False, True))
    for seed in range(SEEDS):
        for case in (replace(smallest, seed=seed), replace(smallest, seed=seed, queries=max(smallest.queries, 2))):
            if shows(fault, case):
                yield _random(case)


def others(fault: type[Fault]) -> Iterator[Example]:
    """More of them, for what shows on none of these."""
    for case in _others(fault):
        if case.d_model <= 10 and case.encoding == "bool":
            yield _numbered(case, False)
        yield _random(case)


def _variants(fault: type[Fault], smallest: Case) -> Iterator[Case]:
    """The smallest case made larger, and what is like it; of each a few on which the fault can show."""
    for changed in ({}, *_changes(fault, smallest)):
        shown = (case for case in cases(replace(smallest, **changed)) if shows(fault, case))
        yield from itertools.islice(shown, EACH)


def _changes(fault: type[Fault], smallest: Case) -> Iterator[dict[str, Any]]:
    """A mask that hides something where it hid nothing, a second head, positions that are given."""
    fields = subject_of(fault).supports.fields()
    if issubclass(fault, Equivalent):
        yield from _WAYS
    if smallest.mask == "full":
        masks = [mask for mask in ("causal", "padding") if mask in fields.get("mask", MASKS)]
        yield from ({"mask": mask, "encoding": encoding} for mask in masks for encoding in (smallest.encoding, "bias"))
    if smallest.num_heads == 1:
        yield {"num_heads": 2}
    if "given" in fields.get("positions", ()):
        yield {"positions": "given"}


def _others(fault: type[Fault]) -> list[Case]:
    """Some random cases on which it shows, the smallest first: what shows on the smallest case of all may be a law's doing."""
    random, fields = Random(0), subject_of(fault).supports.fields()
    plain = {name: (default,) for name, default in _PLAIN.items() if default in fields.get(name, (default,))}
    drawn = (sample(random, {**fields, **plain}) for _ in range(DRAWN))
    return sorted((case for case in drawn if shows(fault, case)), key=lambda case: case.batch * case.T * case.S * case.d_model)[
        :8
    ]


def _random(case: Case) -> Example:
    return Example(case, make_inputs(case), f"{_sizes(case)}. Random numbers, those of {case!r}.{said(case)}", False)


def shows(fault: type[Fault], case: Case) -> bool:
    """Can the fault show on a case of these sizes and this mask? For an equivalent: yes, it would, were it a fault."""
    return fault.visible(case) or issubclass(fault, Equivalent)


def cases(smallest: Case) -> Iterator[Case]:
    """What is like the smallest case, with a token or two more, and features enough to see them move."""
    hides = smallest.mask not in ("none", "full")
    tokens = dict.fromkeys(max(number, smallest.queries) for number in (TOKENS[hides], *TOKENS, 4))
    contexts = (None,) if smallest.keys is None else (3, 2, smallest.keys)
    widths: list[tuple[int, int | None]] = [(d, smallest.rotary_width) for d in dict.fromkeys((max(2, smallest.d_head), 3, 1))]
    if smallest.placing.startswith("rotary"):
        widths = [(2, None), (4, None), (4, 2), (6, 4)]
    seeds = range(SEEDS) if smallest.mask in _DRAWN_MASKS or smallest.positions == "given" else (0,)
    for queries, keys, (d_head, width), seed in itertools.product(tokens, contexts, widths, seeds):
        case = replace(smallest, queries=queries, keys=keys, d_head=d_head, rotary_width=width, seed=seed)
        if case.d_model <= 10:
            yield case


def _numbered(case: Case, mixed: bool) -> Example:
    """Token t, feature f is 10t + f. `mixed`: every row of a weight also takes in the next feature, half of it."""
    drawn = make_inputs(case)
    d, features = case.d_model, torch.arange(case.d_model, dtype=torch.float64)
    identity = torch.eye(d, dtype=torch.float64)
    if mixed:
        identity = identity + torch.diag(torch.full((d - 1,), 0.5, dtype=torch.float64), 1)
    read = identity.unflatten(0, (case.g, -1, case.d_head))[:, 0].flatten(0, 1)  # rows of the first head of each group
    weights = Weights(w_q=identity / 10, w_k=read / 10, w_v=read, w_o=identity, **_parameters(case))
    signs = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)[: case.batch, None, None]

    def tokens(number: int, first: int) -> Tensor:
        return signs * (first + 10 * torch.arange(number, dtype=torch.float64)[:, None] + features)

    inputs = replace(
        drawn,
        x=tokens(case.T, 0),
        context=None if case.keys is None else tokens(case.S, CONTEXT),
        weights=weights,
        mask=_plain(drawn.mask) if case.encoding == "bias" else drawn.mask,
    ).laid_out(case.layout)
    return Example(case, inputs, _words(case, inputs, mixed), True)


def _parameters(case: Case) -> dict[str, Tensor]:
    """Small whole numbers for the parameters of mechanisms."""
    heads = torch.arange(case.num_heads, dtype=torch.float64)
    found: dict[str, Tensor] = {}
    if case.bias:
        kv = case.g * case.d_head
        sizes = {"b_q": case.d_model, "b_k": kv, "b_v": kv, "b_o": case.d_model}
        found |= {name: torch.full((size,), 0.5, dtype=torch.float64) for name, size in sizes.items()}
    if case.qk_norm:
        features = torch.arange(case.d_head, dtype=torch.float64)
        found |= {"n_q": 1 + features, "n_k": 2 + features.flip(0)}
    if case.sinks:
        found["sinks"] = 1 + heads
    if case.placing == "relative_bias":
        found["table"] = (1 + torch.arange(4, dtype=torch.float64))[:, None] + 10 * heads
    return found


def _plain(mask: Tensor | None) -> Tensor | None:
    """The same mask, with 0, 1 or 2 for its finite numbers."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    queries, keys = (torch.arange(size, dtype=torch.float64) for size in mask.shape[-2:])
    numbers = (queries[:, None] + 2 * keys) % 3
    return numbers.expand(mask.shape).masked_fill(mask == -math.inf, -math.inf)


# What is said of them.


def _words(case: Case, inputs: Inputs, mixed: bool) -> str:
    weights = "W_Q and W_K are a tenth of the identity, W_V and W_O the identity"
    if mixed:
        weights = "W_V and W_O give every feature half of the next one besides itself, W_Q and W_K a tenth of that"
    if case.g < case.num_heads:
        weights += "; key/value head i reads the features of the first query head of its group"
    example = f"token 1, head 0, feature 0 is {_code(inputs.x[0, min(1, case.T - 1), 0])}" if case.T > 1 else ""
    numbers = f"Token t, feature f is {'10t + f' if case.num_heads == 1 else '10t + f, with f counted through the heads'}"
    parts = [numbers + (f" ({example})" if example and case.num_heads > 1 else "")]
    if case.batch > 1:
        parts.append("in sample 1 with a minus")
    if case.keys is not None:
        parts.append(f"tokens of the context are numbered from {CONTEXT} on")
    mechanisms = ["All biases are 0.5."] * case.bias
    if case.sinks:
        mechanisms.append("The sink of head i is 1 + i.")
    if case.qk_norm:
        mechanisms.append("The norm of queries is multiplied by 1, 2, ..., that of keys by the same backwards, plus 1.")
    if case.placing == "relative_bias":
        mechanisms.append("Bucket b of the table is 1 + b for head 0, and 10 more for each head after it.")
    return f"{_sizes(case)}. {', '.join(parts)}. {weights}.{''.join(' ' + text for text in mechanisms)}{said(case)}"


def _sizes(case: Case) -> str:
    def many(number: int, word: str) -> str:
        return f"{number} {word}{'' if number == 1 else 's'}"

    samples = f"{many(case.batch, 'sample')} of " if case.batch > 1 else ""
    context = "" if case.keys is None else f", a context of {many(case.S, 'token')}"
    groups = f" that share {many(case.g, 'key/value head')}" if case.g < case.num_heads else ""
    return f"{samples}{many(case.T, 'token')}{context}, {many(case.num_heads, 'head')}{groups} of {many(case.d_head, 'feature')}"


def said(case: Case) -> str:
    """Who sees whom, and what else the call is given, in sentences."""
    inputs = make_inputs(case)
    parts = []
    if case.mask != "none":
        parts.append(_mask_words(case, inputs))
    if case.window is not None:
        parts.append(f"The window is {case.window}.")
    if case.soft_cap is not None:
        parts.append(f"The soft cap is {case.soft_cap:g}.")
    if case.placing.startswith("rotary"):
        pairs = "neighbouring features turn together" if case.placing.endswith("interleaved") else "the halves turn together"
        part = f", of the first {case.rotary_width} features" if case.rotary_width else ""
        parts.append(f"Rotary: {pairs}{part}.")
    if case.stretch != 1:
        parts.append(f"Positions are divided by {case.stretch:g}.")
    if inputs.positions is not None:
        parts.append(f"Positions: {_listed(inputs.positions)}.")
    if inputs.documents is not None:
        parts.append(f"Documents: {_listed(inputs.documents)}.")
    if inputs.prefix is not None:
        parts.append(f"Length of the prefix: {_listed(inputs.prefix[:, None])}.")
    if case.dropout:
        parts.append(f"Dropout is {case.dropout:g}.")
    if case.layout != "contiguous":
        parts.append(f"x is stored {case.layout}.")
    return "".join(" " + part for part in parts)


def _mask_words(case: Case, inputs: Inputs) -> str:
    seen = inputs.visible()
    how = {"bool": "a boolean mask", "additive": "a mask of 0 and -inf", "bias": "a mask of numbers to add"}[case.encoding]
    told = {"is_causal": "the causal flag", "prefix": "its prefix", "documents": "the documents"}.get(case.mask.partition("+")[0])
    given = " and ".join([*([told] if told else []), *([how] if inputs.mask is not None else [])])
    if seen.all():
        return f"{given[0].upper()}{given[1:]}, which hides nothing."
    samples = [0] if bool((seen == seen[:1]).all()) else list(range(case.batch))
    heads = [0] if bool((seen == seen[:, :1]).all()) else list(range(case.num_heads))
    lines = []
    for row_of, head in itertools.product(samples, heads):
        where = [f"sample {row_of}"] * (len(samples) > 1) + [f"head {head}"] * (len(heads) > 1)
        rows = [f"query {query} sees {_keys(row)}" for query, row in enumerate(seen[row_of, head])]
        if len(rows) > 1 and bool((seen[row_of, head] == seen[row_of, head, :1]).all()):
            rows = [f"every query sees {_keys(seen[row_of, head, 0])}"]
        lines.append(", ".join([*where, "; ".join(rows)]))
    return f"By {given}: {'. '.join(lines)}."


def _keys(row: Tensor) -> str:
    keys = [str(int(key)) for key in row.nonzero().flatten()]
    return f"key{'s' * (len(keys) > 1)} {', '.join(keys)}" if keys else "nothing"


def _listed(rows: Tensor) -> str:
    return " / ".join(", ".join(str(int(number)) for number in row) for row in rows)


def _code(number: Tensor) -> str:
    return f"{float(number):g}"
