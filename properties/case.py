"""A case: the few numbers and names from which one set of inputs follows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st

MASKS = (
    "none",
    "full",  # a mask that hides nothing
    "causal",  # [T, S]
    "is_causal",  # the flag, and no mask
    "padding",  # [B, 1, 1, S]: ragged, on any side
    "causal+padding",  # [B, 1, T, S]
    "is_causal+padding",  # the flag, and a padding mask
    "sample",  # [B, 1, T, S]: anything, but every query sees a key
    "head",  # [B, h, T, S]: likewise, for every head its own
    "empty",  # [B, h, T, S]: some queries see no key
)
SAID_OTHERWISE = (  # for a subject that declares them, and makes the mask itself from what it is told
    "prefix",  # the number of tokens [B] at the beginning that see each other both ways; all else is causal
    "prefix+padding",  # the same, and a padding mask [B, 1, 1, S]
    "documents",  # the number [B, T] of each token's document: causal within each, and nothing between them
    "documents+padding",  # the same, and a padding mask
)
ALL_MASKS = MASKS + SAID_OTHERWISE
HIDING = tuple(mask for mask in ALL_MASKS if mask not in ("none", "full"))
EXPLICIT = tuple(mask for mask in MASKS if mask != "none" and not mask.startswith("is_causal"))  # all said by a tensor
CAUSAL = (*(mask for mask in MASKS if "causal" in mask), "documents", "documents+padding")
ENCODINGS = (
    "bool",  # True = may attend
    "additive",  # 0 or -inf
    "bias",  # any finite number, or -inf
)
LAYOUTS = (
    "contiguous",
    "transposed",
    "strided",
)  # of x and context: as made, batch and tokens swapped in memory, every other feature
DTYPES = ("float64", "float32", "bfloat16", "float16")
ALIGNMENTS = ("bottom_right", "top_left")  # of the triangle that the flag `is_causal` stands for, where T != S
PLACINGS = (  # what lets a query know where a key stands: see `properties.mechanisms`
    "none",
    "rotary",  # feature i turns with feature i + width/2
    "rotary_interleaved",  # feature 2i turns with feature 2i + 1
    "alibi",
    "relative_bias",
)
POSITIONS = (
    "counted",  # none are given: 0, 1, 2, ...
    "offset",  # 7, 8, 9, ...
    "given",  # of each sample its own, growing, with gaps
)

_STREAMS = ("inputs", "weights", "mask", "law")  # each with its own random numbers: changing one leaves the others as they were


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sizes and kinds of one set of inputs; `Case()` is the simplest of all. Its repr can be pasted back.

    Laws are judged in the widest dtype a subject has, on scores of about unit size, because there right and wrong lie many orders
    of magnitude apart. `dtype` and `score_scale` are those of the laws about rounding (`properties.laws.precision`).
    """

    batch: int = 1
    queries: int = 1
    keys: int | None = None  # None: self-attention, the queries are the keys
    num_heads: int = 1
    num_kv_heads: int | None = None  # None: as many as num_heads
    d_head: int = 1
    mask: str = "none"
    encoding: str = "bool"
    bias: bool = False
    dropout: float = 0.0
    layout: str = "contiguous"
    dtype: str = "float64"
    score_scale: float = 1.0
    alignment: str = "bottom_right"  # of the causal flag: not drawn, a convention of the subject, as are
    biases: str = "qkvo"  # the projections that have one, if there is a bias
    # Mechanisms: drawn for a subject that declares them.
    window: int | None = None  # how many tokens a query sees, itself and those before it; None: all
    soft_cap: float | None = None  # the scores stay between this and its negative
    placing: str = "none"
    rotary_width: int | None = None  # features of a head that are rotated, the first ones; None: all
    stretch: float = 1.0  # rotary positions are divided by this
    rotary_base: float = 10_000.0  # not drawn: constants of the subject, as is
    qk_norm_eps: float = 1e-6
    positions: str = "counted"
    sinks: bool = False  # every head has a score for attending to nothing
    qk_norm: bool = False  # queries and keys are brought to one size before they are compared
    prefill: int = 0  # with a cache: so many tokens at once, ...
    chunk: int = 1  # ... and then so many at a time
    spare: int | None = None  # slots that the cache has besides those that are filled; None: it grows
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "queries", "num_heads", "d_head", "T", "S", "g"):
            if getattr(self, name) < (0 if name == "batch" else 1):
                raise ValueError(f"Case: {name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.g != 0:
            raise ValueError(f"Case: num_kv_heads={self.g} must divide num_heads={self.num_heads}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"Case: dropout must lie in [0, 1), got {self.dropout}")
        for name in ("window", "soft_cap", "rotary_width", "stretch", "chunk"):
            if (size := getattr(self, name)) is not None and size <= 0:
                raise ValueError(f"Case: {name} must be positive, got {size}")
        if self.placing.startswith("rotary") and (self.rotary_width or self.d_head) % 2:
            raise ValueError(f"Case: features turn in pairs, rotary_width={self.rotary_width or self.d_head} is odd")
        choices = {
            "mask": ALL_MASKS,
            "encoding": ENCODINGS,
            "layout": LAYOUTS,
            "dtype": DTYPES,
            "alignment": ALIGNMENTS,
            "placing": PLACINGS,
            "positions": POSITIONS,
        }
        if not set(self.biases) <= set("qkvo"):
            raise ValueError(f"Case: biases={self.biases!r} must be letters of 'qkvo'")
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"Case: {name}={getattr(self, name)!r} is not one of {', '.join(known)}")

    # The letters of the shapes, where they are not fields already.
    @property
    def T(self) -> int:
        return self.queries

    @property
    def S(self) -> int:
        return self.queries if self.keys is None else self.keys

    @property
    def g(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def d_model(self) -> int:
        return self.num_heads * self.d_head

    def chunks(self) -> list[int]:
        """How many tokens come at a time, where a cache is filled: the first `prefill` at once, the rest by `chunk`."""
        first = min(self.prefill, self.T)
        rest = self.T - first
        return [first] * (first > 0) + [self.chunk] * (rest // self.chunk) + [rest % self.chunk] * (rest % self.chunk > 0)

    def pieces(self) -> list[tuple[int, int]]:
        """Where each of these chunks begins and ends."""
        ends = list(itertools.accumulate(self.chunks()))
        return list(zip([0, *ends], ends, strict=False))

    def with_mechanisms_of(self, other: Case) -> Case:
        """The same with the mechanisms of another case."""
        names = ("window", "soft_cap", "placing", "rotary_width", "stretch", "rotary_base", "sinks", "qk_norm", "qk_norm_eps")
        return dataclasses.replace(self, **{name: getattr(other, name) for name in names})

    def generator(self, stream: str) -> torch.Generator:
        """Return the random numbers of this case for one purpose, from their beginning; never torch's global ones."""
        return torch.Generator().manual_seed(self.seed * len(_STREAMS) + _STREAMS.index(stream))

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default)
        return f"Case({', '.join(f'{name}={value!r}' for name, value in given)})"


# Small and few on purpose: among them T = S, T = h, B = h, B = g, T = d_head, B = T come up all the time.
FIELDS: Mapping[str, tuple[Any, ...]] = {
    "batch": (1, 2, 3),
    "queries": (1, 2, 3, 4, 5),
    "keys": (None, 1, 2, 3, 4, 5),
    "num_heads": (1, 2, 3, 4, 6),
    "num_kv_heads": (None, 1, 2),
    "d_head": (1, 2, 3, 4),
    "mask": MASKS,
    "encoding": ("bool", *ENCODINGS),  # the usual one twice as often
    "bias": (False, True),
    "dropout": (0.0, 0.5, 0.25),
    "layout": LAYOUTS,
    "dtype": DTYPES,
    "score_scale": (1.0, 30.0, 1000.0),
    "alignment": ("bottom_right",),
    "biases": ("qkvo",),
    "window": (None,),
    "soft_cap": (None,),
    "placing": ("none",),
    "rotary_width": (None,),
    "stretch": (1.0,),
    "rotary_base": (10_000.0,),
    "qk_norm_eps": (1e-6,),
    "positions": ("counted",),
    "sinks": (False,),
    "qk_norm": (False,),
    "prefill": (0,),
    "chunk": (1,),
    "spare": (None,),
}
_NUM_HEADS: Mapping[int | None, tuple[int, ...]] = {None: (1, 2, 3, 4), 1: (2, 3), 2: (4, 6)}  # of FIELDS, by num_kv_heads


def cases(fields: Mapping[str, Collection[Any]] | None = None) -> st.SearchStrategy[Case]:
    """Return a strategy of cases whose fields take these values; those not named take the ones in `FIELDS`.

    >>> cases({"mask": ("causal", "padding"), "batch": (1,)})  # doctest: +SKIP
    """
    free, heads = _domain(fields or {})
    drawn = {name: st.sampled_from(values) for name, values in free.items()}
    seed = st.integers(0, 2**31 - 1)
    return st.one_of(
        [st.builds(Case, num_heads=st.sampled_from(h), num_kv_heads=st.just(g), seed=seed, **drawn) for g, h in heads]
    )


def sample(random: Random, fields: Mapping[str, Collection[Any]] | None = None) -> Case:
    """Draw one case from the same domain without Hypothesis: the same for the same `random` whatever version is installed."""
    free, heads = _domain(fields or {})
    num_kv_heads, fitting = _choose(random, heads)
    drawn = {name: _choose(random, values) for name, values in free.items()}
    return Case(num_heads=_choose(random, fitting), num_kv_heads=num_kv_heads, seed=random.randrange(2**31), **drawn)


def _choose(random: Random, values: Sequence[Any]) -> Any:
    """Choose one; from one alone nothing is drawn, so that a field that cannot vary does not change what others are."""
    return values[0] if len(values) == 1 else random.choice(values)


def _domain(given: Mapping[str, Collection[Any]]) -> tuple[dict[str, list[Any]], list[tuple[int | None, list[int]]]]:
    """The values of each field that can be chosen on its own, and the numbers of heads for each number of key/value heads."""
    for name in given:
        if name not in FIELDS:
            raise ValueError(f"a Case has no field {name!r} to restrict; it has {', '.join(FIELDS)}")
    free = {name: list(given.get(name, values)) for name, values in FIELDS.items() if name not in ("num_kv_heads", "num_heads")}
    heads = [(g, fitting) for g, fitting in fitting_heads(given) if fitting]
    empty = [name for name, values in free.items() if not values] + ([] if heads else ["num_heads or num_kv_heads"])
    if empty:
        raise ValueError(f"no value of {', '.join(empty)} is left: {dict(given)}")
    return free, heads


def fitting_heads(given: Mapping[str, Collection[Any]]) -> list[tuple[int | None, list[int]]]:
    """The numbers of heads that go with each number of key/value heads."""
    num_kv_heads, num_heads = (given.get(name, FIELDS[name]) for name in ("num_kv_heads", "num_heads"))
    usual = set(num_heads) <= set(FIELDS["num_heads"])
    return [(g, [h for h in num_heads if (h in _NUM_HEADS[g] if usual else _fits(h, g))]) for g in num_kv_heads]


def _fits(num_heads: int, num_kv_heads: int | None) -> bool:
    return num_kv_heads is None or (num_heads > num_kv_heads and num_heads % num_kv_heads == 0)
