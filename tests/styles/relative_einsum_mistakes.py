"""Mistakes of a relative bias in einsum."""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "distance-the-other-way": (("positions[None, :] - positions[:, None])", "positions[:, None] - positions[None, :])"),),
    "buckets-rounded": (
        ("(logs * (self.num_buckets - max_exact)).long()", "(logs * (self.num_buckets - max_exact)).round().long()"),
    ),
    "far-is-the-length": (("max_distance = self.max_distance\n", "max_distance = relative_position.shape[-1]\n"),),
    "table-read-by-a-view": (
        (
            """        bias = F.embedding(buckets, self.relative_attention_bias)  # [length, length, heads]
        return bias.permute(2, 0, 1)
""",
            """        by_head = self.relative_attention_bias.reshape(self.n_heads, self.num_buckets)
        return by_head[:, buckets]
""",
        ),
    ),
    "bias-divided-with-the-scores": (
        (
            """        scores = torch.einsum("bigrd,bjgd->bgrij", q, k) * self.d_kv**-0.5
        scores = scores + self.compute_bias(n).view(g, r, n, n)
""",
            """        scores = torch.einsum("bigrd,bjgd->bgrij", q, k) + self.compute_bias(n).view(g, r, n, n)
        scores = scores * self.d_kv**-0.5
""",
        ),
    ),
}
