"""The attention is one graph: compiled without a break, it gives what it gives uncompiled, whatever is in the mask."""

from __future__ import annotations

import torch

from attn import MultiHeadAttention, causal_mask


def test_one_graph_serves_every_mask() -> None:
    attention, x = MultiHeadAttention(8, 2, bias=True, num_kv_heads=1), torch.randn(2, 3, 8)
    # The backend runs the graph as it was traced: nothing is fused, so results are equal to the last bit.
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    mask = causal_mask(3)
    for given in (mask, mask & torch.tensor([False, True, True])[:, None], None):  # the second leaves a query without a key
        for got, want in zip(compiled(x, given), attention(x, given), strict=True):
            assert torch.equal(got, want)
