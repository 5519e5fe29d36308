"""Self-attention, written by hand."""

import torch
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Multi-head self-attention: x is [batch, tokens, d_model], True in the mask means that a token may be attended to."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.out(self.merge(torch.softmax(scores, dim=-1) @ v))

    def split(self, x: Tensor) -> Tensor:
        batch, tokens, d_model = x.shape
        return x.view(batch, tokens, self.num_heads, d_model // self.num_heads).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        batch, num_heads, tokens, d_head = heads.shape
        return heads.transpose(1, 2).reshape(batch, tokens, num_heads * d_head)


class BrokenSelfAttention(SelfAttention):
    """The same, after an afternoon of making it faster."""

    def merge(self, heads: Tensor) -> Tensor:
        batch, num_heads, tokens, d_head = heads.shape
        return heads.reshape(batch, tokens, num_heads * d_head)
