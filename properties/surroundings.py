"""What lies around a subject and belongs to others: torch's settings, and everybody's random numbers."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, torch.set_default_device),
    "whether gradients are recorded": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's choice of deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "torch's precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
}


@dataclass(frozen=True)
class Settings:
    """torch's settings for the whole process."""

    values: dict[str, Any]

    @classmethod
    def now(cls) -> Settings:
        return cls({name: get() for name, (get, _) in _SETTINGS.items()})

    def restore(self) -> list[str]:
        """Put back what has changed, and say what it was."""
        changed = []
        for name, (get, put) in _SETTINGS.items():
            before, after = self.values[name], get()
            if after != before:
                put(before)
                changed.append(f"{name} from {before} to {after}")
        return changed


@dataclass(frozen=True)
class RandomState:
    """The state of the global random numbers of torch, of Python, and of numpy if it is loaded."""

    torch: Tensor
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> RandomState:
        numpy = _numpy_random()
        return cls(torch.default_generator.get_state(), random.getstate(), numpy.get_state() if numpy else None)

    def restore(self) -> None:
        torch.default_generator.set_state(self.torch)
        random.setstate(self.python)
        numpy = _numpy_random()
        if numpy and self.numpy:
            numpy.set_state(self.numpy)

    def changed(self) -> list[str]:
        """Whose random numbers are others than they were."""
        now = RandomState.now()
        whose = {
            "torch's": torch.equal(self.torch, now.torch),
            "Python's": self.python == now.python,
            "numpy's": repr(self.numpy) == repr(now.numpy),
        }
        return [name for name, same in whose.items() if not same]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put back afterwards what was changed of torch's settings and of everybody's random numbers."""
    settings, random_numbers = Settings.now(), RandomState.now()
    try:
        yield
    finally:
        settings.restore()
        random_numbers.restore()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Give torch's global generator this seed, and put it back afterwards."""
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


def _numpy_random() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)
