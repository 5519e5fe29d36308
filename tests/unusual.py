"""Multi-head attention in five styles that look nothing like `attn`, each of them once right and once wrong.

Letters in shapes as in `attn`, f for d_head, r for the query heads of a group: h = g * r.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from properties import Inputs, Layer, Subject, Weights, of_class, of_module


def additive(attn_mask: Tensor | None, is_causal: bool, x: Tensor, keys: int) -> Tensor | None:
    """Return mask and flag as one thing to add to the scores, of four axes; None if there is neither."""
    bias = attn_mask
    if bias is not None and bias.dtype == torch.bool:
        bias = torch.zeros(bias.shape, dtype=x.dtype, device=x.device).masked_fill(~bias, -math.inf)
    if is_causal:
        future = torch.ones(x.shape[1], keys, dtype=torch.bool, device=x.device).triu(keys - x.shape[1] + 1)
        bias = torch.zeros(future.shape, dtype=x.dtype, device=x.device) if bias is None else bias
        bias = bias.masked_fill(future, -math.inf)
    return bias if bias is None or bias.dim() == 4 else bias[None, None]


class Einsum(nn.Module):
    """Every projection has an axis for its heads, and all products are einsums; a group of queries has an axis, too.

    What is hidden gets the smallest finite score, and its weight is taken away after the softmax.
    """

    SCORES = "bgrtf,bgsf->bgrts"

    def __init__(
        self, d_model: int, num_heads: int, bias: bool = False, dropout: float = 0.0, num_kv_heads: int | None = None
    ) -> None:
        super().__init__()
        h, g, f = num_heads, num_kv_heads or num_heads, d_model // num_heads
        self.group, self.dropout = h // g, nn.Dropout(dropout)
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(n, d_model, f) / math.sqrt(d_model)) for n in (h, g, g))
        self.w_o = nn.Parameter(torch.randn(h, f, d_model) / math.sqrt(d_model))
        if bias:
            self.b_q, self.b_k, self.b_v = (nn.Parameter(torch.zeros(n, f)) for n in (h, g, g))
            self.b_o = nn.Parameter(torch.zeros(d_model))
        self.bias = bias

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        context = x if context is None else context
        q = torch.einsum("btd,hdf->bhtf", x, self.w_q)
        k = torch.einsum("bsd,gdf->bgsf", context, self.w_k)
        v = torch.einsum("bsd,gdf->bgsf", context, self.w_v)
        if self.bias:
            q, k, v = q + self.b_q[:, None], k + self.b_k[:, None], v + self.b_v[:, None]
        q = q.unflatten(1, (k.shape[1], self.group)) / math.sqrt(q.shape[-1])
        scores = torch.einsum(self.SCORES, q, k).flatten(1, 2)
        hidden = torch.zeros(scores.shape[-2:], dtype=torch.bool, device=x.device)
        if is_causal:
            hidden = torch.ones_like(hidden).triu(hidden.shape[1] - hidden.shape[0] + 1)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            hidden = hidden | ~attn_mask
        elif attn_mask is not None:
            hidden = hidden | (attn_mask == -math.inf)
            scores = scores + attn_mask.masked_fill(attn_mask == -math.inf, 0.0)
        weights = scores.masked_fill(hidden, torch.finfo(x.dtype).min).softmax(-1).masked_fill(hidden, 0.0)
        dropped = self.dropout(weights).unflatten(1, (k.shape[1], self.group))
        heads = torch.einsum("bgrts,bgsf->bgrtf", dropped, v).flatten(1, 2)
        output = torch.einsum("bhtf,hfd->btd", heads, self.w_o)
        return output + self.b_o if self.bias else output, weights

    @staticmethod
    def named(w: Weights, num_heads: int) -> dict[str, Tensor]:
        """The weights by its names: `[h*f, d]` becomes `[h, d, f]`."""
        f = len(w.w_q) // num_heads
        named = {n: getattr(w, n).unflatten(0, (-1, f)).mT for n in ("w_q", "w_k", "w_v")}
        named["w_o"] = w.w_o.T.unflatten(0, (num_heads, f))
        biases = {n: b.unflatten(0, (-1, f)) for n, b in w.items() if n in ("b_q", "b_k", "b_v")}
        return named | biases | ({} if w.b_o is None else {"b_o": w.b_o})


class EinsumExchanged(Einsum):
    """Wrong: t and s are exchanged on the left side, so each score is that of another pair; for T = S the shapes fit."""

    SCORES = "bgrsf,bgtf->bgrts"


class Head(nn.Module):
    """One head of `Loop`."""

    def __init__(self, d_model: int, d_head: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_head, bias)
        self.key = nn.Linear(d_model, d_head, bias)
        self.value = nn.Linear(d_model, d_head, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = self.query(x), self.key(context), self.value(context)
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5  # [B, T, S]
        if bias is None:
            weights = scores.softmax(-1)
        else:
            empty = (bias == -math.inf).all(-1, keepdim=True)
            weights = (scores + bias.masked_fill(empty, 0.0)).softmax(-1).masked_fill(empty, 0.0)
        return self.dropout(weights) @ v, weights


class Loop(nn.Module):
    """A list of single heads, each with three projections of its own, run one after the other, and concatenated."""

    def __init__(self, d_model: int, num_heads: int, bias: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = nn.ModuleList([Head(d_model, d_model // num_heads, bias, dropout) for _ in range(num_heads)])
        self.proj = nn.Linear(d_model, d_model, bias)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        context = x if context is None else context
        bias = additive(attn_mask, is_causal, x, context.shape[1])
        outputs, weights = [], []
        for i, head in enumerate(self.heads):
            own = None if bias is None else bias[:, i if bias.shape[1] > 1 else 0]
            output, weight = head(x, context, own)
            outputs.append(output)
            weights.append(weight)
        return self.proj(self.merge(outputs)), torch.stack(weights, dim=1)

    def merge(self, outputs: list[Tensor]) -> Tensor:
        return torch.cat(outputs, dim=-1)  # h x [B, T, f] -> [B, T, h*f]


class LoopInterleaved(Loop):
    """Wrong: the heads are stacked on a new last axis, so that their features alternate instead of following each other."""

    def merge(self, outputs: list[Tensor]) -> Tensor:
        return torch.stack(outputs, dim=-1).flatten(2)


class Online(nn.Module):
    """The softmax as it goes, two keys at a time, with a running maximum and a running sum, as FlashAttention does it.

    Whenever the maximum changes, what has been summed up is rescaled. There are never any weights to return.
    """

    CHUNK = 2

    def __init__(
        self, d_model: int, num_heads: int, bias: bool = False, dropout: float = 0.0, num_kv_heads: int | None = None
    ) -> None:
        super().__init__()
        self.h, self.g, self.f = num_heads, num_kv_heads or num_heads, d_model // num_heads
        self.dropout = dropout
        self.to_q = nn.Linear(d_model, d_model, bias)
        self.to_kv = nn.Linear(d_model, 2 * self.g * self.f, bias)
        self.to_out = nn.Sequential(nn.Linear(d_model, d_model, bias), nn.Identity())

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        context = x if context is None else context
        (B, T, _), S = x.shape, context.shape[1]
        q = self.to_q(x).view(B, T, self.h, self.f).transpose(1, 2) * self.f**-0.5
        kv = self.to_kv(context).view(B, S, 2, self.g, self.f).repeat_interleave(self.h // self.g, dim=3)
        k, v = kv.permute(2, 0, 3, 1, 4)  # 2 x [B, h, S, f]
        bias = additive(attn_mask, is_causal, x, S)

        largest = q.new_full((B, self.h, T, 1), -math.inf)
        total, mixed = torch.zeros_like(largest), torch.zeros_like(q)
        for start in range(0, S, self.CHUNK):
            chunk = slice(start, start + self.CHUNK)
            scores = q @ k[:, :, chunk].mT
            if bias is not None:
                scores = scores + bias[..., chunk]
            before, largest = largest, torch.maximum(largest, scores.detach().amax(-1, keepdim=True))
            base = largest.masked_fill(largest == -math.inf, 0.0)  # nothing seen so far: -inf - -inf would be NaN
            total, mixed = self.rescale(total, mixed, (before - base).exp())
            weights = (scores - base).exp()
            total = total + weights.sum(-1, keepdim=True)
            mixed = mixed + F.dropout(weights, self.dropout, self.training) @ v[:, :, chunk]
        heads = mixed / total.masked_fill(total == 0.0, 1.0)  # an empty row has nothing to divide, nor to divide by
        return self.to_out(heads.transpose(1, 2).reshape(B, T, self.h * self.f))

    def rescale(self, total: Tensor, mixed: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        return total * factor, mixed * factor

    @staticmethod
    def named(w: Weights) -> dict[str, Tensor]:
        """The weights by its names: k and v in one."""
        named = {"to_q.weight": w.w_q, "to_kv.weight": torch.cat([w.w_k, w.w_v]), "to_out.0.weight": w.w_o}
        if w.b_q is not None and w.b_k is not None and w.b_v is not None and w.b_o is not None:
            named |= {"to_q.bias": w.b_q, "to_kv.bias": torch.cat([w.b_k, w.b_v]), "to_out.0.bias": w.b_o}
        return named


class OnlineStaleSum(Online):
    """Wrong: when the maximum changes, the running sum is not rescaled, only what it is to divide. Two keys are one chunk."""

    def rescale(self, total: Tensor, mixed: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        return total, mixed * factor


class Bmm(nn.Module):
    """Batch and heads are one axis, `[B*h, T, f]`, for `bmm`; `baddbmm` adds the mask to the scores it makes."""

    def __init__(
        self, d_model: int, num_heads: int, bias: bool = False, dropout: float = 0.0, num_kv_heads: int | None = None
    ) -> None:
        super().__init__()
        self.h, self.g, self.f = num_heads, num_kv_heads or num_heads, d_model // num_heads
        self.dropout = dropout
        width = d_model + 2 * self.g * self.f
        self.in_proj_weight = nn.Parameter(torch.randn(width, d_model) / math.sqrt(d_model))
        self.in_proj_bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.out_proj = nn.Linear(d_model, d_model, bias)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        context = x if context is None else context
        B, T, S, d, narrow = x.shape[0], x.shape[1], context.shape[1], x.shape[2], self.g * self.f
        w_q, w_k, w_v = self.in_proj_weight.split([d, narrow, narrow])
        b_q, b_k, b_v = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.split([d, narrow, narrow])
        q = self.fold(F.linear(x, w_q, b_q), self.h)
        k, v = self.fold(F.linear(context, w_k, b_k), self.g), self.fold(F.linear(context, w_v, b_v), self.g)
        k, v = (heads.repeat_interleave(self.h // self.g, dim=0) for heads in (k, v))  # [B*g, S, f] -> [B*h, S, f]
        bias = additive(attn_mask, is_causal, x, S)
        if bias is None:
            scores = torch.baddbmm(q.new_empty(()), q, k.mT, beta=0.0, alpha=self.f**-0.5)
            weights = scores.softmax(-1)
        else:
            bias = self.repeat_mask(bias.expand(B, -1, T, S))
            empty = (bias == -math.inf).all(-1, keepdim=True)
            scores = torch.baddbmm(bias.masked_fill(empty, 0.0), q, k.mT, alpha=self.f**-0.5)
            weights = scores.softmax(-1).masked_fill(empty, 0.0)
        heads = torch.bmm(F.dropout(weights, self.dropout, self.training), v)  # [B*h, T, f]
        output = self.out_proj(heads.view(B, self.h, T, self.f).transpose(1, 2).reshape(B, T, d))
        return output, weights.view(B, self.h, T, S)

    def fold(self, x: Tensor, heads: int) -> Tensor:
        """[B, T, heads*f] -> [B*heads, T, f]"""
        B, T, _ = x.shape
        return x.view(B, T, heads, self.f).transpose(1, 2).reshape(B * heads, T, self.f)

    def repeat_mask(self, mask: Tensor) -> Tensor:
        """[B, 1 or h, T, S] -> [B*h, T, S]"""
        return mask.flatten(0, 1) if mask.shape[1] == self.h else mask[:, 0].repeat_interleave(self.h, dim=0)


class BmmMaskRepeated(Bmm):
    """Wrong: the masks of the samples are repeated one after the other, 0 1 0 1, where its batch has them as 0 0 1 1."""

    def repeat_mask(self, mask: Tensor) -> Tensor:
        return mask.flatten(0, 1) if mask.shape[1] == self.h else mask[:, 0].repeat(self.h, 1, 1)


class FourthRoot(nn.Module):
    """Queries and keys are both scaled, by the fourth root of 1 / d_head each, and keys have no bias, as in Whisper.

    The softmax is computed in float32 at least, of hidden scores that are finite; a product takes their weights away.
    """

    def __init__(self, d_model: int, num_heads: int, bias: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.h, self.dropout = num_heads, nn.Dropout(dropout)
        self.query = nn.Linear(d_model, d_model, bias)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias)
        self.out = nn.Linear(d_model, d_model, bias)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, *, context: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        context = x if context is None else context
        q, k, v = self.query(x), self.key(context), self.value(context)
        q, k, v = (t.unflatten(2, (self.h, t.shape[2] // self.h)).transpose(1, 2) for t in (q, k, v))  # [B, h, T or S, f]
        scores = self.score(q, k)
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = additive(attn_mask, is_causal, x, k.shape[2])
        if bias is None:
            weights = scores.softmax(-1, dtype=wide)
        else:
            finite = bias.to(wide).clamp(min=torch.finfo(wide).min / 2)
            weights = (scores.to(wide) + finite).softmax(-1) * (bias > -math.inf)
        weights = weights.to(x.dtype)
        heads = self.dropout(weights) @ v
        return self.out(heads.transpose(1, 2).flatten(2)), weights

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        root = q.shape[-1] ** -0.25
        return (q * root) @ (k * root).mT


class FourthRootThrice(FourthRoot):
    """Wrong: the keys are scaled twice, so that scores are divided by d_head ** 0.75; right for d_head = 1."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k * k.shape[-1] ** -0.25)


def of_einsum(attention: type[Einsum]) -> Subject:
    """Its weights have an axis for heads, and a function of the weights alone cannot tell how many: one adapter for each size."""

    def build(inputs: Inputs) -> nn.Module:
        bias = inputs.weights.b_o is not None
        made = attention(inputs.x.shape[2], inputs.num_heads, bias, inputs.dropout, inputs.num_kv_heads)
        return made.to(inputs.x.dtype)

    def arguments(inputs: Inputs) -> tuple[tuple[Tensor, Tensor | None], dict[str, object]]:
        return (inputs.x, inputs.mask), {"context": inputs.context, "is_causal": inputs.is_causal}

    def layer(inputs: Inputs) -> Layer:
        named = partial(attention.named, num_heads=inputs.num_heads)
        return of_module(attention.__name__, build=build, parameters=named, arguments=arguments).build(inputs)

    return Subject(name=attention.__name__, build=layer)


def subject_of(attention: type[nn.Module]) -> Subject:
    """The layouts of `Loop`, `Bmm` and `FourthRoot` are recognised, those of the others are said."""
    if issubclass(attention, Einsum):
        return of_einsum(attention)
    parameters = Online.named if issubclass(attention, Online) else None
    return of_class(attention, name=attention.__name__, parameters=parameters, empty_rows="zero")


RIGHT = (Einsum, Loop, Online, Bmm, FourthRoot)
WRONG = (EinsumExchanged, LoopInterleaved, OnlineStaleSum, BmmMaskRepeated, FourthRootThrice)
