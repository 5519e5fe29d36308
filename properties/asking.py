"""What a call or two tell of a subject, so that it need not be declared: whether it returns weights, and what an empty row gives.

Nothing else is found by asking: that a layer refuses a mask may be its limit or its mistake, and only its author knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from properties.case import Case
from properties.conventions import to_subject
from properties.inputs import Inputs, make_inputs
from properties.oracle import attend
from properties.subject import Layer, Result
from properties.supports import Supports
from properties.surroundings import Settings, seeded
from properties.time_limit import time_limit

_LONG_ENOUGH = 10.0  # seconds: a first call may import half a library
_EMPTY_ROWS = {"zero": "zeros", "nan": "NaN", "uniform": "the mean of all values", "undefined": "nothing in particular"}


def ask(build: Callable[[Inputs], Layer], declared: Mapping[str, Any], *, masked: bool) -> dict[str, Any]:
    """Return the declarations that calls suggest; `masked`: it can be handed masks."""
    inputs = example(declared)
    found: dict[str, Any] = {}
    if "weights" not in declared:
        plain = _call(build, inputs, declared)
        found["weights"] = plain is not None and isinstance(plain.weights, Tensor)
    found["training_weights"] = declared.get("weights", found.get("weights"))
    if masked and "empty_rows" not in declared:
        first_hidden = torch.ones(3, 3, dtype=torch.bool)
        first_hidden[0] = False
        empty = _call(build, replace(inputs, mask=first_hidden), declared)
        if empty is not None:
            found["empty_rows"] = _policy(empty.output[:, 0], inputs, declared.get("loads_weights", True))
    return found


def told(found: Mapping[str, Any], supports: Supports) -> list[str]:
    """Say, for a report, what was found and not declared."""
    lines = []
    if "weights" in found:
        lines.append("it returns weights" if supports.weights else "it returns no weights")
    if "empty_rows" in found:
        policy = supports.empty_rows
        lines.append(f"a query that sees no key gets {_EMPTY_ROWS[policy]} (empty_rows={policy!r})")
    return lines


def example(declared: Mapping[str, Any]) -> Inputs:
    """Inputs of a size that the subject takes."""
    num_heads, d_head = (tuple(declared.get(name) or (usual,))[0] for name, usual in (("num_heads", 2), ("d_heads", 4)))
    return make_inputs(Case(batch=2, queries=3, num_heads=num_heads, d_head=d_head), torch.float32)


def _policy(row: Tensor, inputs: Inputs, weights_are_ours: bool) -> str:
    """Which of `properties.supports.EMPTY_ROWS` the output `[B, d]` of an empty row follows; "zero", as a demand, if none."""
    if bool(row.isnan().all()):
        return "nan"
    if not weights_are_ours:
        return "undefined"  # zeros or a mean, projected we do not know how
    alike = inputs.with_weights(w_k=torch.zeros_like(inputs.weights.w_k))  # all keys get the same weight
    mean = attend(alike).output[:, 0]
    return "uniform" if bool(((row - mean).abs() < 1e-3).all()) else "zero"


def _call(build: Callable[[Inputs], Layer], inputs: Inputs, declared: Mapping[str, Any]) -> Result | None:
    """The result; None if that is no result, which laws will find as well."""
    conventions = Supports(**{name: declared[name] for name in ("mask_shape", "polarity", "scale") if name in declared})
    settings = Settings.now()
    try:
        with torch.no_grad(), seeded(0), time_limit(_LONG_ENOUGH):
            said = to_subject(inputs, conventions)
            result = build(said).run(said, False)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None
    finally:
        settings.restore()
    return result if isinstance(result.output, Tensor) and result.output.shape == inputs.x.shape else None
