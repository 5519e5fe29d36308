"""Masks: which keys a query may attend to.

A boolean mask says True = may attend, as in `F.scaled_dot_product_attention` (`nn.MultiheadAttention` says the opposite).
A floating mask is added to the scores: 0 leaves a score as it is, -inf hides the key.
Both broadcast to the scores, `[B, h, T, S]`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def causal_mask(queries: int, keys: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
    """Return the boolean causal mask `[T, S]`; without `keys`, S = T.

    Aligned at the bottom right: the last query sees the last key, so query i sees the keys j <= i + (S - T). This is what
    decoding with a cache needs: T new tokens after S - T old ones. With more queries than keys the first T - S rows are empty.
    (`is_causal` in PyTorch's `scaled_dot_product_attention` is aligned at the top left; the two agree only for T = S.)

    >>> causal_mask(2, 3).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    keys = queries if keys is None else keys
    if queries < 0 or keys < 0:
        raise ValueError(f"causal_mask: lengths cannot be negative, got queries={queries}, keys={keys}")
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def padding_mask(lengths: Tensor, keys: int) -> Tensor:
    """Return the boolean mask `[B, 1, 1, S]` that hides the padding at the right of each sample; `lengths` is `[B]`, integers.

    >>> padding_mask(torch.tensor([1, 3]), 3).int().flatten(1).tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"padding_mask: lengths must be integers, got {lengths.dtype}")
    if lengths.dim() != 1:
        raise ValueError(f"padding_mask: lengths must have shape [B], got {list(lengths.shape)}")
    if lengths.numel() > 0 and (int(lengths.min()) < 0 or int(lengths.max()) > keys):
        raise ValueError(f"padding_mask: every length must lie in [0, keys={keys}], got {lengths.tolist()}")
    visible = torch.arange(keys, device=lengths.device) < lengths[:, None]  # [B, S]
    return visible[:, None, None, :]


def restrict(mask: Tensor | None, visible: Tensor) -> Tensor:
    """Return `mask`, boolean, additive or None, with all hidden that the boolean `visible` hides; their shapes broadcast.

    >>> restrict(torch.tensor([[0.5, 0.0]]), torch.tensor([[True, False]]))
    tensor([[0.5000,   -inf]])
    """
    if mask is None:
        return visible
    return mask & visible if mask.dtype == torch.bool else mask.masked_fill(~visible, -math.inf)


def boolean_to_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask to add to scores of this dtype: 0 where `mask` is True, -inf where it is False. Same shape.

    >>> boolean_to_additive(torch.tensor([[True, False]]), torch.float32)
    tensor([[0., -inf]])
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"boolean_to_additive: mask must be boolean (True = may attend), got {mask.dtype}")
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)


def additive_to_boolean(mask: Tensor) -> Tensor:
    """Return True where the additive `mask` is 0 and False where it is -inf. Same shape.

    Any other value is a bias, which no boolean mask can carry: it raises ValueError.

    >>> additive_to_boolean(torch.tensor([[0.0, -torch.inf]]))
    tensor([[ True, False]])
    """
    if not mask.is_floating_point():
        raise TypeError(f"additive_to_boolean: mask must be floating (0 or -inf), got {mask.dtype}")
    visible = mask == 0
    if not bool((visible | (mask == -math.inf)).all()):
        raise ValueError("additive_to_boolean: mask holds values other than 0 and -inf: it is a bias, keep it additive")
    return visible


def possibly_any(flags: Tensor) -> bool:
    """Is any flag True? Also yes where nobody can say: in a graph being traced, in `vmap`, on the meta device.

    >>> possibly_any(torch.tensor([False, False])), possibly_any(torch.empty(2, dtype=torch.bool, device="meta"))
    (False, True)
    """
    if torch.compiler.is_compiling():
        return True
    try:
        return bool(flags.any())
    except RuntimeError:  # this tensor stands for others, or has no content
        return True
