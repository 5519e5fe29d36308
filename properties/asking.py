"""What a call or two tell of a subject, so that it need not be declared: whether it returns weights, and what an empty row gives.

Nothing else is found by asking: that a layer refuses a mask may be its limit or its mistake, and only its author knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from properties.case import Case
from properties.conventions import to_subject
from properties.inputs import Inputs, make_inputs
from properties.oracle import attend
from properties.subject import Broken, Layer, Result
from properties.supports import Supports
from properties.surroundings import seeded, undisturbed
from properties.time_limit import OutOfTime, time_limit

_LONG_ENOUGH = 5.0  # seconds: a first call may import half a library
_EMPTY_ROWS = {"zero": "zeros", "nan": "NaN", "uniform": "the mean of all values", "undefined": "nothing in particular"}


@dataclass(frozen=True)
class Answers:
    """What was found by asking."""

    declarations: dict[str, Any]
    notes: list[str]  # for reports


def ask(build: Callable[[Inputs], Layer], declared: Mapping[str, Any], *, masked: bool) -> Answers:
    """Ask what is not declared; `masked`: it can be handed masks."""
    inputs = example(declared)
    found: dict[str, Any] = {}
    notes: list[str] = []
    if "weights" not in declared:
        plain = _call(build, inputs, declared)
        found["weights"] = isinstance(plain, Result) and isinstance(plain.weights, Tensor)
        notes.append("it returns weights" if found["weights"] else "it returns no weights")
        if isinstance(plain, str):
            notes[-1] = f"it could not be asked whether it returns weights, since {plain}; declare weights=True or False"
    found["training_weights"] = declared.get("weights", found.get("weights"))
    if masked and "empty_rows" not in declared:
        empty = _call(build, replace(inputs, mask=_first_query_sees_nothing(declared)), declared)
        if isinstance(empty, str):
            notes.append(f"it could not be asked what a query gets that sees no key, since {empty}; declare empty_rows")
        else:
            policy = _policy(empty.output[:, 0], inputs, declared.get("loads_weights", True))
            found["empty_rows"] = policy
            notes.append(f"a query that sees no key gets {_EMPTY_ROWS[policy]} (empty_rows={policy!r})")
    return Answers(found, notes)


def example(declared: Mapping[str, Any], bias: bool = False) -> Inputs:
    """Inputs of a size that the subject takes."""
    num_heads, d_head = (tuple(declared.get(name) or (usual,))[0] for name, usual in (("num_heads", 2), ("d_heads", 4)))
    return make_inputs(Case(batch=2, queries=3, num_heads=num_heads, d_head=d_head, bias=bias), torch.float32)


def _policy(row: Tensor, inputs: Inputs, weights_are_ours: bool) -> str:
    """Which of `properties.supports.EMPTY_ROWS` the output `[B, d]` of an empty row follows; "zero", as a demand, if none."""
    if bool(row.isnan().all()):
        return "nan"
    if not weights_are_ours:
        return "undefined"  # zeros or a mean, projected we do not know how
    alike = inputs.with_weights(w_k=torch.zeros_like(inputs.weights.w_k))  # all keys get the same weight
    mean = attend(alike).output[:, 0]
    return "uniform" if bool(((row - mean).abs() < 1e-3).all()) else "zero"


def _first_query_sees_nothing(declared: Mapping[str, Any]) -> Tensor:
    visible = torch.ones(3, 3, dtype=torch.bool)
    visible[0] = False
    return visible if "bool" in declared.get("encodings", ("bool",)) else torch.zeros(3, 3).masked_fill(~visible, -torch.inf)


def _call(build: Callable[[Inputs], Layer], inputs: Inputs, declared: Mapping[str, Any]) -> Result | str:
    """The result, or why there is none; what is wrong with it is for the laws to say."""
    conventions = Supports(**{name: declared[name] for name in ("mask_shape", "polarity", "scale") if name in declared})
    try:
        with undisturbed(), torch.no_grad(), seeded(0), time_limit(_LONG_ENOUGH):
            said = to_subject(inputs, conventions)
            result = build(said).run(said, False)
    except KeyboardInterrupt:
        raise
    except OutOfTime:
        return f"it did not end within {_LONG_ENOUGH:g} seconds"
    except Broken as error:
        return str(error)
    except BaseException as error:
        return f"it raised {type(error).__name__}: {error}"
    if not isinstance(result.output, Tensor) or result.output.shape != inputs.x.shape:
        return "it returned no output of the shape of x"
    return result
