"""The formula itself, in float64, one query at a time: what every attention is measured by."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import Inputs, make_inputs, project
from properties.mechanisms import soft_cap


@dataclass(frozen=True)
class Truth:
    """Attention as the formula has it, float64."""

    output: Tensor  # [B, T, d]
    weights: Tensor  # [B, h, T, S]; an empty row is zero
    values: Tensor  # [B, h, S, d_head], those that each query head reads


def attend(inputs: Inputs) -> Truth:
    """Compute softmax(q k^T / sqrt(d_head) + mask) v for every sample, head and query on its own, from the visible keys alone.

    With what mechanisms the inputs have: q and k normalised, then rotated; the product capped, then the bias added; and a sink as
    one more score in the softmax.
    """
    inputs = inputs.to(torch.float64)
    B, h, T, S = inputs.scores_shape
    w, d_head, group, given = inputs.weights, inputs.d_head, h // inputs.num_kv_heads, inputs.mechanisms
    q, k, v = project(inputs.x, w.w_q, w.b_q), project(inputs.keys, w.w_k, w.b_k), project(inputs.keys, w.w_v, w.b_v)
    if w.n_q is not None or given.placing.startswith("rotary"):
        places = inputs.places()
        q, k = _prepared(q, w.n_q, places[0], inputs), _prepared(k, w.n_k, places[1], inputs)
    q = q / math.sqrt(d_head)
    bias = inputs.bias()
    seen = (bias > -math.inf).tolist()
    outputs, weights, values = [], [], []
    for b in range(B):
        for i in range(h):
            own, shared = _features(i, d_head), _features(i // group, d_head)
            queries, keys, mixed = q[b, :, own].unbind(), k[b, :, shared], v[b, :, shared]
            values.append(mixed)
            for query, row_bias, row_seen in zip(queries, bias[b, i].unbind(), seen[b][i], strict=True):
                if any(row_seen):
                    some = slice(None) if all(row_seen) else torch.tensor([s for s in range(S) if row_seen[s]])
                    share = _softmax(soft_cap(keys[some] @ query, given.soft_cap) + row_bias[some], w.sinks, i)
                    row = share if all(row_seen) else share.new_zeros(S).index_copy(0, torch.as_tensor(some), share)
                    outputs.append(share @ mixed[some])
                else:
                    row = keys.new_zeros(S)
                    outputs.append(keys.new_zeros(d_head))
                weights.append(row)
    heads = torch.stack(outputs).reshape(B, h, T, d_head)  # [B, h, T, d_head]
    merged = torch.cat([heads[:, i] for i in range(h)], dim=-1)  # [B, T, h*d_head]
    return Truth(
        output=project(merged, w.w_o, w.b_o),
        weights=torch.stack(weights).reshape(B, h, T, S),
        values=torch.stack(values).reshape(B, h, S, d_head),
    )


@functools.lru_cache(maxsize=4096)
def truth(case: Case, dtype: torch.dtype = torch.float64) -> Truth:
    """The truth about the inputs of a case, after they were rounded to `dtype`."""
    return attend(make_inputs(case, dtype))


def _softmax(scores: Tensor, sinks: Tensor | None, head: int) -> Tensor:
    if sinks is None:
        return scores.softmax(0)
    return torch.cat([scores, sinks[head : head + 1]]).softmax(0)[:-1]


def _prepared(vectors: Tensor, scale: Tensor | None, positions: Tensor, inputs: Inputs) -> Tensor:
    """Normalise and rotate queries or keys, [B, n, heads*d_head], each head of each token on its own."""
    given, d_head = inputs.mechanisms, inputs.d_head
    width = given.rotary_width or d_head
    samples = []
    for sample, places in zip(vectors, positions.tolist(), strict=True):
        tokens = []
        for token, place in zip(sample, places, strict=True):
            heads = []
            for head in token.split(d_head):
                f = list((head if scale is None else head / (head.square().mean() + given.qk_norm_eps).sqrt() * scale).unbind())
                if given.placing.startswith("rotary"):
                    for i in range(width // 2):
                        a, b = (i, i + width // 2) if given.placing == "rotary" else (2 * i, 2 * i + 1)
                        angle = place / given.stretch * given.rotary_base ** (-2 * i / width)
                        cos, sin = math.cos(angle), math.sin(angle)
                        f[a], f[b] = f[a] * cos - f[b] * sin, f[a] * sin + f[b] * cos
                heads.append(torch.stack(f))
            tokens.append(torch.cat(heads))
        samples.append(torch.stack(tokens))
    return torch.stack(samples) if samples else vectors


def _features(head: int, d_head: int) -> slice:
    return slice(head * d_head, (head + 1) * d_head)
