"""What can be handed in, how its weights are recognised, and what is said to one who hands in something else."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own import Own
from torch import Tensor, nn

from attn import MultiHeadAttention
from faults.subject import subject as clean
from properties import Case, black_box, check_attention, make_inputs, of_class, of_function
from properties.recognise import recognise
from properties.wrap import as_subject


class Separate(nn.Module):
    """q, k, v and out, each a Linear; called with query, key and value."""

    def __init__(self, num_heads: int, embed_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.p = num_heads, dropout
        self.W_q, self.W_k, self.W_v = (nn.Linear(embed_dim, embed_dim) for _ in range(3))
        self.fc_out = nn.Linear(embed_dim, embed_dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        projected = (self.W_q(query), self.W_k(key), self.W_v(value))
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in projected)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        weights = scores.softmax(-1)
        dropped = F.dropout(weights, self.p, self.training)
        return self.fc_out((dropped @ v).transpose(1, 2).flatten(2)), weights


class OneHead(nn.Module):
    def __init__(self, d_model: int, d_head: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(d_model, d_head, bias=False) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        scores = self.query(x) @ self.key(x).mT * self.key.out_features**-0.5
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ self.value(x)


class HeadByHead(nn.Module):
    """A list of heads, each with its own Linears, as one finds it in lectures."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(OneHead(n_embd, n_embd // n_head) for _ in range(n_head))
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.proj(torch.cat([head(x, mask) for head in self.heads], dim=-1))


class Transposed(nn.Module):
    """Raw parameters, used as x @ W: square, so that only its author knows which way round."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        for name in ("w_q", "w_k", "w_v", "w_o"):
            setattr(self, name, nn.Parameter(torch.randn(d_model, d_model) / d_model**0.5))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = ((x @ w).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for w in (self.w_q, self.w_k, self.w_v))
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2) @ self.w_o


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    return weights @ v, weights


HANDED_IN: list[tuple[Any, dict[str, Any], str]] = [
    (Separate, {}, "W_q.weight = w_q, W_k.weight = w_k, W_v.weight = w_v, fc_out.weight = w_o"),
    (HeadByHead, {"mask_shape": "[T, S]", "encodings": ("bool",)}, "heads.0.key.weight = w_k, heads.0.query.weight = w_q"),
    (MultiHeadAttention, {}, "in_proj.weight = w_q over w_k over w_v, out_proj.weight = w_o"),
    (Own, {}, "qkv.weight = w_q over w_k over w_v, out.weight = w_o"),
    (lambda d_model, num_heads: Own(d_model, num_heads), {}, "qkv.weight = w_q over w_k over w_v"),
    (attend, {}, ""),
    (F.scaled_dot_product_attention, {"masks": ("none", "causal", "padding", "head")}, ""),
    (clean(), {}, ""),
    (clean, {}, ""),
]


@pytest.mark.parametrize(("thing", "declared", "weights"), HANDED_IN)
def test_anything_right_can_be_handed_in(thing: Any, declared: dict[str, Any], weights: str) -> None:
    report = check_attention(thing, cases=6, **declared)
    assert report.ok, str(report)
    assert weights in str(report)


def test_what_it_takes_it_is_held_to() -> None:
    separate = of_class(Separate).supports
    assert separate.cross_attention
    assert separate.dropout
    assert separate.weights
    assert not separate.grouped_heads
    assert "is_causal" not in separate.masks
    own = of_class(Own).supports
    assert not (own.cross_attention or own.dropout or own.weights)
    function = of_function(attend).supports
    assert function.weights
    assert function.empty_rows == "nan"
    assert not (function.dropout or function.module)
    assert of_function(F.scaled_dot_product_attention).supports.grouped_heads


def test_an_author_s_word_is_taken_for_weights_in_doubt() -> None:
    with pytest.raises(ValueError, match=r"which parameter of Transposed is which projection: w_q \[8, 8\], .* with parameters="):
        of_class(Transposed)

    def right(w: Any) -> dict[str, Tensor]:
        return {"w_q": w.w_q.T, "w_k": w.w_k.T, "w_v": w.w_v.T, "w_o": w.w_o.T}

    def untransposed(w: Any) -> dict[str, Tensor]:
        return {"w_q": w.w_q, "w_k": w.w_k, "w_v": w.w_v, "w_o": w.w_o}

    assert check_attention(Transposed, parameters=right, cases=10).ok
    assert not check_attention(Transposed, parameters=untransposed, cases=10, only="reference").ok


def test_heads_in_a_list_are_loaded_each_with_its_own_rows() -> None:
    inputs = make_inputs(Case(num_heads=3, d_head=2))
    named = recognise(HeadByHead(6, 3), inputs)(inputs.weights)
    assert torch.equal(named["heads.1.query.weight"], inputs.weights.w_q[2:4])
    assert torch.equal(named["heads.2.value.weight"], inputs.weights.w_v[4:6])
    assert torch.equal(named["proj.weight"], inputs.weights.w_o)
    assert not named["proj.bias"].any()


@pytest.mark.parametrize(
    ("thing", "error", "message"),
    [
        (3, TypeError, "cannot check 3: hand in a class of modules, a function of q, k and v, or a Subject"),
        (Own(8, 2), TypeError, r"an instance of Own has one size, and its own weights: hand in its class; or black_box"),
        (nn.Linear, ValueError, "cannot tell which parameter of Linear is which projection"),
        (dict, TypeError, "built with d_model=8, num_heads=2 it is .*, not a module|raised TypeError"),
        (lambda: 3, TypeError, r"<lambda>\(\) returned a int, not a Subject"),
        (
            lambda d_model, num_heads: 1 // 0,
            ValueError,
            "of_class: building it with d_model=8, num_heads=2 raised ZeroDivisionError",
        ),
        (lambda d_model, num_heads: None, TypeError, "built with d_model=8, num_heads=2 it is None, not a module"),
    ],
)
def test_what_cannot_be_checked_is_refused_with_what_to_do(thing: Any, error: type[Exception], message: str) -> None:
    with pytest.raises((error, ValueError), match=message):
        as_subject(thing)


class Grouped(nn.Module):
    """As in Llama, by its names: always causal, no mask, fewer key/value heads."""

    def __init__(self, dim: int, n_heads: int, n_kv_heads: int | None = None, attn_drop: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.d_head, self.group, self.p = dim // n_heads, n_heads // (n_kv_heads or n_heads), attn_drop
        width = dim // self.group
        self.wq, self.wo = nn.Linear(dim, dim, bias=bias), nn.Linear(dim, dim, bias=bias)
        self.wk, self.wv = nn.Linear(dim, width, bias=bias), nn.Linear(dim, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        k, v = k.repeat_interleave(self.group, 1), v.repeat_interleave(self.group, 1)
        p = self.p if self.training else 0.0
        heads = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.wo(heads.transpose(1, 2).flatten(2))


def test_a_layer_that_is_always_causal_is_declared_so() -> None:
    report = check_attention(Grouped, always_causal=True, cases=10)
    assert report.ok, str(report)
    supports = report.subject.supports
    assert supports.masks == ("is_causal",)
    assert supports.grouped_heads and supports.dropout
    assert supports.biases == "qkvo"
    assert not check_attention(Grouped, cases=10, only="reference-output").ok
    assert not check_attention(Own, always_causal=True, cases=10, only="reference-output").ok


def test_a_mask_of_another_name_is_declared_by_it() -> None:
    class Padded(Own):
        def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Any:  # type: ignore[override]
            hidden = None if key_padding_mask is None else key_padding_mask[:, None, None]
            return super().forward(x, None if hidden is None else ~hidden)

    said = {"mask_shape": "[B, S]", "polarity": "hide", "encodings": ("bool",)}
    report = check_attention(Padded, mask_argument="key_padding_mask", cases=10, **said)
    assert report.ok, str(report)
    assert "padding" in report.subject.supports.masks
    with pytest.raises(ValueError, match="it takes x, key_padding_mask. Say which is the mask with mask_argument="):
        check_attention(Padded, masks=("none", "padding"), **said)


def test_masks_are_asked_about_in_an_encoding_that_is_declared() -> None:
    class Adds(Own):
        def mask(self, scores: Tensor, mask: Tensor | None) -> Tensor:
            return scores if mask is None else scores + mask

    report = check_attention(Adds, encodings=("additive", "bias"), cases=10)
    assert report.ok, str(report)
    assert report.subject.supports.empty_rows == "nan"


def test_a_flag_without_a_mask_is_enough() -> None:
    class Flag(Own):
        def forward(self, x: Tensor, is_causal: bool = False) -> Any:  # type: ignore[override]
            return super().forward(x, x.new_ones(x.shape[1], x.shape[1]).bool().tril() if is_causal else None)

    report = check_attention(Flag, cases=10)
    assert report.ok, str(report)
    assert report.subject.supports.masks == ("none", "is_causal")


class ByHead(nn.Module):
    """Every projection with an axis for its heads, and biases that come before their weights."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        for name in ("q", "k", "v"):
            setattr(self, name, nn.Parameter(torch.randn(num_heads, d_model, d_model // num_heads) / d_model**0.5))
        self.o = nn.Parameter(torch.randn(num_heads, d_model // num_heads, d_model))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (torch.einsum("btd,hdf->bhtf", x, w) for w in (self.q, self.k, self.v))
        return torch.einsum("bhtf,hfd->btd", attend(q, k, v, mask)[0], self.o)


def test_parameters_may_ask_for_the_number_of_heads() -> None:
    def parameters(w: Any, num_heads: int) -> dict[str, Tensor]:
        inward = {n: getattr(w, f"w_{n}").unflatten(0, (num_heads, -1)).mT for n in "qkv"}
        return {**inward, "o": w.w_o.T.unflatten(0, (num_heads, -1))}

    report = check_attention(ByHead, parameters=parameters, cases=8)
    assert report.ok, str(report)
    assert report.subject.expression == "subject"  # a local function cannot be pasted


def test_a_bias_may_come_before_its_weight() -> None:
    class BiasFirst(Own):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__(d_model, num_heads)
            for layer in (self.qkv, self.out):
                layer._parameters = dict(reversed(layer._parameters.items()))

    assert [name for name, _ in BiasFirst(4, 2).named_parameters()][0] == "qkv.bias"
    assert check_attention(BiasFirst, cases=8).ok


def test_a_number_of_heads_without_groups_makes_laws_of_groups_not_apply() -> None:
    report = check_attention(Grouped, always_causal=True, num_heads=(2,), cases=3)
    assert report.ok, str(report)
    assert "it has no grouped heads: grouped_heads_are_full" in str(report)


def test_what_cannot_be_asked_is_said() -> None:
    class Refuses(Own):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
            raise NotImplementedError("three tokens")

    found = of_class(Refuses).found
    assert "it could not be asked whether it returns weights, since it raised NotImplementedError: three tokens" in found[2]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (3, "parameters must be a function of the weights, like .*, got 3"),
        (lambda w: {"w_q": w.w_q}, "parameters gives w_q, and leaves w_k, w_v, w_o as they were built"),
        (lambda w: {"WQ": w.w_q}, "parameters gives WQ, and the module has only w_q, w_k, w_v, w_o"),
        (
            lambda w: dict.fromkeys(("w_q", "w_k", "w_v", "w_o"), w.w_q[:2]),
            r"gives w_q as \[2, 8\], which is \[8, 8\] in the module",
        ),
        (lambda w: {"w_q": w.nothing}, "parameters raised AttributeError"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(parameters: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_class(Transposed, parameters=parameters)


def test_declarations_are_refused_where_they_have_no_effect() -> None:
    with pytest.raises(TypeError, match="of_class: dropuot is nothing one can declare; there is always_causal, any_device, "):
        as_subject(Own, dropuot=False)
    with pytest.raises(ValueError, match="attn.MultiHeadAttention is a subject already: declare dropout where it is made"):
        as_subject(clean(), dropout=False)
    with pytest.raises(ValueError, match=r"a Own has one size: say it, like num_heads=\(8,\), d_heads=\(64,\)"):
        black_box(Own(8, 2))
    with pytest.raises(ValueError, match="num_heads must be positive whole numbers, like .8, 16., got 2"):
        black_box(Own(8, 2), num_heads=2, d_heads=(4,))
    with pytest.raises(TypeError, match="of_function: own.Own is no function of q, k and v; for a class there is of_class"):
        of_function(Own)
    with pytest.raises(TypeError, match="an instance of Own has one size"):
        of_class(Own(8, 2))  # type: ignore[arg-type]
    uncopied = Own(8, 2)
    uncopied.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(ValueError, match="copying the Own raised TypeError: .* Hand in a function"):
        black_box(uncopied, num_heads=(2,), d_heads=(4,))


def test_a_black_box_is_copied_and_left_alone() -> None:
    module = Own(8, 2).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert check_attention(black_box(module, num_heads=(2,), d_heads=(4,)), cases=5).ok
    assert module.training
    assert module.qkv.weight.dtype == torch.float32
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
