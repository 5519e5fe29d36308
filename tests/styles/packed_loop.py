"""Causal attention over packed documents, head by head in a loop, with the softmax written out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.supports import Supports
from properties.wrap import of_module


class PackedAttention(nn.Module):
    """A token sees those of its own document that are not after it. Returns the output and the weights `[B, h, T, T]`."""

    def __init__(self, d_model, num_heads, num_kv_heads, bias=False, dropout=0.0, dtype=None):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.d_head = d_model // num_heads
        kv_width = num_kv_heads * self.d_head
        self.query = nn.Linear(d_model, d_model, bias=bias, dtype=dtype)
        self.key = nn.Linear(d_model, kv_width, bias=bias, dtype=dtype)
        self.value = nn.Linear(d_model, kv_width, bias=bias, dtype=dtype)
        self.output = nn.Linear(d_model, d_model, bias=bias, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, documents: Tensor):
        samples, tokens, _ = x.shape
        queries = self.query(x).split(self.d_head, dim=-1)  # num_heads x [B, T, d_head]
        keys, values = self.key(x).split(self.d_head, dim=-1), self.value(x).split(self.d_head, dim=-1)

        place = torch.arange(tokens, device=x.device)
        earlier = place[None, :] <= place[:, None]  # [T, T]
        own = documents[:, :, None] == documents[:, None, :]  # [B, T, T]
        visible = own & earlier
        if mask is not None:
            mask = mask.expand(samples, self.num_heads, tokens, tokens)

        mixed, weights = [], []
        for head in range(self.num_heads):
            group = head * self.num_kv_heads // self.num_heads
            score = queries[head] @ keys[group].transpose(1, 2) / math.sqrt(self.d_head)  # [B, T, T]
            seen = visible
            if mask is not None and mask.dtype == torch.bool:
                seen = seen & mask[:, head]
            elif mask is not None:
                score = score + mask[:, head]
            weight = self.softmax(score.masked_fill(~seen, -math.inf))
            mixed.append(self.dropout(weight) @ values[group])
            weights.append(weight)
        return self.output(torch.cat(mixed, dim=-1)), torch.stack(weights, dim=1)

    def softmax(self, score):
        """Over the last axis; zero where a row is nothing but -inf."""
        top = score.detach().amax(dim=-1, keepdim=True)
        power = torch.exp(score - top.masked_fill(top == -math.inf, 0.0))
        total = power.sum(dim=-1, keepdim=True)
        return power / total.masked_fill(total == 0.0, 1.0)


def subject(name: str, supports: Supports) -> Subject:
    """The class above as a subject of the properties."""

    def build(inputs: Inputs) -> nn.Module:
        sizes = inputs.x.shape[2], inputs.num_heads, inputs.num_kv_heads
        return PackedAttention(*sizes, inputs.weights.b_o is not None, inputs.dropout, inputs.x.dtype)

    def parameters(w: Weights) -> dict[str, Tensor]:
        named = {"query.weight": w.w_q, "key.weight": w.w_k, "value.weight": w.w_v, "output.weight": w.w_o}
        named |= {"query.bias": w.b_q, "key.bias": w.b_k, "value.bias": w.b_v, "output.bias": w.b_o}
        return {key: tensor for key, tensor in named.items() if tensor is not None}

    def arguments(inputs: Inputs) -> tuple[tuple[Tensor, Tensor | None], dict[str, object]]:
        return (inputs.x, inputs.mask), {"documents": inputs.documents}

    return of_module(name, build=build, parameters=parameters, arguments=arguments, supports=supports)
