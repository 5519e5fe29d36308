"""Mistakes in `prefix_bmm.py`."""

from __future__ import annotations

BIAS = """\
        bias = self.additive(mask, q.dtype, (B, T)).masked_fill(~visible[:, None], float("-inf"))
"""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "prefix-under-the-causal-flag": (
        (BIAS, BIAS + '        bias = bias.masked_fill(~past, float("-inf"))  # a decoder is causal\n'),
    ),
    "prefix-sees-what-follows": (("past | in_prefix[:, None, :]", "past | in_prefix[:, :, None]"),),
    "prefix-one-token-too-long": (("position < prefix[:, None]", "position <= prefix[:, None]"),),
    "prefix-of-the-first-sample": (("position < prefix[:, None]", "position < prefix[:1, None]"),),
    "prefix-opens-the-whole-sequence": (("position < prefix[:, None]  # [B, T]", "(prefix > 0)[:, None].expand(B, T)"),),
    "prefix-replaces-the-mask": (("self.additive(mask, q.dtype, (B, T))", "self.additive(None, q.dtype, (B, T))"),),
    "prefix-opens-its-padding": (
        ("        visible = past | in_prefix[:, None, :]  # [B, T, T]\n", ""),
        (
            BIAS,
            """\
        bias = self.additive(mask, q.dtype, (B, T)).masked_fill(~past, float("-inf"))
        bias = bias.masked_fill(in_prefix[:, None, None, :], 0.0)
""",
        ),
    ),
}
