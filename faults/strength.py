"""How strong the properties are together, and what each is there for: `python -m faults strength`, and `docs/strength.md`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from faults.coverage import Standing, killers_of, smallest_set, standings
from faults.kills import LACKING, VISIBLE
from faults.matrix import Row
from properties.laws import PROPERTIES

PAGE = Path(__file__).parents[1] / "docs" / "strength.md"
COMMAND = "python -m faults strength --write"

# Why a property is kept that is never alone and never first, by its name. `python -m faults` says who needs a reason.
KEPT: dict[str, str] = {
    "nonfinite_hidden_tokens_are_irrelevant": "Not asked of the faults, since `attn` does not promise it; for a layer that does, "
    "it alone puts NaN and infinity into hidden tokens.",
    "a_bias_multiplies_the_odds": "Needs neither weights nor a formula, and says of a mask that is scaled or lost that it is.",
    "positions_are_counted_if_none_are_given": "Needs neither weights nor a formula, and names the mistake: what is the default.",
    "one_key_is_dropped_or_scaled_up": "Needs neither weights nor a formula, and says of dropout whether it rescales.",
    "scores_start_in_reach": "For the initial scale of somebody else's layer: there is no report of one that was far off.",
    "a_reset_reaches_every_parameter": "Of somebody else's `reset_parameters`: the layers here have none but torch's.",
}

# Why no law can see a fault in a layer whose weights cannot be loaded, by the name of the fault.
_ANOTHER_SCALE = "For any one size it is the right layer with other queries: W_Q and b_Q times a number."
_OTHER_ROWS = "It is the right layer with the rows of its projection under other names."
_TABLE = "It is the right layer with other numbers in its table."
_OTHER_FEATURES = "It is the right layer with the features of its queries and keys in another order, or with another sign."
_OTHER_SINKS = "It is the right layer with other sinks."
UNSEEABLE: dict[str, str] = {
    "double-scale": _ANOTHER_SCALE,
    "hard-coded-scale": _ANOTHER_SCALE,
    "inverted-scale": _ANOTHER_SCALE,
    "missing-scale": _ANOTHER_SCALE,
    "scale-by-d-model": _ANOTHER_SCALE,
    "scale-from-packed-width": _ANOTHER_SCALE,
    "scale-without-root": _ANOTHER_SCALE,
    "interleaved-projection": _OTHER_ROWS,
    "swapped-keys-and-values": _OTHER_ROWS,
    "scale-by-the-padded-width": _ANOTHER_SCALE,
    "scaled-before-the-norm": "It is the right layer with other weights of its norm.",
    **dict.fromkeys(
        ("distance-the-other-way", "buckets-rounded", "table-read-by-a-view", "bias-divided-with-the-scores"), _TABLE
    ),
    **dict.fromkeys(("interleaving-ignored", "neighbours-for-halves", "turned-the-other-way"), _OTHER_FEATURES),
    **dict.fromkeys(("sink-in-every-score", "sink-of-the-group", "sink-in-base-two", "sink-counted-twice"), _OTHER_SINKS),
    "tiled-kv-heads": "It is the right layer with its query heads in another order, but for masks of single heads; a black box "
    "with grouped heads is not asked about these.",
    "dropped-weights-returned": "What is wrong is what it returns, if it returns it: without, nothing is.",
}


@dataclass(frozen=True)
class Strength:
    """What follows from the rows of all faults."""

    faults: int
    killed: int
    smallest_set: tuple[str, ...]  # of the properties: together they kill what all of them kill
    properties: tuple[Standing, ...]
    unnoticed: Mapping[str, tuple[str, ...]]  # the faults that nothing kills, for each of LACKING

    @classmethod
    def of(cls, rows: Sequence[Row], properties: Sequence[str] = tuple(p.name for p in PROPERTIES)) -> Strength:
        """Compute it; nothing is run."""
        return cls(
            len(rows),
            sum(bool(row.kills) for row in rows),
            tuple(smallest_set(killers_of(rows), properties)),
            tuple(standings(rows, properties)),
            {words: tuple(row.name for row in rows if words in row.unnoticed) for words in LACKING},
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self) | {"kept": KEPT, "unseeable": UNSEEABLE}


def problems(strength: Strength, kept: Collection[str] = KEPT, unseeable: Collection[str] = UNSEEABLE) -> list[str]:
    """What has to be mended in the reasons above, each with what to do."""
    idle = [standing.name for standing in strength.properties if standing.needs_a_reason]
    unnoticed = {fault for faults in strength.unnoticed.values() for fault in faults}
    return [
        *(f"{name} is never alone and never first: say why it is kept, in KEPT" for name in idle if name not in kept),
        *(f"KEPT has a reason for {name}, which needs none: take it out" for name in kept if name not in idle),
        *(f"UNSEEABLE has {name}, which is no fault, or is seen: take it out" for name in unseeable if name not in unnoticed),
    ]


def stale(strength: Strength, path: Path = PAGE) -> str | None:
    """Say how to mend the page if it does not say what was measured; None if it does, or this is no clone, which has pages."""
    if not path.parent.is_dir() or (path.exists() and path.read_text(encoding="utf-8") == page(strength)):
        return None
    return f"{path.parent.name}/{path.name} is not what was measured now: run `{COMMAND}`"


def page(strength: Strength) -> str:
    """The page, in Markdown that can be read as it is."""
    by_name = {standing.name: standing for standing in strength.properties}
    smallest = [(name, by_name[name].kills, ", ".join(by_name[name].alone)) for name in strength.smallest_set]
    each = [(s.name, s.kills, len(s.alone) or "", s.first or "", KEPT.get(s.name, "")) for s in strength.properties]
    black_box, no_weights, neither = (strength.unnoticed[words] for words in LACKING)
    return _PAGE.format(
        command=COMMAND,
        visible=VISIBLE,
        faults=strength.faults,
        killed=strength.killed,
        properties=len(by_name),
        size=len(smallest),
        smallest=_table(("property", "kills", "nothing else kills"), smallest),
        each=_table(("property", "kills", "alone", "first", "kept because"), each),
        idle=_listed(s.name for s in strength.properties if s.needs_a_reason),
        black_box=len(black_box),
        why=_table(("fault", "why no law sees it"), [(fault, UNSEEABLE.get(fault, "no law known")) for fault in black_box]),
        no_weights=_listed(no_weights),
        neither=_listed(fault for fault in neither if fault not in {*black_box, *no_weights}),
    )


_PAGE = """\
# How strong the properties are

Measured by `{command}`, on the cases of seed 0; do not edit. Of {faults} faults, {properties} properties kill {killed}.

## A smallest set

{size} properties kill all that the {properties} kill, and no fewer do; others of this number may do as well. What is not in it
says more closely what is wrong, or holds for a layer of which less is known.

{smallest}

## What each property is there for

*Kills*: so many faults, each tried on up to {visible} cases on which it shows. *Alone*: so many of these that nothing else kills.
*First*: for each fault random cases are drawn, and all its killers asked on each; a property is first if it fails on the first
case on which any fails, and others can be first with it. What is never alone and never first is kept for a reason.

{each}

Never alone and never first: {idle}.

## What goes unseen

The faults that nothing kills in a layer of which less can be known.

### Where weights cannot be loaded: {black_box} of {faults}

{why}

### Where no weights are returned

{no_weights}.

### Where neither is possible, besides all these

{neither}.
"""


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Its columns padded to the widest cell, but for the last."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header) - 1)]
    lines = [" | ".join(["", *map(str.ljust, row, widths), row[-1]]).strip() + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
