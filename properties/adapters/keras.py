"""The two multi-head attentions of Keras 3 on its torch backend, each asked for its scores and not.

Asked for scores, or built with dropout, they write the softmax out. Otherwise they call `keras.ops.dot_product_attention`, and it
`F.scaled_dot_product_attention`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import Tensor

from properties.inputs import Inputs, Weights
from properties.subject import Layer, LoadedModule, Result, Subject
from properties.supports import USUAL_TOOLS, Supports

os.environ.setdefault("KERAS_BACKEND", "torch")  # read once, when keras is first imported

import keras  # noqa: E402

if keras.config.backend() != "torch":
    raise ImportError(f"keras runs on {keras.config.backend()} here: set KERAS_BACKEND=torch before it is first imported")


def multi_head_attention() -> Subject:
    """`keras.layers.MultiHeadAttention`, called with `return_attention_scores=True`.

    Declared as documented: a mask is boolean, True = may attend, and broadcasts; `use_causal_mask` puts its triangle at the top
    left. An empty row is zero (not documented, but done on purpose by its softmax). Scores are those before dropout.
    """
    return _subject("keras.layers.MultiHeadAttention", _multi_head, scores=True, grouped=False)


def multi_head_attention_without_scores() -> Subject:
    """`keras.layers.MultiHeadAttention`, called as it is by default.

    `dot_product_attention` computes float64 in float32 (on purpose, "aligned with JAX"), and hides keys by a large finite number,
    by which an empty row is the mean of all values.
    """
    return _subject("keras.layers.MultiHeadAttention, without scores", _multi_head, scores=False, grouped=False)


def group_query_attention() -> Subject:
    """`keras.layers.GroupQueryAttention`, called with `return_attention_scores=True`; declared as `multi_head_attention`."""
    return _subject("keras.layers.GroupQueryAttention", _group_query, scores=True, grouped=True)


def group_query_attention_without_scores() -> Subject:
    """`keras.layers.GroupQueryAttention` as it is by default; declared as `multi_head_attention_without_scores`."""
    return _subject("keras.layers.GroupQueryAttention, without scores", _group_query, scores=False, grouped=True)


def _multi_head(inputs: Inputs, **options: Any) -> Any:
    return keras.layers.MultiHeadAttention(inputs.num_heads, inputs.d_head, **options)


def _group_query(inputs: Inputs, **options: Any) -> Any:
    return keras.layers.GroupQueryAttention(inputs.d_head, inputs.num_heads, inputs.num_kv_heads, **options)


def _subject(name: str, make: Callable[..., Any], *, scores: bool, grouped: bool) -> Subject:
    def build(inputs: Inputs) -> Layer:
        d_head = inputs.d_head
        layer = make(
            inputs,
            dropout=inputs.dropout,
            use_bias=inputs.weights.b_o is not None,
            dtype=str(inputs.x.dtype).removeprefix("torch."),
            name="attention",
        )
        layer.build((None, *inputs.x.shape[1:]), (None, *inputs.keys.shape[1:]))

        def call(function: Callable[..., Any], inputs: Inputs, training: bool) -> Result:
            returned = function(
                inputs.x,
                inputs.keys,
                attention_mask=inputs.mask,
                use_causal_mask=inputs.is_causal,
                return_attention_scores=scores,
                training=training,  # as documented; the mode set by module.train() is not looked at
            )
            return Result(*returned) if scores else Result(returned)

        def run(inputs: Inputs, training: bool) -> Result:
            # Not torch.func.functional_call: the layer keeps references of its own to its parameters, and would not see others.
            given = _by_path(inputs.weights, d_head)
            with keras.StatelessScope([(variable, given[variable.path]) for variable in layer.trainable_variables]):
                return call(layer, inputs, training)

        def parameters(weights: Weights) -> dict[str, Tensor]:
            # The state dict has each of them twice, in its own layer and in the whole.
            given = _by_path(weights, d_head)
            paths = {name: name.rpartition("_torch_params.")[2] for name in layer.state_dict()}
            return {name: given[path] for name, path in paths.items() if path in given}

        return Layer(run, LoadedModule(layer, parameters, call))

    supports = Supports(
        encodings=("bool",),
        causal_alignment="top_left",
        grouped_heads=grouped,
        weights=scores,
        training_weights=scores,
        empty_rows="zero" if scores else "uniform",
        floors={} if scores else {"float64": "float32"},
        # Of functional_call see `run`; its parameters stand in lists of keras' own, which nobody calls, and are reset by keras.
        tools=tuple(tool for tool in USUAL_TOOLS if tool not in ("functional_call", "hooks", "init")),
    )
    return Subject(name=name, build=build, supports=supports)


def _by_path(w: Weights, d_head: int) -> dict[str, Tensor]:
    """The weights by the paths of keras variables: kernels `[d, h, d_head]`, that of the output `[h, d_head, d]`."""
    given = {"attention/attention_output/kernel": w.w_o.T.unflatten(0, (-1, d_head))}
    for name, kernel, bias in (("query", w.w_q, w.b_q), ("key", w.w_k, w.b_k), ("value", w.w_v, w.b_v)):
        given[f"attention/{name}/kernel"] = kernel.T.unflatten(1, (-1, d_head))
        if bias is not None:
            given[f"attention/{name}/bias"] = bias.unflatten(0, (-1, d_head))
    if w.b_o is not None:
        given["attention/attention_output/bias"] = w.b_o
    return given


SUBJECTS = (
    multi_head_attention,
    multi_head_attention_without_scores,
    group_query_attention,
    group_query_attention_without_scores,
)
