"""How far rounding may lead a subject whose numbers nobody knows: one with weights of its own, or with positions.

Rounding is, to first order, a small change of what goes in (Higham, Accuracy and Stability of Numerical Algorithms, chapter 1).
So the tokens are moved a little, by a known relative amount; how far the output follows, scaled down to the unit roundoff and
up by the number of roundings in a sum, bounds what rounding does to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from properties.inputs import Inputs
from properties.rounding import STEPS, Bounds

_MOVES = 2  # random directions; the larger effect counts


def measured_bounds(run: Callable[[Inputs], tuple[Tensor, Tensor | None]], inputs: Inputs, precision: torch.dtype) -> Bounds:
    """Return the same bounds as `properties.rounding.bounds`, for every number the same one.

    `run` must be the same function each time: a new layer, with random numbers from their beginning. `heads` is meant for an
    identity as out-projection.
    """
    B, h, T, S = inputs.scores_shape
    d = inputs.x.shape[2]
    u = torch.finfo(precision).eps / 2
    step = math.sqrt(u)
    roundings = d + S + T + 2 * STEPS
    base = run(inputs)
    moved = [run(_moved(inputs, step, seed)) for seed in range(_MOVES)]

    def bound(which: int) -> float:
        reference = base[which]
        if reference is None:
            return 0.0
        follow = max(_largest(m - reference) for other in moved if (m := other[which]) is not None)
        return 2 * roundings * u * (follow / step + _largest(reference))

    output, weights = bound(0), bound(1)
    return Bounds(
        torch.full((B, T, d), output, dtype=torch.float64),
        torch.full((B, h, T, S), weights, dtype=torch.float64),
        torch.full((B, h, T, inputs.d_head), output, dtype=torch.float64),
        relative=roundings * u,
        unit=u,
    )


def _moved(inputs: Inputs, step: float, seed: int) -> Inputs:
    random = torch.Generator().manual_seed(seed)

    def move(tokens: Tensor) -> Tensor:
        signs = torch.randint(0, 2, tokens.shape, generator=random) * 2 - 1
        return tokens * (1 + step * signs).to(tokens.dtype)

    return replace(inputs, x=move(inputs.x), context=None if inputs.context is None else move(inputs.context))


def _largest(tensor: Tensor) -> float:
    finite: Tensor = tensor.detach().to(torch.float64).abs().nan_to_num(0.0, 0.0)
    return float(finite.max().item()) if finite.numel() else 0.0
