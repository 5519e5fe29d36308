"""The lesson: its worked example, its exercises, and what the class promises apart from values, which the properties judge."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from rounding_of import bounds_of, inputs_of
from torch import Tensor, nn

from attn import MultiHeadAttention, boolean_to_additive, causal_mask
from properties.compare import assert_close
from properties.oracle import attend

B, T, h, d_head = 2, 5, 4, 8
d = h * d_head


@pytest.fixture
def lesson() -> tuple[Tensor, Tensor, Tensor, MultiHeadAttention]:
    """X, W_in and W_O of the worked example, drawn in that order, and the layer that holds them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        X, W_in, W_O = torch.randn(B, T, d), torch.randn(d, 3 * d), torch.randn(d, d)
    attention = MultiHeadAttention(d, h)
    # The lesson multiplies from the left, X @ W_in; a Linear keeps the transposed matrix.
    attention.load_state_dict({"in_proj.weight": W_in.T, "out_proj.weight": W_O.T})
    return X, W_in, W_O, attention


# The worked example.


def test_every_shape_of_the_trace(lesson: tuple[Tensor, Tensor, Tensor, MultiHeadAttention]) -> None:
    X, W_in, W_O, attention = lesson
    trace = {"X": X, "QKV": attention.in_proj(X)}
    trace["Q"], trace["K"], trace["V"] = attention.project_in(X, None)
    q, k, v = (attention.split_heads(trace[name]) for name in "QKV")
    trace |= {"q split": q, "k split": k, "v split": v}
    trace["scores"] = attention.score(q, k)
    masked, _ = attention.mask(trace["scores"].clone(), causal_mask(T), False)
    trace["weights"] = attention.softmax(masked, None)
    trace["per-head out"] = attention.combine(trace["weights"], v)
    trace["merged"] = attention.merge_heads(trace["per-head out"])
    trace["output"] = attention.project_out(trace["merged"])
    assert {name: tuple(tensor.shape) for name, tensor in trace.items()} == {
        "X": (2, 5, 32),
        "QKV": (2, 5, 96),
        "Q": (2, 5, 32),
        "K": (2, 5, 32),
        "V": (2, 5, 32),
        "q split": (2, 4, 5, 8),
        "k split": (2, 4, 5, 8),
        "v split": (2, 4, 5, 8),
        "scores": (2, 4, 5, 5),
        "weights": (2, 4, 5, 5),
        "per-head out": (2, 4, 5, 8),
        "merged": (2, 5, 32),
        "output": (2, 5, 32),
    }
    output, weights = attention(X, causal_mask(T))
    assert torch.equal(trace["output"], output), "the steps, called one by one, are not what forward does"
    assert torch.equal(trace["weights"], weights), "the steps, called one by one, are not what forward does"


def test_rows_sum_to_one(lesson: tuple[Tensor, Tensor, Tensor, MultiHeadAttention]) -> None:
    X, _, _, attention = lesson
    _, weights = attention(X, causal_mask(T))
    # T weights of at most 1, each rounded when it is made and again when it is added.
    assert_close(weights.sum(-1), torch.ones(B, h, T), 2 * T * torch.finfo(torch.float32).eps, "sum of weights")


def both(lesson: tuple[Tensor, Tensor, Tensor, MultiHeadAttention], dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Output and weights of the lesson's layer and of PyTorch's own, in this dtype."""
    X, W_in, W_O, attention = lesson
    reference = nn.MultiheadAttention(d, h, batch_first=True, bias=False)
    reference.load_state_dict({"in_proj_weight": W_in.T, "out_proj.weight": W_O.T})
    additive = torch.zeros(T, T, dtype=dtype).masked_fill(~causal_mask(T), -math.inf)
    X = X.to(dtype)
    want = reference.to(dtype)(X, X, X, attn_mask=additive, average_attn_weights=False)
    return [attention.to(dtype)(X, causal_mask(T)), want]


def test_torch_agrees_in_float64(lesson: tuple[Tensor, Tensor, Tensor, MultiHeadAttention]) -> None:
    (output, weights), (want, want_weights) = both(lesson, torch.float64)
    bound = bounds_of(lesson[3], lesson[0].double(), causal_mask(T))
    assert_close(output, want, bound.output, "output")
    assert_close(weights, want_weights, bound.weights, "weights")
    # The bound holds for every machine and every order of adding up, and is still a very small part of what it bounds.
    assert bound.output.max() < 1e-8 * want.abs().max()


def test_torch_agrees_in_float32(lesson: tuple[Tensor, Tensor, Tensor, MultiHeadAttention]) -> None:
    # The lesson asks for max_diff < 2e-5 here. That is a fact about one machine: outputs are as large as 123, where neighbouring
    # float32 numbers lie 8e-6 apart, and both sides have added up hundreds of products, each in an order of its own. 5.3e-5 has
    # been seen elsewhere, and was right. A bound has to grow with the numbers:
    #   - a score is uncertain by about eps * |q| |k| / sqrt(d_head), which exp turns into a relative error of a weight;
    #   - a sum of n products brings in about sqrt(n) * eps more: d and d for the projections, d_head, T.
    X, _, _, attention = lesson
    q, k, _ = (attention.split_heads(x.detach()) for x in attention.project_in(X, None))
    uncertainty = float((q.norm(dim=-1).amax() * k.norm(dim=-1).amax()) / math.sqrt(d_head))
    relative = torch.finfo(torch.float32).eps * (uncertainty + sum(math.sqrt(n) for n in (d, d, d_head, T)))
    assert relative < 1e-4  # no real mistake is as small as that
    (output, weights), (want, want_weights) = both(lesson, torch.float32)
    truth = attend(inputs_of(attention, X, causal_mask(T)))
    for name, got, reference, true in (("output", output, want, truth.output), ("weights", weights, want_weights, truth.weights)):
        largest = float(true.abs().max())
        assert_close(got, true, relative * largest, f"{name} of attn")
        assert_close(reference, true, relative * largest, f"{name} of torch")
        assert_close(got, reference, 2 * relative * largest, name)


# The exercises.


def test_exercise_shapes() -> None:
    attention = MultiHeadAttention(8 * 16, 8)
    output, weights = attention(torch.randn(3, 10, 128))
    assert attention.d_model == 128
    assert attention.in_proj.weight.T.shape == (128, 384)  # W_in
    assert attention.out_proj.weight.T.shape == (128, 128)  # W_O
    assert output.shape == (3, 10, 128)
    assert weights.shape == (3, 8, 10, 10)


def test_exercise_strides_and_contiguous(lesson: tuple[Tensor, Tensor, Tensor, MultiHeadAttention]) -> None:
    X, _, _, attention = lesson
    q, k, v = (attention.split_heads(x) for x in attention.project_in(X, None))
    # A view of QKV: the next feature is the next number, the next token is a row of QKV away, and nothing was copied.
    assert q.stride() == k.stride() == v.stride() == (3 * d * T, d_head, 3 * d, 1)
    assert q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    heads = attention.combine(attention.score(q, k).softmax(-1), v)
    moved = heads.transpose(1, 2)  # [B, T, h, d_head]
    # The features of one token lie T * d_head numbers apart from head to head: no stride walks through all d of them.
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        moved.view(B, T, d)
    assert torch.equal(attention.merge_heads(heads), moved.contiguous().view(B, T, d))
    # Without the transpose, view has no objection, and gives something else.
    assert not torch.equal(attention.merge_heads(heads), heads.contiguous().view(B, T, d))


def test_exercise_causal_mask_in_one_line() -> None:
    assert torch.equal(torch.ones(T, T, dtype=torch.bool).tril(), causal_mask(T))


@pytest.mark.parametrize("bias", [False, True])
def test_exercise_one_projection_has_as_many_parameters_as_three(bias: bool) -> None:
    def count(*modules: nn.Module) -> int:
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    combined = count(MultiHeadAttention(d, h, bias))
    assert combined == count(*(nn.Linear(d, d, bias=bias) for _ in "QKVO")) == 4 * d * d + (4 * d if bias else 0)


# What the class promises apart from the values.


def test_defaults() -> None:
    attention = MultiHeadAttention(12, 6)
    assert attention.in_proj.bias is None and attention.out_proj.bias is None
    assert attention.dropout == 0.0
    assert attention.num_kv_heads == 6
    x = torch.randn(2, 3, 12)
    assert torch.equal(attention(x)[0], attention(x, None, context=None, is_causal=False)[0])
    names = list(inspect.signature(attention.forward).parameters)
    assert names == ["x", "attn_mask", "context", "is_causal"]


def test_device_and_dtype_reach_every_parameter() -> None:
    attention = MultiHeadAttention(4, 2, bias=True, device="meta", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in attention.parameters()} == {("meta", torch.bfloat16)}


@pytest.mark.parametrize("mask", [None, causal_mask(3), torch.zeros(3, 3)], ids=["no mask", "boolean", "additive"])
def test_masks_are_made_where_the_tokens_are(mask: Tensor | None) -> None:
    attention, x = MultiHeadAttention(4, 2), torch.randn(1, 3, 4)
    want, _ = attention(x, causal_mask(3))
    with torch.device("meta"):  # where anything lands that is not told where to go
        output, _ = attention(x, mask, is_causal=True)
    assert torch.equal(output, want)


def test_grouped_heads_make_the_projection_smaller() -> None:
    attention = MultiHeadAttention(24, 6, num_kv_heads=2)
    assert attention.widths == [24, 8, 8]
    assert attention.in_proj.weight.shape == (40, 24)


@pytest.mark.parametrize("empty_row", [False, True])
def test_empty_rows_are_looked_for_once(empty_row: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = MultiHeadAttention(4, 2)
    mask = causal_mask(3) & torch.tensor([not empty_row, True, True])[:, None]
    where = ~mask.any(-1, keepdim=True)
    _, empty = attention.mask(torch.zeros(1, 2, 3, 3), mask, False)
    assert (empty is not None and torch.equal(empty, where)) if empty_row else empty is None
    # A compiler traces one graph for all masks, so there it must not depend on what is in this one.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    _, empty = attention.mask(torch.zeros(1, 2, 3, 3), mask, False)
    assert empty is not None and torch.equal(empty, where)


def test_full_heads_are_not_copied() -> None:
    keys = torch.randn(2, 6, 3, 2)
    assert MultiHeadAttention(12, 6).expand_kv_heads(keys) is keys


# What `equivalents.toml` says about mutants that no test can tell from the original.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("made_in", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_boolean_mask_can_be_added_in_any_dtype(dtype: torch.dtype, made_in: torch.dtype) -> None:
    """0 and -inf are the same numbers in every dtype, and the scores keep theirs: what is added in place is rounded to it."""
    scores, mask = torch.randn(2, 3, 4, 4).to(dtype), causal_mask(4)
    added = scores.clone().add_(boolean_to_additive(mask, made_in))
    assert added.dtype == dtype
    assert torch.equal(added, scores.clone().add_(boolean_to_additive(mask, dtype)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_an_empty_row_may_be_filled_with_any_number(dtype: torch.dtype) -> None:
    """Its weights are set to zero after the softmax, and with them every gradient: any finite filling is as good as 0."""
    attention, results = MultiHeadAttention(4, 2), []
    mask = boolean_to_additive(torch.tensor([[True, False], [False, False]]), dtype)
    empty = (mask == -math.inf).all(-1, keepdim=True)
    for filling in (0.0, 1.0):
        leaf = (torch.arange(8.0).view(1, 2, 2, 2) / 8).to(dtype).requires_grad_()
        weights = attention.softmax(leaf + mask.masked_fill(empty, filling), empty)
        (gradient,) = torch.autograd.grad((weights * torch.arange(8.0).view(1, 2, 2, 2)).sum(), leaf)
        results.append((weights, gradient))
    assert all(torch.equal(zero, one) for zero, one in zip(*results, strict=True))
    assert results[0][0][..., 1, :].count_nonzero() == results[0][1][..., 1, :].count_nonzero() == 0
