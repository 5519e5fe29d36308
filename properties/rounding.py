"""How far rounding alone may lead a correct attention from the truth.

A running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, chapter 3): the formula is gone through once
more with absolute values. A sum of n products, in any order, is off by at most about n*u times the sum of their absolute values,
where u is the unit roundoff of the dtype; what its factors were off by is carried along. So the bounds know the sizes in the
case: large scores excuse more, small ones less. Two correct results may each be off, hence twice the bound between them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import Inputs, make_inputs, merge_heads, project, split_heads
from properties.mechanisms import Mechanisms, root_mean_square, rotated_sizes, soft_cap, softmax_with_sinks

STEPS = 6  # roundings of an element outside the sums: scale, mask, exp, division, storing, dropout


@dataclass(frozen=True)
class Bounds:
    """Absolute errors that rounding explains, float64."""

    output: Tensor  # [B, T, d]
    weights: Tensor  # [B, h, T, S]
    heads: Tensor  # [B, h, T, d_head], before they are merged
    relative: float  # the largest relative error of a weight
    unit: float  # the unit roundoff


def bounds(inputs: Inputs, dtype: torch.dtype = torch.float64) -> Bounds:
    """Return the bounds for a subject that computes in `dtype`, at these inputs."""
    info = torch.finfo(dtype)
    u = info.eps / 2
    inputs = inputs.to(torch.float64).ungrouped()
    w, d_head = inputs.weights, inputs.d_head
    d, keys = inputs.x.shape[2], inputs.keys.shape[1]

    given, (q_places, k_places) = inputs.mechanisms, inputs.places()
    q, k, _ = inputs.compared()
    q_size, k_size, v_size = inputs.absolute().projected()
    q_error, k_error, v_error = ((d + STEPS) * u * size for size in (q_size, k_size, v_size))
    raw_q, raw_k, _ = inputs.projected()
    q_size, q_error = _turned(*_normed(raw_q, q_size, q_error, w.n_q, given.qk_norm_eps, u), q_places, given, u)
    k_size, k_error = _turned(*_normed(raw_k, k_size, k_error, w.n_k, given.qk_norm_eps, u), k_places, given, u)
    bias = inputs.bias()
    visible = bias > -torch.inf
    scale = d_head**-0.5
    scores = soft_cap(q @ k.mT * scale, given.soft_cap) + bias  # a cap is no steeper than 1: it passes no more error on
    products = q_size @ k_size.mT
    errors = scale * (q_error @ k_size.mT + q_size @ k_error.mT + (d_head + STEPS) * u * products)
    steps = 2 if given == Mechanisms() else STEPS  # a bias for positions, and a cap, are computed, too
    errors = (errors + steps * u * (scores.abs() + bias.abs())).masked_fill(~visible, 0.0)  # also those of adding the mask
    p = softmax_with_sinks(scores.masked_fill(~visible, -torch.inf), w.sinks).nan_to_num(0.0)
    # exp turns an absolute error of the scores into a relative one of the weights, the row's sum likewise.
    relative = torch.expm1(errors + errors.amax(-1, keepdim=True)) + (keys + STEPS) * u
    p_error = (p * relative + info.tiny).nan_to_num(1.0).clamp(max=1.0)  # 0 * inf: so large an error excuses everything
    p_error = p_error.masked_fill(~visible, 0.0)
    heads = (p_error + (keys + STEPS) * u * p) @ v_size + p @ v_error
    w_o, b_o = w.w_o.abs(), None if w.b_o is None else w.b_o.abs()
    output = project(merge_heads(heads), w_o, None) + (d + STEPS) * u * project(merge_heads(p @ v_size), w_o, b_o)
    return Bounds(2 * output, 2 * p_error, 2 * heads, float(relative.max()) if relative.numel() else 0.0, u)


def largest_number(inputs: Inputs) -> float:
    """The largest number met on the way; if it does not fit the dtype, overflow is no mistake."""
    full = inputs.to(torch.float64).ungrouped()
    q, k, _ = _compared_sizes(full)
    met = (*full.absolute().projected(), q @ k.mT)
    return max([float(numbers.max()) for numbers in met if numbers.numel()], default=0.0)


def _normed(vectors: Tensor, sizes: Tensor, errors: Tensor, scale: Tensor | None, eps: float, u: float) -> tuple[Tensor, Tensor]:
    """Sizes and errors after the QK norm, which divides the errors, too, and adds that of the divisor."""
    if scale is None:
        return sizes, errors
    root, length = root_mean_square(vectors, eps), vectors.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    sizes, errors = vectors.abs() / root * scale.abs(), errors / root * scale.abs()
    return sizes, errors + sizes * ((errors * root).norm(dim=-1, keepdim=True) / length + (vectors.shape[-1] + STEPS) * u)


def _turned(sizes: Tensor, errors: Tensor, positions: Tensor, given: Mechanisms, u: float) -> tuple[Tensor, Tensor]:
    """Sizes and errors after the rotation: of both features that turn, and of the angle, which grows with the position."""
    if not given.placing.startswith("rotary"):
        return sizes, errors
    sizes, errors = (rotated_sizes(both, positions, given) for both in (sizes, errors))
    return sizes, errors + sizes * u * (STEPS + 4 * positions[:, None, :, None])


@functools.lru_cache(maxsize=4096)
def rounding(case: Case, dtype: torch.dtype = torch.float64, precision: torch.dtype | None = None) -> Bounds:
    """The bounds at the inputs of a case in `dtype`, for a subject that computes in `precision`, if that is another."""
    return bounds(make_inputs(case, dtype), precision or dtype)


def gradient_bounds(inputs: Inputs, cotangent: Tensor, bound: Bounds) -> dict[str, float]:
    """Return a bound for the error of any element of each gradient of (output * cotangent).sum(), by the name of the leaf.

    The backward pass with absolute values, the largest element of each gradient, times the relative error of what it is made of:
    that of the weights, which `bound` has, and that of the sums.
    """
    inputs = inputs.to(torch.float64)
    B, h, T, S = inputs.scores_shape
    group = h // inputs.num_kv_heads
    full = inputs.ungrouped()
    w, d_head = full.weights, full.d_head

    q, k, v = _compared_sizes(full)
    d_output = cotangent.abs()
    d_heads = split_heads(d_output @ w.w_o.abs(), d_head)
    d_scores = 2 * d_heads @ v.mT  # weights are at most 1
    d_q, d_k, d_v = d_scores @ k, d_scores.mT @ q, d_heads.sum(-2, keepdim=True).expand_as(v)
    raw_q, raw_k, _ = full.projected()
    places, given = full.places(), full.mechanisms
    d_q, d_n_q = _before_normed(rotated_sizes(d_q, places[0], given), raw_q, w.n_q, given.qk_norm_eps)
    d_k, d_n_k = _before_normed(rotated_sizes(d_k, places[1], given), raw_k, w.n_k, given.qk_norm_eps)

    d_q, d_k, d_v = merge_heads(d_q), group * merge_heads(d_k), group * merge_heads(d_v)
    to_x, to_keys = d_q @ w.w_q.abs(), d_k @ w.w_k.abs() + d_v @ w.w_v.abs()
    products = {
        "q": (d_q, full.x),
        "k": (d_k, full.keys),
        "v": (d_v, full.keys),
        "o": (d_output, merge_heads(v.sum(-2, True).expand_as(q))),
    }
    sizes = {"x": to_x if full.context is not None else to_x + to_keys, "context": to_keys, "n_q": d_n_q, "n_k": d_n_k}
    sizes |= dict.fromkeys(("mask", "sinks", "table"), d_scores.sum())
    for name, (d_projected, tokens) in products.items():
        sizes[f"w_{name}"] = torch.einsum("btf,bte->fe", d_projected, tokens.abs())
        sizes[f"b_{name}"] = d_projected.sum((0, 1))
    relative = bound.relative + (full.x.shape[2] + d_head + T + S + B * T + STEPS) * bound.unit
    return {name: 4 * relative * float(magnitude.max()) for name, magnitude in sizes.items()}


def _compared_sizes(full: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """The sizes of what queries and keys are made of when they are compared, and of the values."""
    q, k, v = full.absolute().projected()
    raw_q, raw_k, _ = full.projected()
    places, given, w = full.places(), full.mechanisms, full.weights
    q, k = (_normed(raw, size, size, n, given.qk_norm_eps, 0.0)[0] for raw, size, n in ((raw_q, q, w.n_q), (raw_k, k, w.n_k)))
    return rotated_sizes(q, places[0], given), rotated_sizes(k, places[1], given), v


def _before_normed(gradient: Tensor, vectors: Tensor, scale: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Sizes of the gradients by what goes into the QK norm, and by its scale."""
    if scale is None:
        return gradient, gradient.sum()
    root = root_mean_square(vectors, eps)
    largest = 2 * vectors.shape[-1] * gradient.amax(-1, keepdim=True) * scale.abs().amax() / root
    return largest.expand_as(vectors), gradient.sum() * vectors.shape[-1]
