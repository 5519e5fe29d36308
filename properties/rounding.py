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

STEPS = 6  # roundings of an element outside the sums: scale, mask, exp, division, storing, dropout


@dataclass(frozen=True)
class Bounds:
    """Absolute errors that rounding explains, float64."""

    output: Tensor  # [B, T, d]
    weights: Tensor  # [B, h, T, S]
    heads: Tensor  # [B, h, T, d_head], before they are merged
    relative: float  # the largest relative error of a weight
    unit: float  # the unit roundoff
    largest: float  # the largest number met on the way; if it does not fit the dtype, overflow is no mistake


def bounds(inputs: Inputs, dtype: torch.dtype = torch.float64) -> Bounds:
    """Return the bounds for a subject that computes in `dtype`, at these inputs."""
    info = torch.finfo(dtype)
    u = info.eps / 2
    inputs = inputs.to(torch.float64).ungrouped()
    w, d_head = inputs.weights, inputs.d_head
    d, keys = inputs.x.shape[2], inputs.keys.shape[1]

    q, k, _ = inputs.projected()
    q_size, k_size, v_size = inputs.absolute().projected()
    q_error, k_error, v_error = ((d + STEPS) * u * size for size in (q_size, k_size, v_size))
    bias = inputs.bias()
    visible = bias > -torch.inf
    scale = d_head**-0.5
    scores = q @ k.mT * scale + bias
    products = q_size @ k_size.mT
    errors = scale * (q_error @ k_size.mT + q_size @ k_error.mT + (d_head + STEPS) * u * products)
    errors = (errors + 2 * u * (scores.abs() + bias.abs())).masked_fill(~visible, 0.0)  # also those of adding the mask
    p = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)
    # exp turns an absolute error of the scores into a relative one of the weights, the row's sum likewise.
    relative = torch.expm1(errors + errors.amax(-1, keepdim=True)) + (keys + STEPS) * u
    p_error = (p * relative + info.tiny).nan_to_num(1.0).clamp(max=1.0)  # 0 * inf: so large an error excuses everything
    p_error = p_error.masked_fill(~visible, 0.0)
    heads = (p_error + (keys + STEPS) * u * p) @ v_size + p @ v_error
    w_o, b_o = w.w_o.abs(), None if w.b_o is None else w.b_o.abs()
    output = project(merge_heads(heads), w_o, None) + (d + STEPS) * u * project(merge_heads(p @ v_size), w_o, b_o)
    largest = max([float(t.abs().max()) for t in (q_size, k_size, v_size, products) if t.numel()], default=0.0)
    return Bounds(2 * output, 2 * p_error, 2 * heads, float(relative.max()) if relative.numel() else 0.0, u, largest)


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

    q, k, v = full.absolute().projected()
    d_output = cotangent.abs()
    d_heads = split_heads(d_output @ w.w_o.abs(), d_head)
    d_scores = 2 * d_heads @ v.mT  # weights are at most 1
    d_q, d_k, d_v = d_scores @ k, d_scores.mT @ q, d_heads.sum(-2, keepdim=True).expand_as(v)

    d_q, d_k, d_v = merge_heads(d_q), group * merge_heads(d_k), group * merge_heads(d_v)
    to_x, to_keys = d_q @ w.w_q.abs(), d_k @ w.w_k.abs() + d_v @ w.w_v.abs()
    products = {
        "q": (d_q, full.x),
        "k": (d_k, full.keys),
        "v": (d_v, full.keys),
        "o": (d_output, merge_heads(v.sum(-2, True).expand_as(q))),
    }
    sizes = {"x": to_x if full.context is not None else to_x + to_keys, "context": to_keys, "mask": d_scores.sum()}
    for name, (d_projected, tokens) in products.items():
        sizes[f"w_{name}"] = torch.einsum("btf,bte->fe", d_projected, tokens.abs())
        sizes[f"b_{name}"] = d_projected.sum((0, 1))
    relative = bound.relative + (full.x.shape[2] + d_head + T + S + B * T + STEPS) * bound.unit
    return {name: 4 * relative * float(magnitude.max()) for name, magnitude in sizes.items()}
