"""The tensors of a case, and the small changes to them that laws compare.

Every method returns new `Inputs` and touches nothing of the old. They permute, select and re-encode, and bring in nothing that
the case does not have. So a fault that cannot show on a case cannot show on what a law makes of it. Whether T = S is such a fact
of the case too: laws refrain from a change that would make it or break it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from properties.case import Case
from properties.mechanisms import BUCKETS, Mechanisms, position_bias, qk_norm, rotate


@dataclass(frozen=True)
class Weights:
    """The projections, each as `F.linear` takes it. Head i of q owns the rows `i*d_head : (i+1)*d_head`, and so on."""

    w_q: Tensor  # [h*d_head, d]
    w_k: Tensor  # [g*d_head, d]
    w_v: Tensor  # [g*d_head, d]
    w_o: Tensor  # [d, h*d_head]
    b_q: Tensor | None = None  # [h*d_head]
    b_k: Tensor | None = None
    b_v: Tensor | None = None
    b_o: Tensor | None = None  # [d]
    # Of mechanisms, see `properties.mechanisms`.
    n_q: Tensor | None = None  # [d_head], what normalised queries are multiplied by
    n_k: Tensor | None = None  # [d_head]
    sinks: Tensor | None = None  # [h]
    table: Tensor | None = None  # [BUCKETS, h], a relative bias

    def items(self) -> list[tuple[str, Tensor]]:
        """Names and tensors of those that are there."""
        return [(f.name, value) for f in fields(self) if (value := getattr(self, f.name)) is not None]

    def map(self, change: Callable[[Tensor], Tensor]) -> Weights:
        return Weights(**{name: change(value) for name, value in self.items()})


@dataclass(frozen=True)
class Inputs:
    """What one call of an attention layer gets."""

    x: Tensor  # [B, T, d]
    context: Tensor | None  # [B, S, d]; None: x
    weights: Weights
    mask: Tensor | None  # [T, S] or four axes that broadcast to [B, h, T, S]; bool (True = may attend) or added to the scores
    is_causal: bool  # also hide the future
    num_heads: int
    num_kv_heads: int
    dropout: float = 0.0
    alignment: str = "bottom_right"  # of the flag
    mechanisms: Mechanisms = Mechanisms()
    positions: Tensor | None = None  # [B, T], whole numbers; None: as they are counted
    documents: Tensor | None = None  # [B, T], which document a token belongs to; tokens of others are hidden
    prefix: Tensor | None = None  # [B], how many tokens at the beginning see each other both ways; the rest is causal
    past: int = 0  # how many tokens a cache holds that come before x, for a mask over both

    # Sizes.

    @property
    def keys(self) -> Tensor:
        """The tokens that are attended to, `[B, S, d]`."""
        return self.x if self.context is None else self.context

    @property
    def scores_shape(self) -> tuple[int, int, int, int]:
        """[B, h, T, S]"""
        return self.x.shape[0], self.num_heads, self.x.shape[1], self.keys.shape[1]

    @property
    def square(self) -> bool:
        """Are there as many queries as keys?"""
        return self.x.shape[1] == self.keys.shape[1]

    @property
    def d_head(self) -> int:
        return self.weights.w_q.shape[0] // self.num_heads

    def compared(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys as they are compared, normalised and rotated, and the values, float64 `[B, h, T or S, d_head]`."""
        w, (queries, keys) = self.to(torch.float64).weights, self.places()
        eps = self.mechanisms.qk_norm_eps
        q, k, v = self.projected()
        return rotate(qk_norm(q, w.n_q, eps), queries, self.mechanisms), rotate(qk_norm(k, w.n_k, eps), keys, self.mechanisms), v

    def projected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every query head, float64 `[B, h, T or S, d_head]`."""
        full = self.to(torch.float64).ungrouped()
        w = full.weights
        q, k, v = project(full.x, w.w_q, w.b_q), project(full.keys, w.w_k, w.b_k), project(full.keys, w.w_v, w.b_v)
        return split_heads(q, self.d_head), split_heads(k, self.d_head), split_heads(v, self.d_head)

    def places(self) -> tuple[Tensor, Tensor]:
        """The positions of queries `[B, T]` and keys `[B, S]`; where they are counted, the last query stands at the last key."""
        B, _, T, S = self.scores_shape
        if self.positions is not None:
            return self.positions, self.positions
        counted = torch.arange(S).expand(B, S)
        return torch.arange(S - T, S).expand(B, T), counted

    # What the mask says.

    def bias(self) -> Tensor:
        """Everything that is added to the scores, float64 `[B, h, T, S]`, -inf where a key is hidden."""
        bias = torch.zeros(self.scores_shape, dtype=torch.float64)
        if self.mask is not None:
            bias = bias.masked_fill(~self.mask, -math.inf) if self.mask.dtype == torch.bool else bias + self.mask
        table = None if self.weights.table is None else self.weights.table.to(torch.float64)
        added = position_bias(*self.places(), self.num_heads, self.mechanisms, table)
        hidden = self._hidden_by_position()
        bias = bias if added is None else bias + added
        return bias if hidden is None else bias.masked_fill(hidden, -math.inf)

    def _hidden_by_position(self) -> Tensor | None:
        """What the causal flag, a prefix, documents and a window hide, bool, broadcasts to `[B, h, T, S]`; None: nothing."""
        T, S = self.scores_shape[2:]
        hidden = []
        if self.is_causal or self.prefix is not None:
            hidden.append(~causal(T, S, self.alignment))
        if self.prefix is not None:
            hidden[-1] = hidden[-1] & (torch.arange(S) >= self.prefix[:, None, None, None])  # [B, 1, 1, S]
        if self.documents is not None:
            hidden.append(self.documents[:, None, :, None] != self.documents[:, None, None, :])
        if (window := self.mechanisms.window) is not None:
            hidden.append(causal(T, S).tril(S - T - window))
        return functools.reduce(torch.logical_or, hidden) if hidden else None

    def visible(self) -> Tensor:
        """Which key which query may attend to, bool `[B, h, T, S]`."""
        return self.bias() > -math.inf

    def attending(self) -> Tensor:
        """Which queries see a key in every head, bool `[B, T]`."""
        return self.visible().any(-1).all(1)

    # The same problem otherwise: rows, tokens, heads.

    def rows(self, index: Tensor) -> Inputs:
        """Keep these samples of the batch, in this order."""
        return replace(
            self,
            x=self.x[index],
            context=None if self.context is None else self.context[index],
            mask=self.mask if self.mask is None or self.mask.dim() == 2 else _take(self.mask, 0, index),
            positions=None if self.positions is None else self.positions[index],
            documents=None if self.documents is None else self.documents[index],
            prefix=None if self.prefix is None else self.prefix[index],
        )

    def take_queries(self, index: Tensor) -> Inputs:
        """Keep these queries, in this order. Cross-attention without the causal flag only: elsewhere the keys would follow."""
        return replace(self, x=self.x[:, index], mask=self._mask_of(index, None))

    def take_keys(self, index: Tensor) -> Inputs:
        """Keep these keys, in this order. Cross-attention without the causal flag only."""
        if self.context is None:
            raise ValueError("take_keys: in self-attention the keys are the queries; use take_tokens")
        return replace(self, context=self.context[:, index], mask=self._mask_of(None, index))

    def take_tokens(self, index: Tensor) -> Inputs:
        """Keep these tokens, as queries and as keys. Self-attention only; where order matters, only from the beginning."""
        return replace(
            self,
            x=self.x[:, index],
            mask=self._mask_of(index, index),
            positions=None if self.positions is None else self.positions[:, index],
            documents=None if self.documents is None else self.documents[:, index],
        )

    def piece(self, begin: int, end: int) -> Inputs:
        """The tokens from `begin` up to `end`, as a cache is handed them that holds those before; the mask is over all so far."""
        new, all_so_far = torch.arange(begin, end), torch.arange(end)
        whole = self.take_tokens(all_so_far)
        return replace(
            whole,
            x=self.x[:, begin:end].clone(),  # its own: what becomes of it is not to become of the whole
            mask=self._mask_of(new, all_so_far),
            positions=None if self.positions is None else self.positions[:, begin:end],
            past=begin,
        )

    def aligned_queries(self, number: int) -> Tensor:
        """The indices of so many queries, at the end or the beginning: where the causal flag, for them alone, means the same."""
        order = torch.arange(self.x.shape[1])
        return order[-number:] if self.alignment == "bottom_right" else order[:number]

    def first(self, queries: int, keys: int) -> Inputs:
        """Keep so many queries and keys from the beginning; with the causal flag, as many must go of each."""
        q, k = torch.arange(queries), torch.arange(keys)
        return self.take_tokens(q) if self.context is None else self.take_queries(q).take_keys(k)

    def permute_heads(self, order: Tensor) -> Inputs:
        """Put the heads in this order, and their weights and masks with them. Without grouped heads only."""
        features = self._features(order)
        moved = {n: value[features] for n, value in self.weights.items() if n in {"w_k", "w_v", "b_k", "b_v"}}
        return self.with_weights(**moved).permute_query_heads(order)

    def permute_query_heads(self, order: Tensor) -> Inputs:
        """Put the query heads in this order, and leave the key/value heads as they are."""
        w, features = self.weights, self._features(order)
        moved: dict[str, Any] = {n: value[features] for n, value in w.items() if n in {"w_q", "b_q"}}
        mask = self.mask if self.mask is None or self.mask.dim() == 2 else _take(self.mask, 1, order)
        moved |= {"sinks": None if w.sinks is None else w.sinks[order], "table": None if w.table is None else w.table[:, order]}
        return replace(self, weights=replace(w, w_o=w.w_o[:, features], **moved), mask=mask)

    def only_head(self, head: int) -> Inputs:
        """Let only this head reach the output: zero the columns of W_O that the others own."""
        own = torch.zeros_like(self.weights.w_o)
        own[:, head * self.d_head : (head + 1) * self.d_head] = 1
        return self.with_weights(w_o=self.weights.w_o * own)

    def single_head(self, head: int) -> Inputs:
        """This head alone, as the only head of a layer of the same d_model, its output bias left out.

        The features of the other heads are zero; the queries grow with the scale that the wider head is about to divide them by.
        """
        d_head, d = self.d_head, self.x.shape[2]
        shared = head // (self.num_heads // self.num_kv_heads)
        own = slice(head * d_head, (head + 1) * d_head)
        read = slice(shared * d_head, (shared + 1) * d_head)
        rows = {"w_q": own, "b_q": own, "w_k": read, "b_k": read, "w_v": read, "b_v": read}
        alone: dict[str, Tensor] = {}
        for name, value in self.weights.items():
            if name in rows:
                alone[name] = value.new_zeros(d, *value.shape[1:])
                alone[name][own] = value[rows[name]] * (math.sqrt(d / d_head) if name in {"w_q", "b_q"} else 1.0)
            elif name == "b_o":
                alone[name] = torch.zeros_like(value)
        mask = self.mask if self.mask is None or self.mask.dim() == 2 else _take(self.mask, 1, torch.tensor([head]))
        alone["w_o"] = self.only_head(head).weights.w_o
        return replace(self, weights=Weights(**alone), mask=mask, num_heads=1, num_kv_heads=1)

    def ungrouped(self) -> Inputs:
        """The same with full heads: the weights of a key/value head repeated for each query head of its group."""
        if self.num_kv_heads == self.num_heads:
            return self
        group = self.num_heads // self.num_kv_heads

        def repeat(rows: Tensor) -> Tensor:
            heads = rows.reshape(self.num_kv_heads, self.d_head, *rows.shape[1:])
            return heads.repeat_interleave(group, dim=0).flatten(0, 1)

        shared = {n: repeat(value) for n, value in self.weights.items() if n in {"w_k", "w_v", "b_k", "b_v"}}
        return replace(self.with_weights(**shared), num_kv_heads=self.num_heads)

    def insert_padding(self, at: int, padding: Tensor) -> Inputs:
        """Insert the tokens `padding` `[B, n, d]` in front of key `at`, hidden from every query; needs a mask.

        In self-attention they ask as well, and see what the first token sees.
        """
        if self.mask is None:
            raise ValueError("insert_padding: without a mask nothing can hide the padding")
        added = padding.shape[1]
        keys = torch.cat([self.keys[:, :at], padding, self.keys[:, at:]], dim=1)
        old = torch.arange(self.keys.shape[1])
        source = torch.cat([old[:at], old.new_zeros(added), old[at:]])
        hidden = False if self.mask.dtype == torch.bool else -math.inf
        mask = self.mask.expand(*self.mask.shape[:-1], len(old)).index_select(-1, source)
        mask[..., at : at + added] = hidden
        if self.context is None:
            mask = _take(mask, -2, source)
        return replace(self.with_keys(keys), mask=mask)

    # Other contents.

    def with_weights(self, **changed: Tensor | None) -> Inputs:
        return replace(self, weights=Weights(**{**dict(self.weights.items()), **changed}))  # type: ignore[arg-type]

    def absolute(self) -> Inputs:
        """Every token and weight by its absolute value."""
        context = None if self.context is None else self.context.abs()
        return replace(self, x=self.x.abs(), context=context, weights=self.weights.map(torch.abs))

    def with_identity_out(self) -> Inputs:
        """Let the output be the merged heads as they are: W_O = 1, and no bias on it."""
        w = self.weights
        zero = None if w.b_o is None else torch.zeros_like(w.b_o)
        return self.with_weights(w_o=torch.eye(w.w_o.shape[0], dtype=w.w_o.dtype), b_o=zero)

    def with_constant_feature(self) -> Inputs:
        """Set feature 0 of every token to 1: its column in a projection then acts as a bias, whether there are biases or not."""
        x, context = self.x.clone(), None if self.context is None else self.context.clone()
        for tokens in (x, context):
            if tokens is not None:
                tokens[..., 0] = 1
        return replace(self, x=x, context=context)

    def with_keys(self, keys: Tensor) -> Inputs:
        """Other tokens to attend to, `[B, S, d]`; in self-attention they are the queries too."""
        return replace(self, x=keys) if self.context is None else replace(self, context=keys)

    def of_itself(self, context: Tensor | None) -> Inputs:
        """Attention of x to itself, said by this context, without a mask."""
        return replace(self, context=context, mask=None, is_causal=False)

    # The same numbers, otherwise stored.

    def to(self, dtype: torch.dtype) -> Inputs:
        """Round everything to this dtype."""
        if self.x.dtype == dtype and (self.mask is None or self.mask.dtype in (dtype, torch.bool)):
            return self
        mask = self.mask if self.mask is None or self.mask.dtype == torch.bool else self.mask.to(dtype)
        context = None if self.context is None else self.context.to(dtype)
        return replace(self, x=self.x.to(dtype), context=context, weights=self.weights.map(lambda w: w.to(dtype)), mask=mask)

    def laid_out(self, layout: str) -> Inputs:
        """Store x and context in this layout (see `properties.case.LAYOUTS`)."""
        return replace(self, x=_lay_out(self.x, layout), context=None if self.context is None else _lay_out(self.context, layout))

    def leaves(self) -> tuple[Inputs, dict[str, Tensor]]:
        """The same with a gradient wanted for every floating tensor, and these tensors by name."""

        def leaf(tensor: Tensor) -> Tensor:
            return tensor.detach().clone().requires_grad_()

        weights = self.weights.map(leaf)
        named = {"x": leaf(self.x), **({} if self.context is None else {"context": leaf(self.context)}), **dict(weights.items())}
        mask = self.mask
        if mask is not None and mask.is_floating_point():
            mask = named["mask"] = leaf(mask)
        return replace(self, x=named["x"], context=named.get("context"), weights=weights, mask=mask), named

    def tensors(self) -> dict[str, Tensor]:
        """Everything handed to the subject, by name."""
        given = {name: getattr(self, name) for name in ("x", "context", "mask", "positions", "documents", "prefix")}
        named: dict[str, Tensor | None] = {**given, **dict(self.weights.items())}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def _features(self, heads: Tensor) -> Tensor:
        return (heads[:, None] * self.d_head + torch.arange(self.d_head)).flatten()

    def _mask_of(self, queries: Tensor | None, keys: Tensor | None) -> Tensor | None:
        mask = self.mask
        for axis, index in ((-2, queries), (-1, keys)):
            if mask is not None and index is not None:
                mask = _take(mask, axis, index)
        return mask


def gradients(output: Tensor, cotangent: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of (output * cotangent).sum() by the leaves, zero for those that it does not depend on."""
    if not output.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad((output * cotangent.to(output.dtype)).sum(), list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if gradient is None else gradient for (name, leaf), gradient in pairs}


def project(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[B, n, d] -> [B, n, width]"""
    return tokens @ weight.T + (0 if bias is None else bias)


def split_heads(tokens: Tensor, d_head: int) -> Tensor:
    """[B, n, h*d_head] -> [B, h, n, d_head]"""
    B, n, width = tokens.shape
    return tokens.reshape(B, n, width // d_head, d_head).transpose(1, 2)


def merge_heads(heads: Tensor) -> Tensor:
    """[B, h, n, d_head] -> [B, n, h*d_head]"""
    return heads.transpose(1, 2).flatten(2)


def make_inputs(case: Case, dtype: torch.dtype = torch.float64, score_scale: float = 1.0) -> Inputs:
    """Return the inputs of a case: always the same, and the same numbers in every dtype before rounding.

    Tokens are standard normal; projections keep that size, so scores are of about `score_scale` and outputs of about 1.
    """
    B, T, h, g, d, d_head = case.batch, case.T, case.num_heads, case.g, case.d_model, case.d_head
    tokens, parameters = case.generator("inputs"), case.generator("weights")

    def normal(generator: torch.Generator, *shape: int, size: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * size

    x = normal(tokens, B, T, d)
    context = None if case.keys is None else normal(tokens, B, case.keys, d)
    sharpness = math.sqrt(score_scale)
    widths = {"q": h * d_head, "k": g * d_head, "v": g * d_head, "o": d}
    sizes = {"q": sharpness, "k": sharpness, "v": 1.0, "o": 1.0}
    weights = {f"w_{n}": normal(parameters, width, d, size=sizes[n] / math.sqrt(d)) for n, width in widths.items()}
    if case.bias:
        biases = {n: normal(parameters, width, size=sizes[n]) for n, width in widths.items()}
        weights |= {f"b_{n}": biases[n] for n in case.biases}
    if case.qk_norm:
        weights |= {name: 1 + 0.5 * normal(parameters, d_head) for name in ("n_q", "n_k")}
    if case.sinks:
        weights["sinks"] = normal(parameters, h)
    if case.placing == "relative_bias":
        weights["table"] = normal(parameters, BUCKETS, h)
    inputs = Inputs(
        x,
        context,
        Weights(**weights),
        _make_mask(case),
        case.mask.startswith(("is_causal", "documents")),
        h,
        g,
        case.dropout,
        case.alignment,
        Mechanisms.of(case),
        positions=_positions(case),
        documents=_documents(case),
        prefix=_prefix(case),
    )
    return inputs.to(dtype).laid_out(case.layout)


def _positions(case: Case) -> Tensor | None:
    if case.positions == "counted":
        return None
    counted = torch.arange(case.T).expand(case.batch, -1)
    if case.positions == "offset":
        return counted + 7
    return torch.randint(1, 4, (case.batch, case.T), generator=case.generator("mask")).cumsum(1)


def _documents(case: Case) -> Tensor | None:
    """Documents of one token or more, each in one piece, numbered in no order: 0, 1, 2, ... would excuse comparing with >=."""
    if not case.mask.startswith("documents"):
        return None
    random = case.generator("mask")
    begins = torch.rand(case.batch, case.T, generator=random) < 0.5
    number = begins.long().cumsum(1) - begins[:, :1].long()
    names = torch.rand(case.batch, case.T, generator=random).argsort(1)
    return names.gather(1, number)


def _prefix(case: Case) -> Tensor | None:
    if not case.mask.startswith("prefix"):
        return None
    return torch.randint(0, case.T + 1, (case.batch,), generator=case.generator("mask"))


def _make_mask(case: Case) -> Tensor | None:
    visible = _visible(case)
    if visible is None or case.encoding == "bool":
        return visible
    bias = torch.zeros(visible.shape, dtype=torch.float64)
    if case.encoding == "bias":
        bias = torch.randn(visible.shape, generator=case.generator("mask"), dtype=torch.float64)
    return bias.masked_fill(~visible, -math.inf)


def _visible(case: Case) -> Tensor | None:
    B, h, T, S = case.batch, case.num_heads, case.T, case.S
    random = case.generator("mask")
    match case.mask:
        case "none" | "is_causal" | "prefix" | "documents":
            return None
        case "full":
            return torch.ones(1, h, T, S, dtype=torch.bool)
        case "causal":
            return causal(T, S)
        case "padding" | "is_causal+padding":
            return _some_keys(random, B, 1, 1, S)
        case "prefix+padding" | "documents+padding":
            torch.rand(2 * B * T, generator=random)  # what the prefix, or the documents, are drawn from: padding is to be apart
            return _some_keys(random, B, 1, 1, S)
        case "causal+padding":
            return _some_keys(random, B, 1, 1, S) & causal(T, S)
        case "sample":
            return _some_keys(random, B, 1, T, S)
        case "head":
            return _some_keys(random, B, h, T, S)
        case "empty":
            visible = _some_keys(random, B, h, T, S)
            visible[:, :, int(torch.randint(T, (), generator=random))] = False  # a query that no head of no sample serves
            return visible & (torch.rand(B, h, T, 1, generator=random) < 0.8)
        case _:
            raise AssertionError(case.mask)  # Case has checked it


def _some_keys(random: torch.Generator, *shape: int) -> Tensor:
    """Random rows of visible keys, each with at least one; with two keys or more, the first row hides at least one."""
    visible = torch.rand(shape, generator=random) < 0.6
    kept = torch.randint(shape[-1], (*shape[:-1], 1), generator=random)
    visible.scatter_(-1, kept, True)
    if shape[-1] > 1 and visible.numel() > 0:
        first = (0,) * (len(shape) - 1)
        visible[first][(kept[first] + 1) % shape[-1]] = False
    return visible


def causal(queries: int, keys: int, alignment: str = "bottom_right") -> Tensor:
    """The causal mask, bool `[T, S]`: the last query sees every key, or, aligned at the top left, the first only the first."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries if alignment == "bottom_right" else 0)


def _take(mask: Tensor, axis: int, index: Tensor) -> Tensor:
    """Select along an axis of a mask, unless it is one that is repeated."""
    return mask if mask.shape[axis] == 1 else mask.index_select(axis, index)


def _lay_out(tokens: Tensor, layout: str) -> Tensor:
    if layout == "transposed":
        return tokens.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "strided":
        return torch.stack([tokens, tokens.flip(-1) + 1], dim=-1)[..., 0]  # the gaps hold other numbers
    return tokens.contiguous()
