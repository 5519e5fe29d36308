"""Subjects for attention that others wrote, one library a module, each with its `SUBJECTS`: functions that make one.

None is imported unless asked for. `properties.adapters.pytorch` and its neighbours need torch alone; the others need the package
they are called after.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace

from properties.subject import Subject

# The modules, and the package that each needs.
ADAPTERS = {
    "pytorch": "torch",
    "pytorch_flex": "torch",
    "pytorch_transformer": "torch",
    "pytorch_quantizable": "torch",
    "opacus": "opacus",
    "huggingface": "transformers",
    "x_transformers": "x-transformers",
    "keras": "keras",
    "torchtune": "torchtune",
}


def shipped(adapter: str) -> Iterator[Subject]:
    """Make the subjects of one of the adapters."""
    for number, make in enumerate(importlib.import_module(f"properties.adapters.{adapter}").SUBJECTS):
        code = f"list(properties.adapters.shipped({adapter!r}))[{number}]"
        yield replace(make(), expression=code, imports=("import properties.adapters",))
