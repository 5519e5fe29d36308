"""Packed documents: several of them in one row, none of which sees another."""

from __future__ import annotations

from torch import Tensor

from attn import checks
from attn.masks import restrict
from attn.multihead import MultiHeadAttention


def document_mask(documents: Tensor) -> Tensor:
    """Return the boolean mask `[B, 1, T, T]` that shows every token those of its own document; `documents` is `[B, T]`.

    >>> document_mask(torch.tensor([[0, 0, 1]])).int()[0, 0].tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    return documents[:, None, :, None] == documents[:, None, None, :]


class PackedAttention(MultiHeadAttention):
    """Causal self-attention over rows that hold several documents, as in training without padding (Krell et al. 2021,
    https://arxiv.org/abs/2107.02027).
    """

    def forward(  # type: ignore[override]  # no context: nothing says which of its tokens belong to which document
        self, x: Tensor, attn_mask: Tensor | None = None, *, documents: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `MultiHeadAttention`, with the future and other documents hidden; `documents` `[B, T]`: which one a token is of."""
        checks.check_inputs(self, x, attn_mask, None)
        checks.check_labels("documents", documents, x)
        q, k, v = self.project_in(x, None)
        attn_mask = self.hide_others(attn_mask, documents)
        return self.attend(self.split_heads(q), self.split_heads(k), self.split_heads(v), attn_mask, True)

    def hide_others(self, attn_mask: Tensor | None, documents: Tensor) -> Tensor:
        """Hide, besides what `attn_mask` hides, the tokens of other documents."""
        return restrict(attn_mask, document_mask(documents))
