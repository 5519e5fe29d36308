"""What a subject declares: what it can do, and the conventions by which it does it.

A law that needs more than is declared does not apply. What is declared and not done is a failure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from properties.case import ALIGNMENTS, ALL_MASKS, DTYPES, ENCODINGS, EXPLICIT, MASKS, PLACINGS, POSITIONS, SAID_OTHERWISE

EMPTY_ROWS = ("zero", "nan", "uniform", "undefined")
POLARITIES = ("attend", "hide")
KV_HEAD_MAPS = ("blocks", "interleaved")
# What torch, or Python, has for any module, and what `properties.laws` holds a subject to if it is meant to work under it. By
# default the first ones, under which every ordinary module works.
USUAL_TOOLS = (
    "checkpoint",  # torch.utils.checkpoint: the forward pass done again in the backward pass
    "functional_call",  # torch.func.functional_call: with other parameters than it holds
    "deepcopy",
    "pickle",  # torch.save of the whole module
    "hooks",  # on its submodules, as adapters and quantisation hang theirs there
    "init",  # its parameters as built are meant for training
)
TOOLS = (
    *USUAL_TOOLS,
    "autocast",  # torch.autocast, in bfloat16
    "vmap",  # torch.func.vmap over a stack of batches
    "compile",  # torch.compile
    "export",  # torch.export: one graph
)
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


def _positive(size: object, kinds: Any) -> bool:
    return isinstance(size, kinds) and not isinstance(size, bool) and 0 < size < math.inf


def inverse_sqrt(d_head: int) -> float:
    """1 / sqrt(d_head), what scores are multiplied by if nothing else is declared."""
    return 1 / math.sqrt(d_head)


@dataclass(frozen=True, kw_only=True)
class Supports:
    """What a subject declares. By default everything there is, by the conventions of `attn`."""

    # Masks.
    masks: Collection[str] = MASKS  # of `properties.case.ALL_MASKS`; by default all that `mask_shape` can say
    encodings: Collection[str] = ENCODINGS  # of masks
    mask_shape: str = "broadcast"  # of MASK_SHAPES: the one shape in which it is handed every mask
    polarity: str = "attend"  # of POLARITIES: what True in a boolean mask means
    always_causal: bool = False  # it hides the future by itself, and takes no flag
    causal_alignment: str = "bottom_right"  # of ALIGNMENTS: where the flag `is_causal` puts its triangle if T != S
    empty_rows: str = "zero"  # of EMPTY_ROWS: what a query that sees no key gets; "uniform" is the mean of all values
    ignores_nonfinite_hidden: bool = False  # NaN and infinity in tokens that no query may see change nothing
    empty_sequences: bool = False  # no token asks, and gets no row
    nan_comes_out: bool = False  # NaN in a query, or in a token that it sees, makes its row NaN

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
    tools: Collection[str] = USUAL_TOOLS  # of TOOLS: under which it is meant to work, if it is a module
    any_device: bool = True  # what it makes for itself, it makes where its inputs are
    positions: bool = False  # where a token stands matters, in a way that is none of the `placings`

    # Mechanisms: what it can be built with (`inputs.mechanisms`), or, where there is only one value, always has.
    placings: Collection[str] = ("none",)  # of `properties.case.PLACINGS`
    rotary_widths: Collection[int | None] = (None,)  # features of a head that are rotated; None: all
    stretches: Collection[float] = (1.0,)  # what rotary positions are divided by
    rotary_base: float = 10_000.0
    explicit_positions: bool = False  # it takes `inputs.positions`, [B, T]
    windows: Collection[int | None] = (None,)  # how many tokens a query sees, with itself
    soft_caps: Collection[float | None] = (None,)  # of the scaled scores, before any mask or bias
    sinks: bool = False  # has a score for attending to nothing, `inputs.weights.sinks`
    qk_norm: bool = False  # normalises queries and keys, by `inputs.weights.n_q` and `n_k`, each [d_head]
    qk_norm_eps: float = 1e-6  # added to the mean square

    # A cache: handed in by `of_module(..., caching=)`.
    cache: bool = False
    reorders: bool = False  # its samples can be put in another order, as beam search does
    static_cache: bool = False  # it can be made for a number of tokens, `inputs.mechanisms.capacity`

    def __post_init__(self) -> None:
        lists = {"masks": ALL_MASKS, "encodings": ENCODINGS, "dtypes": DTYPES, "placings": PLACINGS}
        for name, values in lists.items():
            given = getattr(self, name)
            chosen = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
            if not chosen or not set(chosen) <= set(values):
                hint = f"; one alone is written ({given!r},)" if given in values else ""
                raise ValueError(f"Supports: {name} must be some of {', '.join(values)}, got {given!r}{hint}")
            object.__setattr__(self, name, tuple(value for value in values if value in chosen))
        tools = () if isinstance(self.tools, str) or not isinstance(self.tools, Iterable) else tuple(self.tools)
        if not set(tools) <= set(TOOLS) or (self.tools and not tools):
            hint = f"; one alone is written ({self.tools!r},)" if self.tools in TOOLS else ""
            raise ValueError(f"Supports: tools must be some of {', '.join(TOOLS)}, or none, got {self.tools!r}{hint}")
        object.__setattr__(self, "tools", tuple(tool for tool in TOOLS if tool in tools))
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
        self._check_mechanisms()
        self._check_floors()
        self._check_masks()
        if not callable(self.scale):
            raise ValueError(f"Supports: scale must be a function of d_head, like `lambda d_head: 1.0`, got {self.scale!r}")
        if not isinstance(self.scale(4), int | float) or not 0 < self.scale(4) < math.inf:
            raise ValueError(f"Supports: scale must give a positive number, for d_head=4 it gave {self.scale(4)!r}")

    def _check_mechanisms(self) -> None:
        whole = "rotary_widths", "windows"
        for name, none in (("rotary_widths", True), ("windows", True), ("soft_caps", True), ("stretches", False)):
            sizes, kinds = getattr(self, name), int if name in whole else int | float
            chosen = tuple(sizes) if isinstance(sizes, Iterable) and not isinstance(sizes, str) else ()
            fits = [none if size is None else _positive(size, kinds) for size in chosen]
            if not chosen or not all(fits):
                what = f"positive {'whole ' if name in whole else ''}numbers{', or None for without' if none else ''}"
                raise ValueError(f"Supports: {name} must be {what}, like ({'None, ' if none else ''}4,), got {sizes!r}")
            object.__setattr__(self, name, chosen)
        for name in ("rotary_base", "qk_norm_eps"):
            if not _positive(getattr(self, name), int | float):
                raise ValueError(f"Supports: {name} must be a positive number, got {getattr(self, name)!r}")
        if any(placing.startswith("rotary") for placing in self.placings):
            object.__setattr__(self, "d_heads", self.d_heads or (2, 4))
            odd = [(width, d) for d in self.d_heads for width in self.rotary_widths if (width or d) % 2 or (width or d) > d]
            if odd:
                raise ValueError(
                    f"Supports: rotary positions turn features in pairs: d_heads and rotary_widths must be even, and no width "
                    f"wider than a head, got d_heads={self.d_heads} with rotary_widths={self.rotary_widths}"
                )
        if self.explicit_positions and self.cross_attention:
            raise ValueError("Supports: explicit_positions are those of one sequence, declare cross_attention=False as well")
        if self.positions and self.placings != ("none",):
            raise ValueError("Supports: positions=True is for what none of the placings is: declare one of the two")
        for name in ("reorders", "static_cache"):
            if getattr(self, name) and not self.cache:
                raise ValueError(f"Supports: {name}=True is about a cache, declare cache=True as well")

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
            causal = tuple(mask for mask in self.masks if mask.startswith("is_causal") or mask in SAID_OTHERWISE)
            if causal != self.masks and self.masks != MASKS:
                known = ", ".join(("is_causal", "is_causal+padding", *SAID_OTHERWISE))
                raise ValueError(f"Supports: if always_causal, masks must be some of {known}, got {self.masks}")
            object.__setattr__(self, "masks", causal)
        can_say = (*MASK_SHAPES[self.mask_shape], *(["full"] if self.encodings == ("bool",) else []), *SAID_OTHERWISE)
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

    def fields(self) -> dict[str, Collection[Any]]:
        """The values of the fields of a `Case` that it takes part in, of every field in which it does not take all."""
        taken: dict[str, Collection[Any]] = {
            "mask": self.masks,
            "encoding": self.encodings,
            "dtype": self.dtypes,
            "alignment": (self.causal_alignment,),
            "biases": (self.biases or "qkvo",),  # without a bias it is all one
            "placing": self.placings,
            "rotary_width": self.rotary_widths,
            "stretch": self.stretches,
            "rotary_base": (self.rotary_base,),
            "qk_norm_eps": (self.qk_norm_eps,),
            "window": self.windows,
            "soft_cap": self.soft_caps,
            "sinks": (self.sinks,),
            "qk_norm": (self.qk_norm,),
        }
        if not self.cross_attention:
            taken["keys"] = (None,)
        if not self.grouped_heads:
            taken["num_kv_heads"] = (None,)
        if not self.bias:
            taken["bias"] = (False,)
        if not self.dropout:
            taken["dropout"] = (0.0,)
        if self.num_heads:
            taken["num_heads"] = self.num_heads
        if self.d_heads:
            taken["d_head"] = self.d_heads
        if self.explicit_positions:
            taken["positions"] = POSITIONS
        if self.cache:
            taken |= {"prefill": (0, 1, 2, 3), "chunk": (1, 2, 3)}
        if self.static_cache:
            taken["spare"] = (None, 0, 1, 2)
        return taken

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
        placed = self.positions or self.placings != ("none",) or self.windows != (None,) or self.explicit_positions
        return not placed and not set(self.masks) & set(SAID_OTHERWISE)

    @property
    def ordered(self) -> bool:
        return not self.unordered

    @property
    def known_positions(self) -> bool:
        return not self.positions

    @property
    def all_read(self) -> bool:
        return self.loads_weights or self.unordered  # a table of positions is read at some of its rows only

    @property
    def whole_rows(self) -> bool:
        return not self.sinks

    @property
    def plain_scores(self) -> bool:
        return self.placings == ("none",) and self.soft_caps == (None,) and not (self.sinks or self.qk_norm)

    @property
    def windowed(self) -> bool:
        return self.windows != (None,)

    @property
    def capped(self) -> bool:
        return self.soft_caps != (None,)

    @property
    def equal_heads(self) -> bool:
        return "alibi" not in self.placings

    @property
    def formula(self) -> bool:
        return self.loads_weights and not self.positions

    @property
    def says_causal_both_ways(self) -> bool:
        return any(mask in self.masks for mask in EXPLICIT) and self.mask_shape != "[B, S]"

    @property
    def does_without_a_mask(self) -> bool:
        return "none" in self.masks and not self.always_causal

    @property
    def fine_dtype(self) -> bool:
        fine = (torch.float64,) if self.qk_norm else (torch.float64, torch.float32)  # normalised, a head turns sharply near 0
        return self.precision(getattr(torch, self.dtypes[0])) in fine

    @property
    def double_precision(self) -> bool:
        return self.precision(getattr(torch, self.dtypes[0])) == torch.float64

    @property
    def any_heads(self) -> bool:
        return not self.num_heads and not self.d_heads

    @property
    def checkpoints(self) -> bool:
        return "checkpoint" in self.tools

    @property
    def calls_functionally(self) -> bool:
        return "functional_call" in self.tools

    @property
    def copies(self) -> bool:
        return "deepcopy" in self.tools

    @property
    def pickles(self) -> bool:
        return "pickle" in self.tools

    @property
    def takes_hooks(self) -> bool:
        return "hooks" in self.tools

    @property
    def initialises(self) -> bool:
        return "init" in self.tools

    @property
    def autocasts(self) -> bool:
        return "autocast" in self.tools and {"float32", "bfloat16"} <= set(self.dtypes)

    @property
    def vmaps(self) -> bool:
        return "vmap" in self.tools

    @property
    def compiles(self) -> bool:
        return "compile" in self.tools and torch_compiles()

    @property
    def exports(self) -> bool:
        return "export" in self.tools

    def precision(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype by whose roundoff it is judged when its tensors are of this one."""
        name = str(dtype).removeprefix("torch.")
        return getattr(torch, self.floors.get(name, name))  # type: ignore[no-any-return]

    def lacks(self, need: str) -> str:
        """Say what is missing for a law that needs this."""
        if need == "formula":
            need = "loads_weights" if not self.loads_weights else "known_positions"
        return _LACKS[need]


@functools.cache
def torch_compiles() -> bool:
    """Can `torch.compile` run here? It refuses a Python that is too new for it."""
    try:
        torch.compile(inverse_sqrt, backend="eager")
    except RuntimeError:
        return False
    return True


_LACKS = {
    "weights": "it returns no weights",
    "training_weights": "it returns no weights in training, or those after dropout",
    "dropout": "it has no dropout",
    "gradients": "it has no gradients",
    "module": "it is not a module",
    "loads_weights": "its weights cannot be set",
    "unordered": "where a token stands matters to it",
    "ordered": "where a token stands does not matter to it",
    "known_positions": "where a token stands matters to it, and how is not declared",
    "all_read": "which of its parameters a call reads is not known",
    "whole_rows": "its sinks take a share of every row",
    "plain_scores": "its scores are more than products of queries and keys",
    "windowed": "it has no window",
    "capped": "it has no soft cap",
    "equal_heads": "its heads are not alike",
    "cache": "it has no cache",
    "reorders": "its cache cannot be reordered",
    "static_cache": "its cache has no fixed capacity",
    "explicit_positions": "it takes no positions",
    "sinks": "it has no sinks",
    "qk_norm": "it does not normalise queries and keys",
    "declared_empty_rows": "what an empty row gives is undefined",
    "finite_empty_rows": "an empty row is not declared to be finite",
    "ignores_nonfinite_hidden": "it does not promise to ignore NaN in hidden tokens",
    "empty_sequences": "it does not promise to take a sequence without tokens",
    "nan_comes_out": "it does not promise to pass on NaN",
    "says_causal_both_ways": "it takes no mask that could say what the flag says",
    "does_without_a_mask": "it is never without a mask",
    "any_device": "it is declared for the default device alone",
    "optional_bias": "it cannot be built without biases",
    "fine_dtype": "its dtypes are too coarse for small differences",
    "double_precision": "it does not compute in float64, where hardly anything is nearly equal by chance",
    "any_heads": "it is not built for other numbers and widths of heads",
    "grouped_heads": "it has no grouped heads",
    "cross_attention": "it attends to itself only",
    "bias": "it has no biases",
    "checkpoints": "it does not declare the tool checkpoint",
    "calls_functionally": "it does not declare the tool functional_call",
    "copies": "it does not declare the tool deepcopy",
    "pickles": "it does not declare the tool pickle",
    "takes_hooks": "it does not declare the tool hooks",
    "initialises": "it does not declare the tool init",
    "autocasts": "it does not declare the tool autocast, or not both dtypes, float32 and bfloat16",
    "vmaps": "it does not declare the tool vmap",
    "compiles": "it does not declare the tool compile, or torch.compile cannot run here",
    "exports": "it does not declare the tool export",
}
