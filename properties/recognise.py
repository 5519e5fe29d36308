"""Reads off a module which of its parameters is which projection, where names and shapes leave no doubt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from properties.inputs import Inputs, Weights

# The last word of a name that is no "weight" or "bias" says what it is; `heads.1.query.weight` is one head's part of it.
_WORDS = {
    "q": r"q|wq|w_q|query|queries|q_?proj|proj_q|q_?lin(ear)?|query_proj|to_q|toqueries",
    "k": r"k|wk|w_k|keys?|k_?proj|proj_k|k_?lin(ear)?|key_proj|to_k|tokeys",
    "v": r"v|wv|w_v|values?|v_?proj|proj_v|v_?lin(ear)?|value_proj|to_v|tovalues",
    "o": r"o|wo|w_o|out|output|(o|out|output|c)?_?proj(ection)?|out_?lin(ear)?|to_out|dense|fc(_out)?|unify_?heads",
    "qkv": r"qkv|wqkv|w_qkv|in_?proj|qkv_?proj|to_qkv|c_attn|attn|query_key_value|in_proj_(weight|bias)",
}


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


def _recognise(module: nn.Module, inputs: Inputs) -> Layout | None:
    d_model = inputs.x.shape[2]
    height = {letter: getattr(inputs.weights, f"w_{letter}").shape[0] for letter in "qkvo"}
    found = dict.fromkeys(height, 0)  # rows so far
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
            start = found[letter] if kind == "w" else found[letter] - share  # a bias follows its weight
            rows.append((f"{kind}_{letter}", slice(start, start + share)))
            if kind == "w":
                found[letter] += share
        if sum(where.stop - where.start for _, where in rows) != size:
            return None
        parts.append(Part(name, tuple(parameter.shape), tuple(rows)))
    return Layout(tuple(parts)) if found == height else None


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
