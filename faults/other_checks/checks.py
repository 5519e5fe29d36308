"""Other kinds of check, and whether one sees a fault: on the inputs that such checks use, and by what they look at.

These are replays: the inputs of published tests are handed to the fault itself, and its answer is compared with that of the clean
class it was made from, within what rounding explains. That oracle is perfect, which theirs need not be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn import MultiHeadAttention
from faults.fault import Fault, name_of, subject_of
from faults.mistakes import read
from faults.other_checks import replayed
from faults.subject import clean_class, subject
from properties.inputs import Inputs
from properties.rounding import Bounds, bounds
from properties.subject import Result, Subject
from properties.surroundings import seeded, undisturbed

SEEN, UNSEEN, BEYOND = "seen", "unseen", "beyond"  # beyond: the check has no words for what the fault needs
_MECHANISMS = ("cache", "windowed", "explicit_positions", "capped", "sinks", "qk_norm")  # as `needs` of a known mistake
MAX_DIFF = 2e-5  # of the lesson
_EVALUATION, _BOTH = (False,), (False, True)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A kind of check."""

    letter: str  # its column in the table
    name: str
    looks_at: str
    inputs: str  # in words
    judge: Callable[[type[Fault]], str]  # SEEN, UNSEEN or BEYOND
    link: str = ""

    def __call__(self, fault: type[Fault]) -> str:
        return self.judge(fault)


def expressible(inputs: Inputs, asked: Subject) -> bool:
    """Can the subject be asked this, without any mechanism that the inputs do not have?"""
    supports = asked.supports
    plain = "none" in supports.placings and None in supports.windows and None in supports.soft_caps
    if not plain or supports.sinks or supports.qk_norm or not {"none", "is_causal"} & set(supports.masks):
        return False
    if inputs.context is not None and not supports.cross_attention:
        return False
    return not supports.always_causal or not inputs.visible().triu(1).any()


def replays(made: tuple[replayed.Made, ...], modes: tuple[bool, ...], weights: str = "none") -> Callable[[type[Fault]], str]:
    """Judge by these inputs, in these modes (False: evaluation), by the output and the weights ("none", "mean" or "all")."""
    askable: dict[type[MultiHeadAttention], list[replayed.Made]] = {}

    def judge(fault: type[Fault]) -> str:
        clean = clean_class(fault)
        if clean not in askable:
            askable[clean] = [make for make in made if expressible(make(), subject(clean))]
        asked = askable[clean]
        if any(_differs(fault, make, training, weights) for make in asked for training in modes):
            return SEEN
        return UNSEEN if asked and not _needs_a_mechanism(fault) else BEYOND

    return judge


def shapes(fault: type[Fault]) -> str:
    """Is anything raised, or of another shape than the lesson says: the output, the weights, and q, k and v after the split?"""
    asked = subject_of(fault)
    if not expressible(replayed.of_the_lesson(torch.float32), asked):
        return BEYOND
    for make in (replayed.of_the_lesson, replayed.of_the_exercise):
        inputs = make(torch.float32)
        if expressible(inputs, asked) and not _fits(asked, inputs):
            return SEEN
    return BEYOND if _needs_a_mechanism(fault) else UNSEEN


def parity(fault: type[Fault]) -> str:
    """Is `max_diff < 2e-5` false at the lesson's one shape, as built?

    In the lesson's float32, where a right layer may exceed it as well, by rounding; and so also in float64, where none does.
    """
    if not expressible(replayed.of_the_lesson(torch.float64), subject_of(fault)):
        return BEYOND
    if all(_far_off(fault, dtype) for dtype in (torch.float64, torch.float32)):
        return SEEN
    return BEYOND if _needs_a_mechanism(fault) else UNSEEN


def _far_off(fault: type[Fault], dtype: torch.dtype) -> bool:
    got, want = (run(asked, replayed.of_the_lesson(dtype), True) for asked in (subject_of(fault), _right(fault)))
    return got is None or want is None or not _near(got.output, want.output, torch.tensor(MAX_DIFF))


def properties(*names: str) -> Callable[[type[Fault]], str]:
    """Judge by the properties of these names, or by all: by what is measured of the fault (`bless` writes it)."""

    def judge(fault: type[Fault]) -> str:
        killers = _measured().get(name_of(fault), {}).get("killers", ())
        return SEEN if (set(names) & set(killers) if names else killers) else UNSEEN

    return judge


def run(asked: Subject, inputs: Inputs, training: bool) -> Result | None:
    """What it returns; None if it raises."""
    try:
        with undisturbed(), torch.no_grad(), seeded(0):
            return asked.layer(inputs).run(inputs, training)
    except Exception:
        return None


def _right(fault: type[Fault]) -> Subject:
    return subject(clean_class(fault))


def _differs(fault: type[Fault], make: replayed.Made, training: bool, weights: str) -> bool:
    got, (want, bound, some) = run(subject_of(fault), make(), training), _expected(clean_class(fault), make, training)
    if got is None or not _near(got.output, want.output, bound.output, some):
        return True
    if weights == "none":
        return False
    if got.weights is None or want.weights is None or got.weights.shape != want.weights.shape:
        return True
    if weights == "all":
        return not _near(got.weights, want.weights, bound.weights, some[:, None])
    return not _near(got.weights.mean(1), want.weights.mean(1), bound.weights.sum(1), some)


_EXPECTED: dict[tuple[type[MultiHeadAttention], replayed.Made, bool], tuple[Result, Bounds, Tensor]] = {}


def _expected(clean: type[MultiHeadAttention], make: replayed.Made, training: bool) -> tuple[Result, Bounds, Tensor]:
    """The right answer, how far rounding may lead from it, and which rows are judged, `[B, T, 1]`: those that see a key, since
    no two libraries agree about the others.
    """
    if (clean, make, training) not in _EXPECTED:
        want = run(subject(clean), make(), training)
        if want is None:
            raise AssertionError(f"{clean.__name__} raises on inputs that it should take")
        _EXPECTED[clean, make, training] = want, bounds(make()), make().attending()[..., None]
    return _EXPECTED[clean, make, training]


def _near(got: Tensor, want: Tensor, bound: Tensor, where: Tensor | None = None) -> bool:
    if got.shape != want.shape or not isinstance(got, Tensor):
        return False
    close = (got.to(torch.float64) - want.to(torch.float64)).abs() <= bound  # NaN is not
    return bool((close if where is None else close | ~where).all())


def _fits(asked: Subject, inputs: Inputs) -> bool:
    """Do all shapes that the lesson names come out?"""
    B, h, T, S = inputs.scores_shape
    split: list[tuple[int, ...]] = []
    try:
        with undisturbed(), torch.no_grad(), seeded(0):
            layer = asked.layer(inputs)
            _record(layer.need_module().module, split)
            result = layer.run(inputs, True)
    except Exception:
        return False
    shapes = (tuple(result.output.shape), None if result.weights is None else tuple(result.weights.shape))
    return shapes == ((B, T, inputs.x.shape[2]), (B, h, T, S)) and set(split) <= {(B, h, T, inputs.d_head)}


def _record(module: Any, shapes: list[tuple[int, ...]]) -> None:
    """Note the shape of whatever `split_heads` returns."""
    step = module.split_heads

    def split_heads(x: Tensor) -> Tensor:
        heads: Tensor = step(x)
        shapes.append(tuple(heads.shape))
        return heads

    object.__setattr__(module, "split_heads", split_heads)


def _needs_a_mechanism(fault: type[Fault]) -> bool:
    return bool(set(_measured().get(name_of(fault), {}).get("needs", ())) & set(_MECHANISMS))


@functools.cache
def _measured() -> dict[str, dict[str, Any]]:
    return read()


_TORCH = "https://github.com/pytorch/pytorch/blob/main/"
_KERAS = "https://github.com/keras-team/keras/blob/master/keras/src/layers/attention/multi_head_attention_test.py"

CHECKS: tuple[Check, ...] = (
    Check(
        letter="A",
        name="the shape assertions of the lesson",
        looks_at="that nothing is raised, and the shapes `[B, T, d]` of the output, `[B, h, T, T]` of the weights, "
        "`[B, h, T, d_head]` of q, k and v after the split; as built, float32",
        inputs="the worked example (2 samples, 5 tokens, 4 heads of 8, causal), and the exercise (3 of 10, 8 of 16, no mask)",
        judge=shapes,
    ),
    Check(
        letter="B",
        name="the one parity check of the lesson",
        looks_at="the output, as built, by `max_diff < 2e-5`, in float32; in float64 as well, since in float32 rounding alone "
        "may exceed it",
        inputs="the worked example, seed 123",
        judge=parity,
    ),
    Check(
        letter="C1",
        name="torch: ModuleInfo of `nn.MultiheadAttention`",
        looks_at="the output and the mean of the weights over the heads, in both modes",
        inputs="one sample, 3 queries, 3 other keys, 3 heads of width 1; no mask, or the last key hidden; with biases or not",
        judge=replays(replayed.of_module_info(), _BOTH, "mean"),
        link=_TORCH + "torch/testing/_internal/common_modules.py",
    ),
    Check(
        letter="C2",
        name="torch: tests of `nn.TransformerEncoder`",
        looks_at="the output, in both modes",
        inputs="2 samples of 5 tokens, 2 heads of 2, no mask, masks that hide nothing, one padding; 2 of 2 tokens, causal",
        judge=replays(replayed.of_torch_encoder(), _BOTH),
        link=_TORCH + "test/test_transformers.py",
    ),
    Check(
        letter="C3",
        name="torch: tests of `nn.MultiheadAttention` against NumPy",
        looks_at="the output and the weights, in training",
        inputs="one query; 2 to 10 samples and keys, 4 to 10 heads of 3 to 10, a mask of 0 and -inf, padding the same in every "
        "sample; 24 draws (theirs are 100 of each kind)",
        judge=replays(replayed.of_torch_reference(), (True,), "all"),
        link=_TORCH + "test/nn/test_multihead_attention.py",
    ),
    Check(
        letter="C4",
        name="keras: `test_correctness`",
        looks_at="the output and the weights, in evaluation",
        inputs="one sample, 8 tokens that are unit vectors, 8 equal heads, all kernels the identity, no mask",
        judge=replays(replayed.of_keras_numbers(), _EVALUATION, "all"),
        link=_KERAS,
    ),
    Check(
        letter="C5",
        name="keras: four tests of masks",
        looks_at="the output, in evaluation (theirs compare the layer with itself)",
        inputs="3 samples, 5 queries, 3 keys, padding of both; 2 samples of 5 tokens, 2 heads of 4, a causal mask in three "
        "shapes, the flag, the flag and a mask",
        judge=replays(replayed.of_keras_masks(), _EVALUATION),
        link=_KERAS,
    ),
    Check(
        letter="C6",
        name="a causal language model, one sample and one head",
        looks_at="the output, in evaluation",
        inputs="6 tokens of width 8, a causal mask, or the flag",
        judge=replays(replayed.of_a_language_model(), _EVALUATION),
    ),
    Check(
        letter="D",
        name="joint permutation of the tokens, and independence of the samples",
        looks_at="the output, in evaluation",
        inputs="random cases, as the two laws `permuted_tokens_give_permuted_rows` and `a_sample_alone_gives_its_own_rows` draw "
        "them, of every shape and mask here",
        judge=properties("permuted_tokens_give_permuted_rows", "a_sample_alone_gives_its_own_rows"),
    ),
    Check(
        letter="E",
        name="these properties",
        looks_at="whatever a law is about",
        inputs="random cases",
        judge=properties(),
    ),
)
