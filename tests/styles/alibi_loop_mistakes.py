"""Mistakes of ALiBi in a loop over the heads."""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "one-series-of-slopes": (
        (
            """    closest = 2 ** math.floor(math.log2(n))
    slopes = power_of_two_slopes(closest)
    # Not a power of two: fill up with every other slope of the next one.
    slopes += power_of_two_slopes(2 * closest)[0::2][: n - closest]
    return slopes
""",
            """    return power_of_two_slopes(n)
""",
        ),
    ),
    "slopes-of-the-next-power-of-two": (
        (
            """    closest = 2 ** math.floor(math.log2(n))
    slopes = power_of_two_slopes(closest)
    # Not a power of two: fill up with every other slope of the next one.
    slopes += power_of_two_slopes(2 * closest)[0::2][: n - closest]
    return slopes
""",
            """    return power_of_two_slopes(2 ** math.ceil(math.log2(n)))[:n]
""",
        ),
    ),
    "slopes-of-a-local-head": (
        (
            "        self.dropout = config.dropout\n",
            """        self.dropout = config.dropout
        # Tensor parallel: the heads are shared by two devices, if there is an even number of them.
        self.local_heads = config.heads // 2 if config.heads % 2 == 0 else config.heads
""",
        ),
        (
            "            slope = self.slopes[i]\n",
            """            local_head = i % self.local_heads
            slope = self.slopes[local_head]
""",
        ),
    ),
    "far-costs-less": (("scores = scores - slope * distance", "scores = scores + slope * distance"),),
    "future-is-rewarded": (
        (
            "distance = (position[:, None] - position[None, :]).abs()",
            "distance = position[:, None] - position[None, :]",
        ),
    ),
    "cost-divided-with-the-scores": (
        (
            """            scores = q @ k.transpose(1, 2) / math.sqrt(self.head_dim)
            scores = scores - slope * distance
""",
            """            scores = q @ k.transpose(1, 2) - slope * distance
            scores = scores / math.sqrt(self.head_dim)
""",
        ),
    ),
    "slopes-along-the-keys": (
        (
            "        distance = distance.to(x.dtype)\n",
            """        distance = distance.to(x.dtype)
        alibi = torch.tensor(self.slopes, dtype=x.dtype, device=x.device) * distance
""",
        ),
        (
            """            slope = self.slopes[i]
            scores = q @ k.transpose(1, 2) / math.sqrt(self.head_dim)
            scores = scores - slope * distance
""",
            """            scores = q @ k.transpose(1, 2) / math.sqrt(self.head_dim)
            scores = scores - alibi
""",
        ),
    ),
    # As with a library function that takes a bias or the flag: the flag is for calls in which there is nothing to add.
    "bias-instead-of-the-flag": (
        (
            """        if is_causal:
            hidden = hidden | (position[None, :] > position[:, None])
""",
            """            if is_causal:
                hidden = hidden | (position[None, :] > position[:, None])
        attn_bias = [-slope * distance for slope in self.slopes]
        if is_causal and attn_bias is None:
            hidden = hidden | (position[None, :] > position[:, None])
""",
        ),
        (
            """            slope = self.slopes[i]
            scores = q @ k.transpose(1, 2) / math.sqrt(self.head_dim)
            scores = scores - slope * distance
""",
            """            scores = q @ k.transpose(1, 2) / math.sqrt(self.head_dim) + attn_bias[i]
""",
        ),
    ),
}
