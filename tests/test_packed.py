"""Packed documents, against each of them alone and torch's own attention."""

from __future__ import annotations

import doctest
import re
from typing import Any

import pytest
import torch
from by_hand import B, T, attended, h, layer_and_tokens, padding

import attn.packed
from attn import PackedAttention, document_mask

DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1], [7, 3, 3, 3, 5], [2, 2, 2, 2, 2]])
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()
SAME = DOCUMENTS[:, None, :, None] == DOCUMENTS[:, None, None, :]


def test_the_mask() -> None:
    mask = document_mask(torch.tensor([[0, 0, 1], [4, 2, 4]]))
    assert mask.dtype == torch.bool
    assert mask.shape == (2, 1, 3, 3)
    assert mask[0, 0].int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert mask[1, 0].int().tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]  # wherever they stand


def test_torch_agrees() -> None:
    layer, x = layer_and_tokens(PackedAttention)
    output, weights = layer(x, documents=DOCUMENTS)
    torch.testing.assert_close(output, attended(layer, x, CAUSAL & SAME))
    assert torch.equal(weights > 0, (CAUSAL & SAME).expand(B, h, T, T))


def test_each_document_is_as_if_alone() -> None:
    layer, x = layer_and_tokens(PackedAttention)
    output, _ = layer(x, documents=DOCUMENTS)
    alone, _ = layer(x[1:2, 1:4], documents=torch.zeros(1, 3, dtype=torch.int64))
    torch.testing.assert_close(output[1:2, 1:4], alone)


def test_beside_a_mask() -> None:
    layer, x = layer_and_tokens(PackedAttention)
    mask = padding([1, 1, 1, 0, 1], [1, 1, 1, 0, 1], [1, 0, 1, 1, 1])
    torch.testing.assert_close(layer(x, mask, documents=DOCUMENTS)[0], attended(layer, x, mask & CAUSAL & SAME))
    bias = torch.randn(B, h, T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    want = attended(layer, x, bias.masked_fill(~(CAUSAL & SAME), -torch.inf))
    torch.testing.assert_close(layer(x, bias, documents=DOCUMENTS)[0], want)


@pytest.mark.parametrize(
    ("documents", "error", "said"),
    [
        ([[0, 0]], TypeError, "documents must be a tensor of whole numbers, got list"),
        (torch.zeros(3, 5), TypeError, "documents must be whole numbers, got torch.float32: convert them with .long()"),
        (
            torch.zeros(3, 5, dtype=torch.bool),
            TypeError,
            "documents must be whole numbers, got torch.bool: convert them with .long()",
        ),
        (torch.zeros(5, dtype=torch.int64), ValueError, "documents must have shape [B, T] = [3, 5], got [5]"),
        (torch.zeros(3, 4, dtype=torch.int64), ValueError, "documents must have shape [B, T] = [3, 5], got [3, 4]"),
        (torch.zeros(2, 5, dtype=torch.int64), ValueError, "documents must have shape [B, T] = [3, 5], got [2, 5]"),
        (torch.zeros(3, 5, 8, dtype=torch.int64), ValueError, "documents must have shape [B, T] = [3, 5], got [3, 5, 8]"),
    ],
)
def test_documents_that_are_refused(documents: Any, error: type[Exception], said: str) -> None:
    layer, x = layer_and_tokens(PackedAttention)
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        layer(x, documents=documents)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_whole_numbers_of_any_kind(dtype: torch.dtype) -> None:
    layer, x = layer_and_tokens(PackedAttention)
    assert torch.equal(layer(x, documents=DOCUMENTS.to(dtype))[0], layer(x, documents=DOCUMENTS)[0])


def test_what_else_it_refuses() -> None:
    layer, x = layer_and_tokens(PackedAttention)
    with pytest.raises(ValueError, match=r"^x must have width d_model=8"):
        layer(x[..., :7], documents=DOCUMENTS)
    with pytest.raises(ValueError, match=r"does not broadcast to the scores \[B, h, T, S\] = \[3, 4, 5, 5\]"):
        layer(x, torch.ones(T, 3, dtype=torch.bool), documents=DOCUMENTS)


def test_the_examples_in_the_docstrings() -> None:
    failed, tried = doctest.testmod(attn.packed, extraglobs={"torch": torch})
    assert failed == 0 and tried > 0
