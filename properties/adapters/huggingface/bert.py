"""BERT's attention, with the linear layer behind it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import BertConfig
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.models.bert.modeling_bert import BertCrossAttention, BertSelfAttention, BertSelfOutput

from properties.adapters.huggingface.dispatch import DISPATCHES, supports
from properties.inputs import Inputs, Weights
from properties.subject import Subject
from properties.wrap import of_module


class _WithOut(nn.Module):
    """An attention, and the linear layer with which BertSelfOutput begins; there, a residual and a LayerNorm follow."""

    def __init__(self, attention: Callable[[BertConfig], nn.Module], dispatch: str, inputs: Inputs) -> None:
        super().__init__()
        self.config = BertConfig(
            hidden_size=inputs.x.shape[2],
            num_attention_heads=inputs.num_heads,
            attention_probs_dropout_prob=inputs.dropout,
            attn_implementation=dispatch,
        )
        self.attention, self.dense = attention(self.config), BertSelfOutput(self.config).dense
        self.to(inputs.x.dtype)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        heads, weights = self.attention(*args, **kwargs)
        return self.dense(heads), weights


class _WithOutAndPadding(_WithOut):
    """The same, the mask made as BertModel makes it: of which tokens are real, bool [B, S], and whether it is a decoder."""

    def forward(self, x: Tensor, attention_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        create = create_causal_mask if is_causal else create_bidirectional_mask
        mask = create(config=self.config, inputs_embeds=x, attention_mask=attention_mask, cache=None)
        return super().forward(x, attention_mask=mask, is_causal=is_causal)


def _parameters(w: Weights) -> dict[str, Tensor]:
    """Its linear layers always have a bias: zero, if we have none."""
    layers = {"q": "attention.query", "k": "attention.key", "v": "attention.value", "o": "dense"}
    given = dict(w.items())
    named = {f"{name}.weight": given[f"w_{letter}"] for letter, name in layers.items()}
    zeros = {letter: given[f"w_{letter}"].new_zeros(given[f"w_{letter}"].shape[0]) for letter in layers}
    return named | {f"{name}.bias": given.get(f"b_{letter}", zeros[letter]) for letter, name in layers.items()}


def self_attention(dispatch: str) -> Subject:
    """`BertSelfAttention`, called with `attention_mask`. It attends to itself only."""
    return of_module(
        f"transformers.BertSelfAttention[{dispatch}]",
        build=partial(_WithOut, BertSelfAttention, dispatch),
        parameters=_parameters,
        arguments=lambda inputs: ((inputs.x,), {"attention_mask": inputs.mask, "is_causal": inputs.is_causal}),
        supports=supports(dispatch, flag=True, cross_attention=False),
    )


def padded_self_attention(dispatch: str) -> Subject:
    """`BertSelfAttention`, called with what `create_bidirectional_mask` or `create_causal_mask` makes of a mask of real tokens.

    For eager that is the most negative number of the dtype, not -inf: an empty row sees all keys alike.
    """
    return of_module(
        f"transformers.BertSelfAttention[{dispatch}, padding]",
        build=partial(_WithOutAndPadding, BertSelfAttention, dispatch),
        parameters=_parameters,
        arguments=lambda inputs: ((inputs.x, inputs.mask, inputs.is_causal), {}),
        supports=supports(
            dispatch,
            cross_attention=False,
            masks=("none", "is_causal", "padding", "is_causal+padding"),
            mask_shape="[B, S]",
            encodings=("bool",),
            empty_rows="uniform" if dispatch == "eager" else "zero",
        ),
    )


def cross_attention(dispatch: str) -> Subject:
    """`BertCrossAttention`, called with `encoder_hidden_states` and `attention_mask`."""
    return of_module(
        f"transformers.BertCrossAttention[{dispatch}]",
        build=partial(_WithOut, BertCrossAttention, dispatch),
        parameters=_parameters,
        arguments=lambda inputs: ((inputs.x, inputs.keys), {"attention_mask": inputs.mask}),
        supports=supports(dispatch),
    )


SUBJECTS = tuple(
    partial(subject, dispatch) for subject in (self_attention, padded_self_attention, cross_attention) for dispatch in DISPATCHES
)
