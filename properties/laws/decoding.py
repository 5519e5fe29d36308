"""Laws of a cache: a sequence handed over piece by piece gives the rows of one pass over the whole."""

from __future__ import annotations

import torch
from torch import Tensor

from properties.case import CAUSAL, Case
from properties.compare import assert_close
from properties.inputs import Inputs, make_inputs
from properties.property import Property
from properties.subject import Broken, Decoding, Subject


def token_by_token_is_one_pass(subject: Subject, case: Case) -> None:
    """Handed over one token at a time, a sequence gives the rows of one pass over it, whatever it runs into on the way."""
    _assert_is_one_pass(subject, case, "one token at a time")


def chunk_by_chunk_is_one_pass(subject: Subject, case: Case) -> None:
    """Several tokens at a time give the same rows, too: several queries meet a cache that is not empty."""
    _assert_is_one_pass(subject, case, f"{case.chunk} tokens at a time")


def going_on_after_a_prefill_is_one_pass(subject: Subject, case: Case) -> None:
    """A prompt at once, and what follows it in pieces, give the same rows: the way every text is generated."""
    _assert_is_one_pass(subject, case, f"{case.prefill} tokens at once and then {case.chunk} at a time")


def beams_take_their_past_along(subject: Subject, case: Case) -> None:
    """After a reorder, each sample goes on from the past of the one it was made from: keys, values, and all else there is."""
    layer, inputs = subject.start(case)
    first, *rest = case.pieces()
    if not rest:
        return
    order = torch.arange(case.batch).roll(1)
    decoding = layer.decode(inputs)
    if decoding.reorder is None:
        raise Broken("it declares that its cache can be reordered, and gives no way to do it")
    decoding.step(inputs.piece(*first))
    decoding.reorder(order)
    moved = inputs.rows(order)
    got = torch.cat([decoding.step(moved.piece(*piece)).output for piece in rest], dim=1)
    behind = slice(first[1], None)
    bound = subject.rounding(case).output[order, behind]
    want = layer(moved).output[:, behind]
    assert_close(got, want, bound, "output of the rest, after a reorder", subject.judged(moved)[:, behind, None])


def requests_do_not_see_each_other(subject: Subject, case: Case) -> None:
    """Two sequences that one layer serves in turns get what each would get alone."""
    layer, inputs = subject.start(case)
    other = inputs.with_keys(-inputs.keys)
    asked: list[tuple[Inputs, Decoding, list[Tensor]]] = [(one, layer.decode(one), []) for one in (inputs, other)]
    for begin, end in case.pieces():
        for request, decoding, rows in asked:
            rows.append(decoding.step(request.piece(begin, end)).output)
    bound, judged = subject.rounding(case).output + subject.bounds(other).output, subject.judged(inputs)[..., None]
    for request, _, rows in asked:
        alone = _decoded(subject.layer(request).decode(request), request, case)
        assert_close(torch.cat(rows, dim=1), alone, bound, "output beside another request", judged)


def a_second_generation_is_the_first(subject: Subject, case: Case) -> None:
    """What was generated before leaves no trace, in a new cache or in one that was reset."""
    layer, inputs = subject.start(case)
    want = _decoded(subject.layer(inputs).decode(inputs), inputs, case)
    other = inputs.with_keys(-inputs.keys)
    used = layer.decode(other)
    _decoded(used, other, case)
    _assert_same(subject, case, _decoded(layer.decode(inputs), inputs, case), want, "in the second generation")
    if used.reset is not None:
        used.reset()
        _assert_same(subject, case, _decoded(used, inputs, case), want, "after a reset")


def capacity_does_not_matter(subject: Subject, case: Case) -> None:
    """How many slots a cache has changes nothing: those that nobody has written hold no keys."""
    _assert_is_one_pass(subject, case, f"with {case.spare} slots to spare")


def a_cache_keeps_the_dtype(subject: Subject, case: Case) -> None:
    """In every dtype a cache takes what it is handed, and gives it back in that dtype, within its rounding."""
    inputs = make_inputs(case, getattr(torch, case.dtype))
    layer = subject.layer(inputs)
    got = _decoded(layer.decode(inputs), inputs, case)
    bound, judged = subject.bounds(inputs).output, subject.judged(inputs)[..., None]
    assert_close(got, layer(inputs).output, bound, f"output in {case.dtype}, piece by piece", judged)


def _decoded(decoding: Decoding, inputs: Inputs, case: Case) -> Tensor:
    return torch.cat([decoding.step(inputs.piece(*piece)).output for piece in case.pieces()], dim=1)


def _assert_is_one_pass(subject: Subject, case: Case, how: str) -> None:
    layer, inputs = subject.start(case)
    got = _decoded(layer.decode(inputs), inputs, case)
    _assert_same(subject, case, got, layer(inputs).output, how)


def _assert_same(subject: Subject, case: Case, got: Tensor, want: Tensor, how: str) -> None:
    judged = subject.judged(make_inputs(case, subject.dtype))[..., None]
    assert_close(got, want, subject.rounding(case).output, f"output {how}", judged)


# A cache is for what does not look ahead.
WHERE = {"mask": CAUSAL, "keys": (None,)}
IN_TURNS = {"positions": ("counted",)}  # those that are given nobody counts, and so nobody counts wrong

PROPERTIES = (
    Property(law=token_by_token_is_one_pass, needs=("cache",), where={**WHERE, "chunk": (1,), "prefill": (0,)}),
    Property(law=chunk_by_chunk_is_one_pass, needs=("cache",), where={**WHERE, "chunk": (2, 3), "prefill": (0,)}),
    Property(law=going_on_after_a_prefill_is_one_pass, needs=("cache",), where={**WHERE, "prefill": (1, 2, 3)}),
    Property(law=beams_take_their_past_along, needs=("cache", "reorders"), where={**WHERE, "batch": (2, 3)}),
    Property(law=requests_do_not_see_each_other, needs=("cache",), where={**WHERE, **IN_TURNS}),
    Property(law=a_second_generation_is_the_first, needs=("cache",), where=WHERE),
    Property(law=capacity_does_not_matter, needs=("cache", "static_cache"), where={**WHERE, "spare": (0, 1, 2)}),
    Property(law=a_cache_keeps_the_dtype, needs=("cache",), where=WHERE),
)
