"""The formula itself, in float64, one query at a time: what every attention is measured by."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import Inputs, make_inputs, project


@dataclass(frozen=True)
class Truth:
    """Attention as the formula has it, float64."""

    output: Tensor  # [B, T, d]
    weights: Tensor  # [B, h, T, S]; an empty row is zero
    values: Tensor  # [B, h, S, d_head], those that each query head reads


def attend(inputs: Inputs) -> Truth:
    """Compute softmax(q k^T / sqrt(d_head) + mask) v for every sample, head and query on its own, from the visible keys alone."""
    inputs = inputs.to(torch.float64)
    B, h, T, S = inputs.scores_shape
    w, d_head, group = inputs.weights, inputs.d_head, h // inputs.num_kv_heads
    q, k, v = project(inputs.x, w.w_q, w.b_q), project(inputs.keys, w.w_k, w.b_k), project(inputs.keys, w.w_v, w.b_v)
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
                if all(row_seen):
                    row = (keys @ query + row_bias).softmax(0)
                    outputs.append(row @ mixed)
                elif any(row_seen):
                    some = torch.tensor([s for s in range(S) if row_seen[s]])
                    share = (keys[some] @ query + row_bias[some]).softmax(0)
                    row = share.new_zeros(S).index_copy(0, some, share)
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


def _features(head: int, d_head: int) -> slice:
    return slice(head * d_head, (head + 1) * d_head)
