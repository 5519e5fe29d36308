"""The inputs of other people's checks, made anew on every call, since a fault may write into what it is handed.

The shapes, masks and biases are those of the published tests; the numbers are those of a `Case`, standard normal, wherever the
test says no more of its numbers than that they are random, or builds in a comparison that we replace by a perfect one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import Inputs, Weights, make_inputs

Made = Callable[[], Inputs]


def of_the_lesson(dtype: torch.dtype) -> Inputs:
    """The worked example of the lesson: 2 samples of 5 tokens, 4 heads of 8 features, causal, seed 123."""
    batch, tokens, heads, d = 2, 5, 4, 32
    random = torch.Generator().manual_seed(123)
    x, w_in, w_out = (torch.randn(shape, generator=random) for shape in ((batch, tokens, d), (d, 3 * d), (d, d)))
    w_q, w_k, w_v = w_in.T.split(d)  # the lesson multiplies from the left
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return Inputs(x, None, Weights(w_q, w_k, w_v, w_out.T), mask, False, heads, heads).to(dtype)


def of_the_exercise(dtype: torch.dtype) -> Inputs:
    """The lesson's exercise: 3 samples of 10 tokens, 8 heads of 16 features, no mask."""
    return make_inputs(Case(batch=3, queries=10, num_heads=8, d_head=16), dtype)


def of_module_info() -> tuple[Made, ...]:
    """torch, `ModuleInfo` of `nn.MultiheadAttention`: no batch, 3 tokens, 3 other tokens, 3 heads of one feature, the last key
    hidden as padding, by a mask of every head, by both, or not at all; with and without biases. (Its options `add_bias_kv` and
    `add_zero_attn` have no counterpart here.)
    """
    shown = torch.tensor([True, True, False])
    padding, whole = shown.view(1, 1, 1, 3), shown.expand(1, 3, 3, 3)
    masks = (None, padding, whole, whole & padding)
    return tuple(
        masked(Case(queries=3, keys=3, num_heads=3, bias=bias), mask) for bias, mask in itertools.product((True, False), masks)
    )


def of_torch_encoder() -> tuple[Made, ...]:
    """torch, `test_transformerencoder` (2 samples, 5 tokens, 2 heads of 2 features; a mask and a padding that hide nothing, and
    one that hides key 1 of one sample and keys 3 and 4 of the other) and `test_transformerencoder_square_input` (2 of 2 tokens,
    causal).
    """
    case = Case(batch=2, queries=5, num_heads=2, d_head=2, bias=True)
    padding = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    padding[0, ..., 1] = padding[1, ..., 3:] = False
    masks = (None, torch.ones(5, 5, dtype=torch.bool), torch.ones(2, 1, 1, 5, dtype=torch.bool), padding)
    square = Case(batch=2, queries=2, num_heads=2, d_head=2, bias=True)
    return (*(masked(case, mask) for mask in masks), masked(square, torch.ones(2, 2, dtype=torch.bool).tril()))


def of_torch_reference() -> tuple[Made, ...]:
    """torch, `test_multihead_attention.py` against a reference in NumPy: one query, 2 to 10 samples and keys, 4 to 10 heads of 3
    to 10 features, biases, a mask `[1, S]` of 0 and -inf, and in half of them the same padding for every sample. A dozen each.
    """
    random = Random(0)
    made: list[Made] = []
    for padded in (False, True):
        for number in range(12):
            batch, keys, heads = random.randint(2, 10), random.randint(2, 10), 2 * random.randint(2, 5)
            case = Case(batch=batch, queries=1, keys=keys, num_heads=heads, d_head=random.randint(3, 10), bias=True, seed=number)
            seen = torch.tensor([random.random() < 0.5 for _ in range(keys)])
            seen[random.randrange(keys)] = True  # theirs compares NaN with NaN where all is hidden
            bias = torch.zeros(1, keys, dtype=torch.float64).masked_fill(~seen, -math.inf)
            if padded:
                hidden = torch.tensor([random.random() < 0.5 for _ in range(keys)]) & ~seen
                bias = bias.masked_fill(hidden, -math.inf).expand(batch, 1, 1, keys).contiguous()
            made.append(masked(case, bias))
    return tuple(made)


def of_keras_numbers() -> tuple[Made, ...]:
    """keras, `test_correctness`: one sample, 8 tokens that are unit vectors, 8 equal heads whose projections are the identity.

    Their heads are 8 wide on tokens of 8 features, so there are 64 here, of which 48 are zero; 8 to 15 hold the values, which are
    apart from the keys in their test, and to which the value projection points.
    """

    def make(cross: bool) -> Inputs:
        n, d = 8, 64
        one, eye = torch.zeros(n, d, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
        one[:, :n], one[:, n : 2 * n] = eye, torch.arange(n * n, dtype=torch.float64).view(n, n) / 100
        first, second, out = (torch.zeros(d, d, dtype=torch.float64) for _ in range(3))
        for head in range(n):
            rows = slice(head * n, (head + 1) * n)
            first[rows, :n] = second[rows, n : 2 * n] = eye
            out[head, rows] = 1  # their identity, read as [heads, features, out], sums up the features of a head
        zero = torch.zeros(d, dtype=torch.float64)
        weights = Weights(first, first.clone(), second, out, *(zero.clone() for _ in range(4)))
        return Inputs(one[None], one[None].clone() if cross else None, weights, None, False, n, n)

    return (lambda: make(True), lambda: make(False))


def of_keras_masks() -> tuple[Made, ...]:
    """keras, `test_masking` (3 samples, 5 queries, 3 keys, padding of both, causal or not), `test_masking_with_different_shapes`,
    `test_causal_only_fast_path` and `test_causal_only_with_other_mask_falls_back` (2 samples, 5 tokens, 2 heads of 4, a causal
    mask in three shapes, the flag, the flag and a mask).
    """
    case = Case(batch=3, queries=5, keys=3, num_heads=2, d_head=2, bias=True)
    queries = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)
    keys = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)
    both = (queries[:, :, None] & keys[:, None, :])[:, None]  # [B, 1, T, S]
    square = Case(batch=2, queries=5, num_heads=2, d_head=4, bias=True)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    other = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    other[:, :, 2, 3] = False
    return (
        masked(case, both),
        masked(case, both & torch.ones(5, 3, dtype=torch.bool).tril()),
        *(masked(square, causal.expand(shape)) for shape in ((5, 5), (2, 1, 5, 5), (2, 2, 5, 5))),
        masked(square, None, is_causal=True),
        masked(square, other, is_causal=True),
    )


def of_a_language_model() -> tuple[Made, ...]:
    """What small repositories ask of a causal layer: one sample, one head, 6 tokens, the mask or the flag."""
    case = Case(queries=6, d_head=8)
    return masked(case, torch.ones(6, 6, dtype=torch.bool).tril()), masked(case, None, is_causal=True)


def masked(case: Case, mask: Tensor | None, is_causal: bool = False) -> Made:
    """The inputs of a case, in which nothing is hidden, with this mask."""

    @functools.cache
    def once() -> Inputs:
        return replace(make_inputs(case), mask=mask, is_causal=is_causal)

    def make() -> Inputs:
        made = once()
        own = {name: tensor.clone() for name in ("x", "context", "mask") if (tensor := getattr(made, name)) is not None}
        return replace(made, weights=made.weights.map(torch.clone), **own)

    return make
