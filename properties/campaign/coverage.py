"""What was drawn: how often each coincidence of sizes, each kind of mask, an empty row, each value of a field came up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from properties.case import FIELDS, Case
from properties.inputs import make_inputs

# Where mistakes hide: sizes that happen to be equal, and the smallest.
COINCIDENCES: Mapping[str, Callable[[Case], bool]] = {
    "T = S": lambda case: case.T == case.S,
    "T = h": lambda case: case.num_heads == case.T,
    "S = h": lambda case: case.num_heads == case.S,
    "h = d_head": lambda case: case.num_heads == case.d_head,
    "T = d_head": lambda case: case.d_head == case.T,
    "B = h": lambda case: case.batch == case.num_heads,
    "B = g": lambda case: case.batch == case.g,
    "B = T": lambda case: case.batch == case.T,
    "B = S": lambda case: case.batch == case.S,
    "B = 1": lambda case: case.batch == 1,
    "T = 1": lambda case: case.T == 1,
    "S = 1": lambda case: case.S == 1,
    "h = 1": lambda case: case.num_heads == 1,
    "d_head = 1": lambda case: case.d_head == 1,
    "T > S": lambda case: case.T > case.S,
    "T < S": lambda case: case.T < case.S,
    "g < h": lambda case: case.g < case.num_heads,
    "no coincidence": lambda case: len({case.batch, case.T, case.S, case.num_heads, case.d_head}) == 5,
}
ROWS = ("an empty row", "only empty rows", "a hidden key", "no key hidden")
KINDS = ("mask", "encoding", "layout", "bias", "dropout", "num_kv_heads")  # fields whose values are all counted
MECHANISMS = (  # fields of which only some subjects have more than one value, counted if it is another than usual
    "placing",
    "positions",
    "window",
    "soft_cap",
    "rotary_width",
    "stretch",
    "sinks",
    "qk_norm",
    "prefill",
    "spare",
)


_USUAL = Case()


def drawn(cases: Iterable[Case], dtype: str) -> dict[str, int]:
    """Count what came up in the cases, asked in this dtype."""
    counted: Counter[str] = Counter()
    for case in cases:
        counted.update(name for name, true in COINCIDENCES.items() if true(case))
        counted.update(_rows(case))
        counted.update(f"{name}={getattr(case, name)!r}" for name in KINDS)
        counted.update(f"{name}={value!r}" for name in MECHANISMS if (value := getattr(case, name)) != getattr(_USUAL, name))
        counted[f"dtype={dtype!r}"] += 1
    return dict(counted)


def expected() -> list[str]:
    """What should come up sooner or later, whatever the subject: all that a case can be without mechanisms."""
    return [*COINCIDENCES, *ROWS, *(f"{name}={value!r}" for name in KINDS for value in dict.fromkeys(FIELDS[name]))]


def _rows(case: Case) -> Iterable[str]:
    visible = make_inputs(case).visible()
    seen = visible.any(-1)
    if not seen.all():
        yield ROWS[0]
    if not seen.any():
        yield ROWS[1]
    yield ROWS[3] if visible.all() else ROWS[2]
