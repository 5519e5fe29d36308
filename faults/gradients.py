"""Mistakes of the backward pass: every value is right, and the layer does not learn, or learns something else."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from faults.facts import chooses, has_mask, sees
from faults.fault import Fault
from properties.case import Case


class SoftmaxWithoutBackward(Fault):
    """Compute the softmax on bare data, as a fused kernel without a backward pass does.

    Why it is wrong:
        The graph ends there. Values and output projection still learn, so the loss goes down; queries, keys and additive mask
        stay what they were at the beginning.

    When it shows:
        In the gradients only, if a query has a choice between keys.

    Seen in the wild:
        https://github.com/huggingface/candle/pull/3724

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: gradients_are_those_of_the_formula
        derivatives: gradients_are_slopes_of_the_output
        modes: the_gradient_is_that_of_the_kept_weights
        training: every_parameter_learns
    """

    root_cause = "score: implementation"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights = scores.detach().softmax(dim=-1)
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class ScoresOutsideTheGraph(Fault):
    """Compute the scores under `torch.no_grad()`, to save the memory of the largest product.

    Why it is wrong:
        No gradient reaches queries and keys. An additive mask comes later and keeps its own, so not even "some of it is None"
        is noticed where the bias is learned.

    When it shows:
        In the gradients only, if a query has a choice between keys.

    Seen in the wild:
        https://github.com/huggingface/candle/pull/3724

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: gradients_are_those_of_the_formula
        derivatives: gradients_are_slopes_of_the_output
        modes: the_gradient_is_that_of_the_kept_weights
        training: every_parameter_learns
    """

    root_cause = "score: implementation"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        with torch.no_grad():
            return (q / math.sqrt(self.d_head)) @ k.mT

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class DetachedKeys(Fault):
    """Compare the queries with detached keys.

    Why it is wrong:
        Keys are a target that stands still: the queries learn to find them, and they do not learn to be found. Every parameter
        still gets a gradient, for the keys share their projection with queries and values.

    When it shows:
        In the gradients only, if a query has a choice between keys.

    Seen in the wild:
        https://github.com/huggingface/candle/pull/3724
        https://github.com/RL-Align/RL-Kernel/pull/188

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient.

    Smallest case:
        Case(queries=2)

    Killed by:
        reference: gradients_are_those_of_the_formula
        derivatives: gradients_are_slopes_of_the_output
        modes: the_gradient_is_that_of_the_kept_weights
        training: every_parameter_learns
    """

    root_cause = "score: implementation"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q / math.sqrt(self.d_head)) @ k.detach().mT

    @staticmethod
    def visible(case: Case) -> bool:
        return chooses(case)


class DetachedMask(Fault):
    """Take the additive mask for a constant.

    Why it is wrong:
        Whoever passes a learned bias, for relative positions say, gets the right values and no gradient for it.

    When it shows:
        In the gradient of an additive mask, if a query has a choice between keys. Every value is right: only laws that
        take the gradient of the mask see it.

    Seen in the wild:
        https://github.com/jax-ml/jax/issues/32242

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient.

    Smallest case:
        Case(queries=2, mask='full', encoding='additive')

    Killed by:
        reference: gradients_are_those_of_the_formula
        derivatives: gradients_are_slopes_of_the_output
    """

    root_cause = "masking: mask application"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        return super().mask(scores, None if attn_mask is None else attn_mask.detach(), is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return has_mask(case) and case.encoding != "bool" and chooses(case)


class ContextRebuiltFromNumbers(Fault):
    """Merge the heads outside of torch, and make a tensor of the result again.

    Why it is wrong:
        Numbers that went through a list, or through NumPy, carry no history. Only the output projection is trained, on top of
        attention as it was initialised.

    When it shows:
        In the gradients, if a query sees a key. Always in `vmap`, where a tensor stands for many and has no numbers to give.

    Seen in the wild:
        https://github.com/huggingface/candle/pull/3724

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient.

    Smallest case:
        Case()

    Killed by:
        reference: gradients_are_those_of_the_formula
        derivatives: gradients_are_slopes_of_the_output
        modes: the_gradient_is_that_of_the_kept_weights
        tools: vmap_is_a_loop
        training: every_parameter_learns
    """

    root_cause = "score: implementation"

    def merge_heads(self, heads: Tensor) -> Tensor:
        merged = heads.transpose(1, 2).flatten(2)  # [B, T, d]
        return torch.tensor(merged.tolist(), dtype=heads.dtype, device=heads.device).view(merged.shape)

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class JacobianWithoutRowDot(Fault):
    """Write the backward pass of the softmax by hand, as weights * gradient, and stop there.

    Why it is wrong:
        That is the diagonal of the Jacobian. The weights of a row sum to 1, so raising one score lowers the other weights: the
        mean of the gradient under the weights has to be taken off.

    When it shows:
        In the gradients of everything in front of the softmax, if a query sees a key; even a query that has no choice seems to
        have something to learn.

    Seen in the wild:
        https://github.com/HomericIntelligence/Odyssey/issues/2134
        https://github.com/mlpack/mlpack/pull/3998

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient.

    Smallest case:
        Case()

    Killed by:
        reference: gradients_are_those_of_the_formula
        derivatives: gradients_are_slopes_of_the_output
        modes: the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "score: implementation"

    def softmax(self, scores: Tensor, empty: Tensor | None) -> Tensor:
        weights: Tensor = _SoftmaxByHand.apply(scores)  # type: ignore[no-untyped-call]
        return weights if empty is None else weights.masked_fill(empty, 0.0)

    @staticmethod
    def visible(case: Case) -> bool:
        return sees(case)


class DropoutIgnoredInTheBackward(Fault):
    """Let the gradient pass dropout as if nothing had been dropped.

    Why it is wrong:
        The step that was taken forward is not the one that is differentiated: keys that had no part in the output are blamed
        for it, and those that were scaled up are blamed too little.

    When it shows:
        In the gradients, in training, with a dropout above 0, if a query has a choice between keys. Every value is right:
        only laws that take gradients in training see it.

    Seen in the wild:
        https://github.com/aws-neuron/nki-samples/pull/81
        https://github.com/tenstorrent/tt-mlir/pull/9284

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right; wrong: the gradient in training.

    Smallest case:
        Case(queries=2, dropout=0.5)

    Killed by:
        derivatives: gradients_are_slopes_of_the_output
        modes: the_gradient_is_that_of_the_kept_weights
    """

    root_cause = "score: implementation"

    def drop(self, weights: Tensor) -> Tensor:
        return weights + (F.dropout(weights, self.dropout, training=self.training) - weights).detach()

    @staticmethod
    def visible(case: Case) -> bool:
        return case.dropout > 0 and chooses(case)


class _SoftmaxByHand(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return weights * gradient  # type: ignore[no-any-return]
