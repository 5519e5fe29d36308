"""What a call makes on the default device, watched as if x were on another: no second device is needed, and no number changes.

Every torch function is seen on its way. What a constructor makes without being told where is taken to be elsewhere, and so is
what is computed from it, until it is moved. Where it meets a tensor that was handed in, a second device would have raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from properties.inputs import Inputs
from properties.subject import Layer

_MAKERS = {
    *(torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.logspace, torch.ones, torch.rand, torch.randint),
    *(torch.randn, torch.randperm, torch.range, torch.tensor, torch.tril_indices, torch.triu_indices, torch.zeros),
}
_MOVERS = {Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.type, Tensor.type_as}
# They take a tensor of another device: to copy its numbers, to look up places, or for its shape alone.
_TOLERANT: Collection[Callable[..., Any]] = {
    *(Tensor.copy_, Tensor.__getitem__, Tensor.__setitem__, Tensor.expand_as, Tensor.view_as, Tensor.reshape_as),
    *(torch.broadcast_tensors, torch.result_type, torch.can_cast),
}
_MARK = "_made_elsewhere"


class Elsewhere(TorchFunctionMode):
    """Notes what would not meet on a second device; `met` says it, in words."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        given = list(_tensors((args, tuple(kwargs.values()))))
        if func in _MAKERS:
            if kwargs.get("device") is None and not given:
                _mark(made, f"torch.{func.__name__}")
        elif func in _MOVERS:
            if given and _stays(given, args[1:], kwargs):
                _mark(made, _maker(given[0]))
            elif isinstance(made, Tensor) and _maker(made):
                return made[...]  # here it is on that device already, and `to` gives back the very tensor
        elif func in _TOLERANT:
            _mark(made, _maker(given[0]) if given else None)
        else:
            self._judge(func, made, given)
        return made

    def _judge(self, func: Callable[..., Any], made: Any, given: list[Tensor]) -> None:
        strangers = [tensor for tensor in given if _maker(tensor)]
        if not strangers:
            return
        # A single number goes with any device.
        at_home = [tensor for tensor in given if not _maker(tensor) and tensor.dim() > 0]
        abroad = [tensor for tensor in strangers if tensor.dim() > 0]
        if at_home and abroad:
            name = (resolve_name(func) or str(func)).rpartition(".")[2]
            self.met.append(f"{_maker(abroad[0])}, without a device, made what {name} takes along with tensors on that of x")
        if not at_home:
            _mark(made, _maker(strangers[0]))


@contextmanager
def watching(layer: Layer) -> Iterator[tuple[Elsewhere, Callable[[Inputs, bool], Any]]]:
    """Watch the calls of a layer with inputs and a mode, and no more than them: how it comes by its weights is not its doing."""
    mode = Elsewhere()
    if layer.module is None:

        def watched(inputs: Inputs, training: bool) -> Any:
            with mode:
                return layer(inputs, training=training)

        yield mode, watched
        return
    module = layer.module.module

    def run(inputs: Inputs, training: bool) -> Any:
        return layer(inputs, training=training)

    with ExitStack() as inside:  # of a forward pass that does not end

        def enter(module: nn.Module, args: Any) -> None:
            inside.enter_context(mode)

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            inside.close()

        hooks = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)]
        try:
            yield mode, run
        finally:
            for hook in hooks:
                hook.remove()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _maker(tensor: Tensor) -> str | None:
    return getattr(tensor, _MARK, None)


def _mark(made: Any, maker: str | None) -> None:
    if maker:
        for tensor in _tensors(made):
            setattr(tensor, _MARK, maker)


def _stays(given: list[Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Does such a call change the dtype alone?"""
    said = (*args, *kwargs.values())
    return len(given) == 1 and bool(said) and all(isinstance(value, torch.dtype | bool | None) for value in said)
