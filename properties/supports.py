"""What a subject declares: what it can do, and the conventions by which it does it.

A law that needs more than is declared does not apply. What is declared and not done is a failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import torch

from properties.case import ALIGNMENTS, DTYPES, ENCODINGS, EXPLICIT, MASKS

EMPTY_ROWS = ("zero", "nan", "uniform", "undefined")
POLARITIES = ("attend", "hide")
KV_HEAD_MAPS = ("blocks", "interleaved")
# The shapes a layer may want its mask in, and the kinds of mask that can be said in them. "full" is among the latter only as a
# boolean: what it adds to the scores differs between heads.
_FOR_ALL_HEADS = tuple(mask for mask in MASKS if mask not in ("full", "head", "empty"))
MASK_SHAPES: Mapping[str, tuple[str, ...]] = {
    "broadcast": MASKS,  # whatever broadcasts to [B, h, T, S], [T, S] among it
    "[T, S]": ("none", "causal", "is_causal"),
    "[B, S]": ("none", "is_causal", "padding", "is_causal+padding"),
    "[B, T, S]": _FOR_ALL_HEADS,
    "[B, 1, T, S]": _FOR_ALL_HEADS,
    "[B, h, T, S]": MASKS,
    "[B*h, T, S]": MASKS,
}


def inverse_sqrt(d_head: int) -> float:
    """1 / sqrt(d_head), what scores are multiplied by if nothing else is declared."""
    return 1 / math.sqrt(d_head)


@dataclass(frozen=True, kw_only=True)
class Supports:
    """What a subject declares. By default everything there is, by the conventions of `attn`."""

    # Masks.
    masks: Collection[str] = MASKS  # of `properties.case.MASKS`; by default all that `mask_shape` can say
    encodings: Collection[str] = ENCODINGS  # of masks
    mask_shape: str = "broadcast"  # of MASK_SHAPES: the one shape in which it is handed every mask
    polarity: str = "attend"  # of POLARITIES: what True in a boolean mask means
    always_causal: bool = False  # it hides the future by itself, and takes no flag
    causal_alignment: str = "bottom_right"  # of ALIGNMENTS: where the flag `is_causal` puts its triangle if T != S
    empty_rows: str = "zero"  # of EMPTY_ROWS: what a query that sees no key gets; "uniform" is the mean of all values
    ignores_nonfinite_hidden: bool = False  # NaN and infinity in tokens that no query may see change nothing

    # Heads.
    num_heads: Collection[int] = ()  # the numbers it takes; by default any
    d_heads: Collection[int] = ()  # the widths of a head it takes; by default any
    grouped_heads: bool = True  # fewer key/value heads than query heads
    kv_head_map: str = "blocks"  # of KV_HEAD_MAPS: query head i reads key/value head i // (h // g), or i % g
    scale: Callable[[int], float] = inverse_sqrt  # what scores are multiplied by, for a width of head

    # Numbers.
    dtypes: Sequence[str] = DTYPES  # brought in order, the widest first; all laws but those about rounding use the widest
    floors: Mapping[str, str] = field(default_factory=dict)  # for dtypes in which it computes no better than in another, that one

    # The rest of its interface.
    cross_attention: bool = True
    biases: str = "qkvo"  # the projections that can have one
    optional_bias: bool = True  # built without biases, it has none
    weights: bool = True  # returns them, per head
    training_weights: bool = True  # and in training returns them as they were before dropout
    dropout: bool = True
    gradients: bool = True
    module: bool = True  # is a module, whose parameters can be listed, saved and loaded
    loads_weights: bool = True  # it can be given weights; False: a black box, with weights of its own
    positions: bool = False  # where a token stands matters: rotary positions, a relative bias, ...

    def __post_init__(self) -> None:
        for name, values in (("masks", MASKS), ("encodings", ENCODINGS), ("dtypes", DTYPES)):
            given = getattr(self, name)
            chosen = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
            if not chosen or not set(chosen) <= set(values):
                hint = f"; one alone is written ({given!r},)" if given in values else ""
                raise ValueError(f"Supports: {name} must be some of {', '.join(values)}, got {given!r}{hint}")
            object.__setattr__(self, name, tuple(value for value in values if value in chosen))
        choices = {
            "mask_shape": MASK_SHAPES,
            "polarity": POLARITIES,
            "causal_alignment": ALIGNMENTS,
            "empty_rows": EMPTY_ROWS,
            "kv_head_map": KV_HEAD_MAPS,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"Supports: {name} must be one of {' | '.join(known)}, got {getattr(self, name)!r}")
        for name in ("num_heads", "d_heads"):
            sizes = getattr(self, name)
            whole = isinstance(sizes, Iterable) and all(isinstance(size, int) and size >= 1 for size in sizes)
            if not whole or isinstance(sizes, str):
                raise ValueError(f"Supports: {name} must be positive whole numbers, like (8, 16), got {sizes!r}")
            object.__setattr__(self, name, tuple(sizes))
        if not isinstance(self.biases, str) or not set(self.biases) <= set("qkvo"):
            raise ValueError(f"Supports: biases must be letters of 'qkvo', or '', got {self.biases!r}")
        object.__setattr__(self, "biases", "".join(letter for letter in "qkvo" if letter in self.biases))
        for declaration in fields(self):
            given = getattr(self, declaration.name)
            if declaration.type == "bool" and not isinstance(given, bool):
                raise ValueError(f"Supports: {declaration.name} must be True or False, got {given!r}")
        self._check_floors()
        self._check_masks()
        if not callable(self.scale):
            raise ValueError(f"Supports: scale must be a function of d_head, like `lambda d_head: 1.0`, got {self.scale!r}")
        if not isinstance(self.scale(4), int | float) or not 0 < self.scale(4) < math.inf:
            raise ValueError(f"Supports: scale must give a positive number, for d_head=4 it gave {self.scale(4)!r}")

    def _check_floors(self) -> None:
        if not isinstance(self.floors, Mapping):
            raise ValueError(f"Supports: floors must be a mapping, like {{'float64': 'float32'}}, got {self.floors!r}")
        for dtype, floor in self.floors.items():
            if dtype not in self.dtypes or floor not in DTYPES or DTYPES.index(floor) < DTYPES.index(dtype):
                raise ValueError(
                    f"Supports: floors must give, for some of {', '.join(self.dtypes)}, a dtype that is no wider, "
                    f"got {dtype!r}: {floor!r}"
                )

    def _check_masks(self) -> None:
        if self.always_causal:
            causal = tuple(mask for mask in self.masks if mask.startswith("is_causal"))
            if causal != self.masks and self.masks != MASKS:
                raise ValueError(
                    f"Supports: if always_causal, masks must be some of is_causal, is_causal+padding, got {self.masks}"
                )
            object.__setattr__(self, "masks", causal)
        can_say = (*MASK_SHAPES[self.mask_shape], *(["full"] if self.encodings == ("bool",) else []))
        unsaid = [mask for mask in self.masks if mask not in can_say]
        if unsaid and self.masks != MASKS and not self.always_causal:
            raise ValueError(
                f"Supports: masks {', '.join(unsaid)} cannot be said in mask_shape={self.mask_shape!r}, which has no axis for "
                f"what they distinguish; take them out of masks"
            )
        object.__setattr__(self, "masks", tuple(mask for mask in self.masks if mask in can_say))

    def declared(self) -> dict[str, str]:
        """What differs from the default, as text, by name."""
        usual = Supports()
        return {
            f.name: given if isinstance(given, str) else getattr(given, "__name__", str(given))
            for f in fields(self)
            if (given := getattr(self, f.name)) != getattr(usual, f.name)
        }

    # What laws need, besides what is declared as such.

    @property
    def bias(self) -> bool:
        return bool(self.biases)

    @property
    def finite_empty_rows(self) -> bool:
        return self.empty_rows in ("zero", "uniform")

    @property
    def declared_empty_rows(self) -> bool:
        return self.empty_rows != "undefined"

    @property
    def unordered(self) -> bool:
        return not self.positions

    @property
    def formula(self) -> bool:
        return self.loads_weights and not self.positions

    @property
    def says_causal_both_ways(self) -> bool:
        return any(mask in self.masks for mask in EXPLICIT) and self.mask_shape != "[B, S]"

    @property
    def fine_dtype(self) -> bool:
        return self.precision(getattr(torch, self.dtypes[0])) in (torch.float64, torch.float32)

    @property
    def double_precision(self) -> bool:
        return self.precision(getattr(torch, self.dtypes[0])) == torch.float64

    @property
    def any_heads(self) -> bool:
        return not self.num_heads and not self.d_heads

    def precision(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype by whose roundoff it is judged when its tensors are of this one."""
        name = str(dtype).removeprefix("torch.")
        return getattr(torch, self.floors.get(name, name))  # type: ignore[no-any-return]

    def lacks(self, need: str) -> str:
        """Say what is missing for a law that needs this."""
        if need == "formula":
            need = "loads_weights" if not self.loads_weights else "unordered"
        return _LACKS[need]


_LACKS = {
    "weights": "it returns no weights",
    "training_weights": "it returns no weights in training, or those after dropout",
    "dropout": "it has no dropout",
    "gradients": "it has no gradients",
    "module": "it is not a module",
    "loads_weights": "its weights cannot be set",
    "unordered": "where a token stands matters to it",
    "declared_empty_rows": "what an empty row gives is undefined",
    "finite_empty_rows": "an empty row is not declared to be finite",
    "ignores_nonfinite_hidden": "it does not promise to ignore NaN in hidden tokens",
    "says_causal_both_ways": "it takes no mask that could say what the flag says",
    "optional_bias": "it cannot be built without biases",
    "fine_dtype": "its dtypes are too coarse for small differences",
    "double_precision": "it does not compute in float64, where hardly anything is nearly equal by chance",
    "any_heads": "it is not built for other numbers and widths of heads",
    "grouped_heads": "it has no grouped heads",
    "cross_attention": "it attends to itself only",
    "bias": "it has no biases",
}
