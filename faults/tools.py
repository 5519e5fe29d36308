"""Mistakes that stay hidden until one of torch's tools takes hold of the layer, or until it is trained from scratch."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn.masks import boolean_to_additive
from faults.facts import sees
from faults.fault import Fault
from properties.case import Case


class OutProjectionBypassed(Fault):
    """Apply the weight of `out_proj` with `F.linear`, and never call the module.

    Why it is wrong:
        The numbers are right. But an adapter, a quantised layer or a hook sits in the module, and none of it runs: fine-tuning
        with it trains parameters that nothing reads.

    When it shows:
        In the hooks on `out_proj`. They are looked for in self-attention, where every projection can be called. The
        numbers are right: only the law that hangs a hook on every submodule sees it.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/78109
        https://github.com/Baijiong-Lin/LoRA-Torch/issues/3
        https://github.com/huggingface/peft/issues/761

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case()

    Killed by:
        tools: every_submodule_is_called
    """

    root_cause = "qkv projection: dynamic parameter registration"

    def project_out(self, merged: Tensor) -> Tensor:
        return F.linear(merged, self.out_proj.weight, self.out_proj.bias)

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys is None


class WeightsBoundInTheConstructor(Fault):
    """Bind the weight of `out_proj` to `F.linear` once, in the constructor, to save looking it up in every call.

    Why it is wrong:
        What is bound is this one tensor. Parameters that are given for the time of a call, as `functional_call` and everything
        built on it do, are put where the module keeps its own, and nobody looks there any more. Neither do hooks run.

    When it shows:
        Whenever the out-projection matters: if a query sees a key, or there is a bias. In self-attention always, by its hooks.

    Seen in the wild:
        https://github.com/Baijiong-Lin/LoRA-Torch/issues/3
        https://github.com/helicalAI/helical/pull/405

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        1.1, the median relative error of the output.

    Smallest case:
        Case()

    Killed by:
        reference: output_is_the_formula, gradients_are_those_of_the_formula, two_keys_share_by_the_sigmoid
        rows: weights_explain_the_output, constant_values_come_back, outputs_stay_among_the_values
        masking: empty_rows_are_as_declared
        heads: heads_may_be_permuted, the_output_is_the_sum_of_its_heads, a_head_is_a_layer_of_one_head,
            grouped_heads_are_full_heads_with_repeated_weights, each_query_head_reads_its_own_group
        algebra: values_enter_linearly
        dependence: every_parameter_counts
        modes: dropout_drops_single_weights, dropout_is_drawn_for_every_weight, the_share_of_dropped_weights_is_p,
            training_projects_out_as_well, the_gradient_is_that_of_the_kept_weights
        precision: rounding_explains_the_error
        tools: given_parameters_are_used, every_submodule_is_called, autocast_rounds_and_no_more
    """

    root_cause = "qkv projection: dynamic parameter registration"

    def __init__(self, d_model: int, num_heads: int, bias: bool = False, **options: Any) -> None:
        super().__init__(d_model, num_heads, bias, **options)
        bound = functools.partial(F.linear, weight=self.out_proj.weight, bias=self.out_proj.bias)
        self.project_out = bound  # type: ignore[method-assign]

    @staticmethod
    def visible(case: Case) -> bool:
        return case.keys is None or sees(case) or case.bias


class ClosureOverTheOriginal(Fault):
    """Choose in the constructor how to project out, and keep the choice as a function that remembers its layer.

    Why it is wrong:
        A copy of the layer copies the attribute, not what the function remembers. The copy projects out with the weights of the
        original: an averaged or frozen copy follows every step of the one that is trained. And pickle refuses the function.

    When it shows:
        In a copy, or in a file, whatever the inputs. The original is right: only laws that copy the layer, or save it,
        see it.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/91435

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case()

    Killed by:
        tools: a_copy_stands_alone, a_saved_layer_comes_back
    """

    root_cause = "qkv projection: dynamic parameter registration"

    def __init__(self, d_model: int, num_heads: int, bias: bool = False, **options: Any) -> None:
        super().__init__(d_model, num_heads, bias, **options)
        self.project_out = lambda merged: self.out_proj(merged)  # type: ignore[method-assign]

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class KvHeadsForgottenOnLoading(Fault):
    """Give a layer from an old file the attribute that those files lack, `num_kv_heads`, and give it to every other one as well.

    Why it is wrong:
        Python restores a layer by `__setstate__`, from a file as well as for a copy. One with grouped heads comes back as one
        without, and no longer knows what its own weights mean.

    When it shows:
        With several groups of heads, in what was copied or loaded as a whole; a single key/value head serves all by
        broadcasting. A state dict holds no attributes and loses none. The original is right: only laws that copy the
        layer, or save it, see it.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/91435
        https://github.com/pytorch/pytorch/issues/51662

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(num_heads=4, num_kv_heads=2)

    Killed by:
        tools: a_copy_stands_alone, a_saved_layer_comes_back
    """

    root_cause = "variant: variant configuration"

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.num_kv_heads = self.num_heads

    @staticmethod
    def visible(case: Case) -> bool:
        return 1 < case.g < case.num_heads


class CacheGrowsInRecomputation(Fault):
    """Cache keys and values while training, and append those of a further call on the same tokens: it must be the next segment.

    Why it is wrong:
        Under checkpointing the same tokens come a second time because the forward pass is done again. It then attends to every
        key twice, and what the backward pass gets is not what the forward pass made.

    When it shows:
        With checkpointing, in the backward pass. Called once, it is right: only the law of checkpointing calls it twice
        for one result.

    Seen in the wild:
        https://github.com/huggingface/transformers/issues/28056

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case()

    Killed by:
        tools: checkpointing_changes_nothing
    """

    root_cause = "kv cache: update synchronization"

    cached: tuple[Tensor, Tensor, Tensor] | None = None  # of which tokens, keys, values

    def project_in(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project_in(x, context)
        if self.training and torch.is_grad_enabled():
            if self.cached is not None and self.cached[0] is x:
                k, v = torch.cat([self.cached[1], k], dim=1), torch.cat([self.cached[2], v], dim=1)  # [B, S + S, d]
            self.cached = x, k, v
        return q, k, v

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class ContextAccumulatedInPlace(Fault):
    """Add the products of weights and values to a buffer of the dtype that the layer has, with `baddbmm_`.

    Why it is wrong:
        Under autocast the layer's parameters stay in float32, and what they project is in half precision. Autocast converts the
        arguments of operations that return something new; one in place has a dtype already, is left alone, and meets both.

    When it shows:
        Under autocast only. It raises.

    Seen in the wild:
        https://github.com/kohya-ss/musubi-tuner/pull/1037
        https://github.com/tensorflow/addons/pull/2253

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case()

    Killed by:
        tools: autocast_rounds_and_no_more
    """

    root_cause = "score: precision handling"

    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        B, h, T, S = weights.shape
        heads = v.new_zeros(B * h, T, self.d_head, dtype=self.in_proj.weight.dtype)
        heads = heads.baddbmm_(weights.reshape(B * h, T, S), v.reshape(B * h, S, self.d_head))
        return heads.view(B, h, T, self.d_head)  # [B*h, T, d_head] -> [B, h, T, d_head]

    @staticmethod
    def visible(case: Case) -> bool:
        return True


class NoEmptyRowsInAGraph(Fault):
    """Look for empty rows only where one can look, and in a graph being traced suppose that there are none.

    Why it is wrong:
        A graph cannot branch on numbers, so it has to do what is right for all of them. This one was traced for masks that leave
        every query a key, and serves all others.

    When it shows:
        Compiled or exported, for a query that sees no key: NaN where eager gives zero. Both is tried whatever the case.
        Untraced, it is right: only laws that trace it see it.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/179287
        https://github.com/pytorch/TensorRT/issues/3823

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case()

    Killed by:
        graphs: all
    """

    root_cause = "kernel: silent fallback"

    def mask(self, scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        if attn_mask is not None and torch.compiler.is_compiling():
            bias = boolean_to_additive(attn_mask, scores.dtype) if attn_mask.dtype == torch.bool else attn_mask
            scores, attn_mask = scores + bias, None
        return super().mask(scores, attn_mask, is_causal)

    @staticmethod
    def visible(case: Case) -> bool:
        return True  # the laws of graphs make their own mask, with a row that is empty


class HeadsStartAlike(Fault):
    """Initialise one head with care, and repeat it for all the others.

    Why it is wrong:
        Heads that start alike ask alike and answer alike. Only the out-projection tells them apart, and what they learn at first
        is what one head would have learned.

    When it shows:
        In the parameters as they are built, with more than one head. Weights that are loaded hide it. Loaded weights hide
        how a layer began: only the law that looks at it as it was built sees it.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/57117

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case(num_heads=2)

    Killed by:
        training: projections_start_apart
    """

    root_cause = "qkv projection: parameter initialization"

    def __init__(self, d_model: int, num_heads: int, bias: bool = False, **options: Any) -> None:
        super().__init__(d_model, num_heads, bias, **options)
        with torch.no_grad():
            for rows in self.in_proj.weight.split(self.widths):
                head = nn.init.xavier_uniform_(rows[: self.d_head].clone())  # [d_head, d]
                rows.copy_(head.repeat(rows.shape[0] // self.d_head, 1))

    @staticmethod
    def visible(case: Case) -> bool:
        return case.num_heads > 1


class ValuesNotInitialised(Fault):
    """Make the packed weight of zeros and fill in its parts, those of queries and keys; the third was forgotten.

    Why it is wrong:
        All values are zero, so is the output whatever is attended to, and at first nothing tells queries and keys what to do.
        Training gets over it, some steps late, and nobody learns why.

    When it shows:
        In the parameters as they are built. Weights that are loaded hide it. Loaded weights hide how a layer began: only
        the law that looks at it as it was built sees it.

    Seen in the wild:
        https://github.com/pytorch/pytorch/issues/57117

    Symptom:
        Silent: nothing is raised, the result is wrong.

    Severity:
        0: the output of a first call in evaluation is right.

    Smallest case:
        Case()

    Killed by:
        training: projections_start_apart
    """

    root_cause = "qkv projection: parameter initialization"

    def __init__(self, d_model: int, num_heads: int, bias: bool = False, **options: Any) -> None:
        super().__init__(d_model, num_heads, bias, **options)
        with torch.no_grad():
            self.in_proj.weight.zero_()
            for rows in self.in_proj.weight.split(self.widths)[:2]:
                nn.init.xavier_uniform_(rows)

    @staticmethod
    def visible(case: Case) -> bool:
        return True
