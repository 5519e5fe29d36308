"""What the rows and columns of a tensor are called, in a drawing: which head, which token, which feature."""

from __future__ import annotations

import itertools

from torch import Tensor

from faults.lessons.examples import Example

_TOKENS = ("sample", "token", "feature")
_HEADS = ("sample", "head", "token", "feature")
_PAIRS = ("sample", "head", "query", "key")
_AXES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("project_in", "merge_heads", "project_out", "output", "x", "context", "merged", "x after the call"), _TOKENS
    ),
    **dict.fromkeys(("context after the call", "gradient of x", "gradient of context"), _TOKENS),
    **dict.fromkeys(("split_heads", "expand_kv_heads", "rotate", "place", "append", "normalise", "combine", "new_cache"), _HEADS),
    **dict.fromkeys(("reset", "reorder", "forget", "unpair", "heads", "q", "k", "v"), _HEADS),
    "pair": ("sample", "head", "token", "pair"),
    **dict.fromkeys(("score", "mask", "softmax", "drop", "cap", "weights", "scores", "hide_distant", "hide_others"), _PAIRS),
    **dict.fromkeys(("open_prefix", "crop", "bucket", "attn_mask", "mask after the call", "gradient of mask"), _PAIRS),
    "slopes": ("head",),
    "angles": ("sample", "head", "token", "pair"),
    "frequencies": ("pair",),
    "count": ("token",),
    "gradient of sinks": ("head",),
    "gradient of table": ("bucket", "head"),
}
_PLACES = {"query": "query", "key": "key"}


def axes(name: str, tensor: Tensor) -> tuple[str, ...]:
    """A word for each axis; those of what is broadcast are the last ones."""
    known = _AXES.get(name, ("row", "column"))
    if name == "split_heads" and tensor.dim() == 3:
        known = _TOKENS
    if name == "x" and tensor.dim() == 4:  # some steps call so what has heads already
        known = _HEADS
    known = known[-tensor.dim() :] if tensor.dim() else ()
    return ("",) * (tensor.dim() - len(known)) + known


def columns(name: str, tensor: Tensor, example: Example) -> tuple[str, ...]:
    """The labels of the last axis."""
    if not tensor.dim():
        return ("",)
    word, size, heads, d_head = axes(name, tensor)[-1], tensor.shape[-1], example.case.num_heads, example.case.d_head
    if word == "feature":
        if size == heads * d_head and heads > 1:
            return tuple(f"h{i // d_head} f{i % d_head}" for i in range(size))
        return tuple(f"f{i}" for i in range(size))
    return tuple(f"{word} {i}".strip() for i in range(size))


def rows(name: str, tensor: Tensor, example: Example) -> tuple[str, ...]:
    """The labels of all other axes together, of those that say anything."""
    words, sizes = axes(name, tensor)[:-1], tensor.shape[:-1]
    told = [i for i, size in enumerate(sizes) if size > 1 or (i == len(sizes) - 1 and words[i] not in ("sample", "head", ""))]
    return tuple(
        ", ".join(f"{words[i]} {index[i]}".strip() for i in told) for index in itertools.product(*(range(size) for size in sizes))
    )
