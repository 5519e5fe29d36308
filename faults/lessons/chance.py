"""Draws that are the same on every machine: what dropout drops depends, in torch, on the library that torch was built with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class SameDraws(TorchDispatchMode):
    """Let bernoulli and dropout draw from uniform numbers, which are defined to the bit, from the same beginning every time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(30)  # of four weights it keeps the first and the last

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        packet = getattr(func, "overloadpacket", func)
        if packet is aten.native_dropout:
            tensor, p, train = args
            kept = self._below(tensor, 1 - p) if train else torch.ones_like(tensor, dtype=torch.bool)
            return tensor * kept / (1 - p if train else 1), kept
        if packet is aten.bernoulli_:
            return args[0].copy_(self._below(args[0], args[1] if len(args) > 1 else given.get("p", 0.5)))
        if packet is aten.bernoulli:
            return self._below(args[0], args[1] if len(args) > 1 else given.get("p", args[0])).to(args[0].dtype)
        return func(*args, **given)

    def _below(self, like: Tensor, chance: float | Tensor) -> Tensor:
        drawn = torch.rand(like.shape, generator=self.generator, dtype=torch.float64)
        return drawn < chance
