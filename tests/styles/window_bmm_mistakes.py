"""Mistakes of a sliding window in `[batch*heads, tokens, head_dim]`."""

NEAR = "query - key < self.window_size"
VISIBLE = """        visible = self.local_mask(tokens, x.device)
        bias = torch.zeros_like(visible, dtype=q.dtype).masked_fill(~visible, NEG_INF)
"""
ADDED = "            bias = bias + mask\n"
AS_BIAS = """            if mask.dtype == torch.bool:
                mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, NEG_INF)
"""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "window-one-too-wide": ((NEAR, "query - key <= self.window_size"),),
    "window-one-too-narrow": ((NEAR, "query - key < self.window_size - 1"),),
    "window-centred-on-the-query": ((NEAR, "(query - key).abs() <= self.window_size // 2"),),
    "window-of-one-taken-for-none": (
        (
            """        if self.window_size is None:
            return causal
        return causal & (query - key < self.window_size)
""",
            """        lookback = self.window_size and self.window_size - 1
        if not lookback:
            return causal
        return causal & (query - key <= lookback)
""",
        ),
    ),
    "window-open-to-the-right": (("return causal & (query - key < self.window_size)", "return query - key < self.window_size"),),
    "window-replaces-the-mask": (
        ("        if mask is not None:\n", "        if mask is not None and self.window_size is None:\n"),
    ),
    "window-only-with-a-mask": (
        (
            VISIBLE,
            """        visible = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
        if mask is not None:
            visible = self.local_mask(tokens, x.device)
        bias = torch.zeros_like(visible, dtype=q.dtype).masked_fill(~visible, NEG_INF)
""",
        ),
    ),
    "window-or-the-mask": (
        (
            AS_BIAS + ADDED,
            AS_BIAS
            + """            if self.window_size is None:
                bias = bias + mask
            else:
                # Whatever is 0 in one of the two is visible; the future is in neither.
                future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
                bias = torch.maximum(bias, mask).masked_fill(future, NEG_INF)
""",
        ),
    ),
    "window-lost-in-training": (
        ("        if self.window_size is None:\n", "        if self.window_size is None or self.training:\n"),
    ),
}
