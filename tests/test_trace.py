"""What the steps of an attention returned is written down as it was."""

from __future__ import annotations

import pytest
import torch

from attn import CachedAttention, MultiHeadAttention
from faults.catalog import catalog, equivalents, find
from faults.fault import step_of
from faults.lessons.trace import steps_of, trace, trace_backward, trace_decoding
from faults.subject import clean_class
from properties.case import Case
from properties.inputs import make_inputs
from properties.oracle import attend

CASE = Case(queries=3, num_heads=2, d_head=2, mask="causal")


def test_the_steps_are_written_down_in_their_order() -> None:
    steps = [str(step) for step in trace(MultiHeadAttention, make_inputs(CASE)).steps]
    split = ["split_heads (queries)", "split_heads (keys)", "split_heads (values)"]
    assert steps[3:6] == split
    assert steps[-7:] == ["score", "mask", "softmax", "drop", "combine", "merge_heads", "project_out"]


def test_what_a_step_returned_is_not_what_a_later_one_made_of_it() -> None:
    """The mask is added in place."""
    named = trace(MultiHeadAttention, make_inputs(CASE)).named()
    assert named["score"].isfinite().all()
    assert not named["mask"].isfinite().all()


def test_what_was_handed_in_is_kept_as_it_was() -> None:
    (step,) = (step for step in trace(MultiHeadAttention, make_inputs(CASE)).steps if step.name == "mask")
    assert step.given["scores"].isfinite().all()
    assert step.given["attn_mask"].dtype == torch.bool


def test_the_results_are_those_of_the_layer() -> None:
    inputs = make_inputs(CASE)
    found, want = trace(MultiHeadAttention, inputs), attend(inputs)
    torch.testing.assert_close(found.results["output"], want.output)
    torch.testing.assert_close(found.results["weights"], want.weights)


def test_a_fault_departs_at_its_step_and_not_before() -> None:
    fault = find("wrong-split-order")
    broken, clean = (trace(attention, make_inputs(CASE)) for attention in (fault, clean_class(fault)))
    differs = [str(a) for a, b in zip(broken.steps, clean.steps, strict=True) if not torch.equal(a.returned, b.returned)]
    assert differs[0] == "split_heads (queries)"


def test_what_raises_is_a_part_of_the_trace() -> None:
    found = trace(find("missing-contiguous"), make_inputs(CASE))
    assert isinstance(found.raised, RuntimeError)
    assert found.raised_in == "merge_heads"
    assert str(found.steps[-1]) == "combine"
    assert not found.results


def test_dropout_draws_the_same_for_both() -> None:
    inputs = make_inputs(Case(queries=3, num_heads=2, d_head=2, dropout=0.5))
    fault = find("dropped-weights-returned")
    broken, clean = (trace(attention, inputs, training=True) for attention in (fault, clean_class(fault)))
    assert torch.equal(broken.named()["drop"], clean.named()["drop"])
    assert not torch.equal(broken.results["weights"], clean.results["weights"])


def test_a_sequence_through_a_cache_is_a_call_a_piece() -> None:
    case = Case(queries=3, num_heads=2, d_head=2, mask="is_causal")
    inputs = make_inputs(case)
    found = trace_decoding(CachedAttention, inputs, [(0, 2), (2, 3)])
    assert {step.call for step in found.steps if step.name == "score"} == {0, 1}
    torch.testing.assert_close(found.results["output"], attend(inputs).output)
    kept = [step.returned.shape[2] for step in found.steps if str(step) == "append (keys)"]
    assert kept == [2, 3]


def test_gradients_are_results() -> None:
    inputs = make_inputs(CASE)
    found = trace_backward(find("detached-keys"), inputs, torch.ones(1, 3, 4, dtype=torch.float64))
    assert found.results["gradient of w_k"].eq(0).all()
    assert found.results["gradient of w_v"].any()


@pytest.mark.parametrize("name", [*catalog(), *equivalents()])
def test_the_step_that_a_fault_replaces_is_one_that_is_written_down(name: str) -> None:
    fault = find(name)
    assert step_of(fault) in [*steps_of(fault), "__init__", "__setstate__", "forward", "attend"]
