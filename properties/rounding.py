"""How far rounding alone may lead a correct attention from the truth.

A running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, chapter 3): the formula is gone through once more
with absolute values. A sum of n products, in any order, is off by at most about n*u times the sum of their absolute values, where
u is the unit roundoff of the dtype; what its factors were off by is carried along. So the bounds know the sizes in the case: large
scores excuse more, small ones less. Two correct results may each be off, hence twice the bound between them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import Inputs, make_inputs

_STEPS = 6  # roundings of an element outside the sums: scale, mask, exp, division, storing, dropout


@dataclass(frozen=True)
class Bounds:
    """Absolute errors that rounding explains, float64."""

    output: Tensor  # [B, T, d]
    weights: Tensor  # [B, h, T, S]
    heads: Tensor  # [B, h, T, d_head], before they are merged
    relative: float  # the largest relative error of a weight
    largest: float  # the largest number met on the way; if it does not fit the dtype, overflow is no mistake


def bounds(inputs: Inputs, dtype: torch.dtype = torch.float64) -> Bounds:
    """Return the bounds for a subject that computes in `dtype`, at these inputs."""
    info = torch.finfo(dtype)
    u = info.eps / 2
    inputs = inputs.to(torch.float64).ungrouped()
    w, h, d_head = inputs.weights, inputs.num_heads, inputs.d_head
    d, keys = inputs.x.shape[2], inputs.keys.shape[1]

    def project(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Its value, its size and its error, each [B, h, tokens, d_head]."""
        size = tokens.abs() @ weight.abs().T + (0 if bias is None else bias.abs())
        value = tokens @ weight.T + (0 if bias is None else bias)
        error = (d + _STEPS) * u * size
        return tuple(t.unflatten(-1, (h, d_head)).transpose(1, 2) for t in (value, size, error))  # type: ignore[return-value]

    q, q_size, q_error = project(inputs.x, w.w_q, w.b_q)
    k, k_size, k_error = project(inputs.keys, w.w_k, w.b_k)
    _, v_size, v_error = project(inputs.keys, w.w_v, w.b_v)
    bias = inputs.bias()
    visible = bias > -torch.inf
    scale = d_head**-0.5
    scores = q @ k.mT * scale + bias
    products = q_size @ k_size.mT
    errors = scale * (q_error @ k_size.mT + q_size @ k_error.mT + (d_head + _STEPS) * u * products)
    errors = (errors + 2 * u * (scores.abs() + bias.abs())).masked_fill(~visible, 0.0)  # also those of adding the mask
    p = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)
    # exp turns an absolute error of the scores into a relative one of the weights, the row's sum likewise.
    relative = torch.expm1(errors + errors.amax(-1, keepdim=True)) + (keys + _STEPS) * u
    p_error = (p * relative + info.tiny).nan_to_num(1.0).clamp(max=1.0)  # 0 * inf: so large an error excuses everything
    p_error = p_error.masked_fill(~visible, 0.0)
    heads = (p_error + (keys + _STEPS) * u * p) @ v_size + p @ v_error
    size, error = (t.transpose(1, 2).flatten(2) for t in (p @ v_size, heads))  # [B, T, d]
    output = error @ w.w_o.abs().T + (d + _STEPS) * u * (size @ w.w_o.abs().T + (0 if w.b_o is None else w.b_o.abs()))
    largest = max([float(t.abs().max()) for t in (q_size, k_size, v_size, products) if t.numel()], default=0.0)
    return Bounds(2 * output, 2 * p_error, 2 * heads, float(relative.max()), largest)


@functools.lru_cache(maxsize=4096)
def rounding(case: Case, dtype: torch.dtype = torch.float64) -> Bounds:
    """The bounds at the inputs of a case."""
    return bounds(make_inputs(case, dtype), dtype)


def gradient_bounds(inputs: Inputs, cotangent: Tensor) -> dict[str, float]:
    """Return a bound for the error of any element of each gradient of (output * cotangent).sum(), by the name of the leaf.

    The backward pass with absolute values, the largest element of each gradient, times the relative error of what it is made of.
    """
    inputs = inputs.to(torch.float64)
    B, h, T, S = inputs.scores_shape
    group = h // inputs.num_kv_heads
    forward = bounds(inputs)
    full = inputs.ungrouped()
    w, d_head = full.weights, full.d_head

    def size(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        projected = tokens.abs() @ weight.abs().T + (0 if bias is None else bias.abs())
        return projected.unflatten(-1, (h, d_head)).transpose(1, 2)

    q, k, v = size(full.x, w.w_q, w.b_q), size(full.keys, w.w_k, w.b_k), size(full.keys, w.w_v, w.b_v)
    d_output = cotangent.abs()
    d_heads = (d_output @ w.w_o.abs()).unflatten(-1, (h, d_head)).transpose(1, 2)
    d_scores = 2 * d_heads @ v.mT  # weights are at most 1
    d_q, d_k, d_v = d_scores @ k, d_scores.mT @ q, d_heads.sum(-2, keepdim=True).expand_as(v)

    def merged(heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2)

    d_q, d_k, d_v = merged(d_q), group * merged(d_k), group * merged(d_v)
    to_x, to_keys = d_q @ w.w_q.abs(), d_k @ w.w_k.abs() + d_v @ w.w_v.abs()
    products = {
        "q": (d_q, full.x),
        "k": (d_k, full.keys),
        "v": (d_v, full.keys),
        "o": (d_output, merged(v.sum(-2, True).expand_as(q))),
    }
    sizes = {"x": to_x if full.context is not None else to_x + to_keys, "context": to_keys, "mask": d_scores.sum()}
    for name, (d_projected, tokens) in products.items():
        sizes[f"w_{name}"] = torch.einsum("btf,bte->fe", d_projected, tokens.abs())
        sizes[f"b_{name}"] = d_projected.sum((0, 1))
    u = torch.finfo(torch.float64).eps / 2
    relative = forward.relative + (full.x.shape[2] + d_head + T + S + B * T + _STEPS) * u
    return {name: 4 * relative * float(magnitude.max()) for name, magnitude in sizes.items()}
