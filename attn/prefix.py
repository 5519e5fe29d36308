"""A prefix that sees itself both ways, and a causal rest: an encoder and a decoder in one."""

from __future__ import annotations

import torch
from torch import Tensor

from attn import checks
from attn.masks import causal_mask, restrict
from attn.multihead import MultiHeadAttention


def prefix_mask(lengths: Tensor, queries: int) -> Tensor:
    """Return the boolean mask `[B, 1, T, T]`: causal, but the first `lengths[b]` tokens, `[B]`, are seen by all.

    >>> prefix_mask(torch.tensor([2]), 3).int()[0, 0].tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    in_prefix = torch.arange(queries, device=lengths.device) < lengths[:, None]  # [B, T]
    return causal_mask(queries, device=lengths.device) | in_prefix[:, None, None, :]


class PrefixAttention(MultiHeadAttention):
    """Self-attention of a prefix language model (Raffel et al. 2019, https://arxiv.org/abs/1910.10683, figure 4)."""

    def forward(  # type: ignore[override]  # no context: it has one sequence
        self, x: Tensor, attn_mask: Tensor | None = None, *, prefix: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `MultiHeadAttention`; `prefix` `[B]`: how many tokens at the beginning see each other; the rest is causal."""
        checks.check_inputs(self, x, attn_mask, None)
        checks.check_prefix(prefix, x)
        q, k, v = self.project_in(x, None)
        attn_mask = self.open_prefix(attn_mask, prefix, x.shape[1])
        return self.attend(self.split_heads(q), self.split_heads(k), self.split_heads(v), attn_mask, False)

    def open_prefix(self, attn_mask: Tensor | None, prefix: Tensor, tokens: int) -> Tensor:
        """Hide, besides what `attn_mask` hides, the future outside of the prefix."""
        return restrict(attn_mask, prefix_mask(prefix, tokens))
