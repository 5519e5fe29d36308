"""Padding at the left, where a batch that is to be continued must have it."""

from __future__ import annotations

import torch
from torch import Tensor


def positions_without_padding(real: Tensor) -> Tensor:
    """Return the positions `[B, S]` that tokens have without the padding before them; `real` `[B, S]` is False for padding.

    Padding gets position 0: no one sees it, but a position must be none that does not exist.

    >>> positions_without_padding(torch.tensor([[False, False, True, True]])).tolist()
    [[0, 0, 0, 1]]
    """
    if real.dtype != torch.bool or real.dim() != 2:
        raise TypeError(f"positions_without_padding: real must be boolean [B, S], got {real.dtype} {list(real.shape)}")
    return (real.long().cumsum(dim=1) - 1).clamp(min=0)
