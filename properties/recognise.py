"""Reads off a module which of its parameters is which projection, where names and shapes leave no doubt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from properties.inputs import Inputs, Weights

# The last word of a name that is no "weight" or "bias" says what it is; `heads.1.query.weight` is one head's part of it.
_WORDS = {
    "q": r"q|wq|w_q|query|queries|q_?proj|proj_q|q_?lin(ear)?|query_proj|to_q|toqueries",
    "k": r"k|wk|w_k|keys?|k_?proj|proj_k|k_?lin(ear)?|key_proj|to_k|tokeys",
    "v": r"v|wv|w_v|values?|v_?proj|proj_v|v_?lin(ear)?|value_proj|to_v|tovalues",
    "o": r"o|wo|w_o|out|output|(o|out|output|c)?_?proj(ection)?|out_?lin(ear)?|to_out|dense|fc(_out)?|unify_?heads",
    "qkv": r"qkv|wqkv|w_qkv|in_?proj|qkv_?proj|to_qkv|c_attn|attn|in_proj_(weight|bias)",
}


Parameters = Callable[[Weights], Mapping[str, Tensor]]  # our weights under the names of a module's parameters


@dataclass(frozen=True)
class Part:
    """A parameter of a module, and the rows of our projections that it holds, one under the other."""

    parameter: str
    shape: tuple[int, ...]
    rows: tuple[tuple[str, slice], ...]  # fields of Weights, and which of their rows


@dataclass(frozen=True)
class Layout:
    """Which parameter of a module is which."""

    parts: tuple[Part, ...]

    @property
    def biases(self) -> str:
        """The projections that have one."""
        fields = {field for part in self.parts for field, _ in part.rows}
        return "".join(letter for letter in "qkvo" if f"b_{letter}" in fields)

    def __call__(self, weights: Weights) -> Mapping[str, Tensor]:
        """Our weights under the module's names; a bias that we do not have is zero."""
        named = {}
        for part in self.parts:
            rows = [(getattr(weights, field), where) for field, where in part.rows]
            if any(value is None for value, _ in rows):
                named[part.parameter] = weights.w_q.new_zeros(part.shape)
            else:
                pieces = [value[where] for value, where in rows]
                named[part.parameter] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return named

    def __str__(self) -> str:
        return ", ".join(
            f"{part.parameter} = {' over '.join(field for field, _ in part.rows)}"
            for part in self.parts
            if part.rows[0][0][0] == "w"
        )


def recognise(module: nn.Module, inputs: Inputs) -> Layout:
    """Return the layout of a module that was built for inputs of these sizes.

    Linear layers called after what they make, all of it or one head's part, or q, k and v in one, in this order.

    Raises ValueError, with what to do, if any of its parameters is in doubt.
    """
    layout = _recognise(module, inputs)
    if layout is None:
        listed = ", ".join(f"{name} {list(parameter.shape)}" for name, parameter in module.named_parameters())
        raise ValueError(
            f"cannot tell which parameter of {type(module).__name__} is which projection: {listed or 'it has none'}. Say it with "
            f"parameters=lambda w: {{'name': w.w_q, ...}} (q, k and v in one: torch.cat([w.w_q, w.w_k, w.w_v])), or use "
            f"black_box(...), which leaves the weights alone and to which fewer laws apply"
        )
    return layout


def biases_of(parameters: Parameters, module: nn.Module, inputs: Inputs) -> str:
    """The projections to whose biases somebody's `parameters` gives a place in the module.

    Raises ValueError, with what to do, if what it gives does not fit the parameters of the module.
    """
    if not callable(parameters):
        example = "lambda w: {'out.weight': w.w_o}"
        raise ValueError(f"parameters must be a function of the weights, like `{example}`, got {parameters!r}")
    without = inputs.with_weights(b_q=None, b_k=None, b_v=None, b_o=None).weights
    try:
        given = dict(parameters(inputs.weights))
        dict(parameters(without))
    except Exception as error:
        raise ValueError(
            f"parameters raised {type(error).__name__}: {error}. A layer without biases is asked for as well, if the constructor "
            f"takes `bias`: there w.b_q and the others are None"
        ) from error
    own = {name: list(parameter.shape) for name, parameter in module.named_parameters()}
    shapes = {name: list(value.shape) for name, value in given.items()}
    if unknown := [name for name in shapes if name not in own]:
        raise ValueError(f"parameters gives {', '.join(unknown)}, and the module has only {', '.join(own)}")
    if forgotten := [name for name in own if name not in shapes]:
        raise ValueError(f"parameters gives {', '.join(shapes)}, and leaves {', '.join(forgotten)} as they were built")
    if wrong := [name for name in own if own[name] != shapes[name]]:
        listed = ", ".join(f"{name} as {shapes[name]}, which is {own[name]} in the module" for name in wrong)
        raise ValueError(f"parameters gives {listed}; a weight is [out, in] here, as in nn.Linear: for x @ W give its transpose")
    return "".join(letter for letter in "qkvo" if _reads(parameters, inputs.weights, f"b_{letter}", given))


def with_zero_biases(parameters: Parameters) -> Parameters:
    """The same for a module that always has its biases: those we do not have are zero."""

    def filled(w: Weights) -> Mapping[str, Tensor]:
        zeros = {f"b_{n}": getattr(w, f"w_{n}").new_zeros(len(getattr(w, f"w_{n}"))) for n in "qkvo"}
        return parameters(replace(w, **{name: zero for name, zero in zeros.items() if getattr(w, name) is None}))

    return filled if callable(parameters) else parameters


def _reads(parameters: Parameters, weights: Weights, field: str, given: Mapping[str, Tensor]) -> bool:
    changed = parameters(replace(weights, **{field: getattr(weights, field) + 1}))
    return any(not torch.equal(value, given[name]) for name, value in changed.items())


def _recognise(module: nn.Module, inputs: Inputs) -> Layout | None:
    d_model = inputs.x.shape[2]
    height = {letter: getattr(inputs.weights, f"w_{letter}").shape[0] for letter in "qkvo"}
    found = {f"{kind}_{letter}": 0 for kind in "wb" for letter in height}  # rows so far
    parts: list[Part] = []
    for name, parameter in module.named_parameters():
        letters, kind = _meaning(name)
        size = parameter.shape[0] if parameter.dim() else 0
        if not letters or parameter.dim() != (2 if kind == "w" else 1):
            return None
        if kind == "w" and (parameter.shape[1] != d_model or (size == d_model and not _of_linear(module, name))):
            return None  # a square one that is not a Linear's may be meant either way round
        rows: list[tuple[str, slice]] = []
        for letter in letters:
            share = size if len(letters) == 1 else height[letter]
            field = f"{kind}_{letter}"
            rows.append((field, slice(found[field], found[field] + share)))
            found[field] += share
        if sum(where.stop - where.start for _, where in rows) != size:
            return None
        parts.append(Part(name, tuple(parameter.shape), tuple(rows)))
    complete = all(found[f"w_{n}"] == rows and found[f"b_{n}"] in (0, rows) for n, rows in height.items())
    return Layout(tuple(parts)) if complete else None


def _meaning(name: str) -> tuple[str, str]:
    """The letters of the projections that a parameter belongs to, and w or b."""
    *path, last = name.split(".")
    kind = "b" if last.endswith("bias") else "w"
    words = [word for word in path if not word.isdigit()]
    word = words[-1] if last in ("weight", "bias") and words else re.sub(r"[._]?(weight|bias)$", "", last)
    for letters, pattern in _WORDS.items():
        if re.fullmatch(pattern, word, re.IGNORECASE):
            return letters, kind
    return "", kind


def _of_linear(module: nn.Module, name: str) -> bool:
    return isinstance(module.get_submodule(name.rpartition(".")[0]), nn.Linear)
