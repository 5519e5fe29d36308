"""Mistakes in `bmm.py`: of each fault, what somebody wrote there instead."""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "missing-contiguous": (("attn.transpose(0, 1).contiguous().view(tgt_len, bsz,", "attn.transpose(0, 1).view(tgt_len, bsz,"),),
    "mask-tiled-over-heads": (("mask.repeat_interleave(num_heads, dim=0)", "mask.repeat(num_heads, 1, 1)"),),
    "mask-without-query-axis": (
        (
            "    if mask.dtype == torch.bool:\n",
            """\
    mask = mask[..., :1, :]  # the keys that are hidden are the same for every query
    if mask.dtype == torch.bool:
""",
        ),
    ),
    "causal-reversed": ((".tril(src_len - tgt_len)", ".triu(src_len - tgt_len)"),),
    "empty-rows-nan": (
        (
            """\
        # Where all is hidden there is nothing to attend to, and the softmax of it would be NaN.
        nothing = (scores == -math.inf).all(dim=-1, keepdim=True)
        weights = F.softmax(scores.masked_fill(nothing, 0.0), dim=-1)
        weights = weights.masked_fill(nothing, 0.0)
""",
            """\
        weights = F.softmax(scores, dim=-1)
""",
        ),
    ),
    "batch-and-time-exchanged": (
        (
            """\
        query = query.transpose(0, 1)  # [T, B, d]
        key = query if key is None else key.transpose(0, 1)  # [S, B, d]
""",
            """\
        key = query if key is None else key
""",
        ),
        ("return attn.transpose(0, 1), weights", "return attn, weights"),
    ),
    "batch-and-heads-exchanged": (
        (
            "        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, self.embed_dim)\n",
            """\
        attn = attn.view(self.num_heads, bsz, tgt_len, self.head_dim)
        attn = attn.permute(2, 1, 0, 3).reshape(tgt_len, bsz, self.embed_dim)
""",
        ),
    ),
    "mask-multiplied-before-softmax": (("scores.masked_fill(~mask, -math.inf)", "scores * mask"),),
    "zero-times-infinity": (("scores.masked_fill(~mask, -math.inf)", "scores + (1 - mask.to(scores.dtype)) * -math.inf"),),
    "mask-never-used": (
        (
            """\
        if attn_mask is not None:
            scores = masked(scores, for_every_head(attn_mask, bsz, self.num_heads, tgt_len, src_len))
""",
            "",
        ),
    ),
    "bias-lost": (("return scores + mask", "return scores.masked_fill(mask == -math.inf, -math.inf)"),),
    "interleaved-projection": (
        (
            """\
        q = self.in_proj(query, 0, self.embed_dim)
        k = self.in_proj(key, self.embed_dim, self.kv_dim)
        v = self.in_proj(key, self.embed_dim + self.kv_dim, self.kv_dim)
""",
            """\
        q, _, _ = self.in_proj_by_head(query)
        _, k, v = self.in_proj_by_head(key)
""",
        ),
        (
            "    def in_proj(",
            '''\
    def in_proj_by_head(self, tokens: Tensor) -> list[Tensor]:
        """The packed parameter holds one key/value head after the other: the queries that share it, its key, its value."""
        packed = self.in_proj(tokens, 0, len(self.in_proj_weight))
        heads = packed.unflatten(-1, (self.num_kv_heads, -1, self.head_dim))
        parts = heads.split([self.num_heads // self.num_kv_heads, 1, 1], dim=-2)
        return [part.flatten(-3) for part in parts]

    def in_proj(''',
        ),
    ),
    "keys-from-the-value-rows": (
        (
            "k = self.in_proj(key, self.embed_dim, self.kv_dim)",
            "k = self.in_proj(key, self.embed_dim + self.kv_dim, self.kv_dim)",
        ),
    ),
    "context-of-equal-length-ignored": (
        (
            "        key = query if key is None else key.transpose(0, 1)",
            """\
        self_attention = key is None or key.shape[1] == len(query)
        key = query if self_attention else key.transpose(0, 1)""",
        ),
    ),
    "inverted-scale": (("q = q * self.scaling", "q = q / self.scaling"),),
    "scale-from-packed-width": (
        ("self.scaling = self.head_dim**-0.5", "self.scaling = (len(self.in_proj_weight) / num_heads) ** -0.5"),
    ),
    "scaled-mask": (
        ("        q = q * self.scaling\n", ""),
        (
            "        # Where all is hidden",
            """\
        scores = scores * self.scaling

        # Where all is hidden""",
        ),
    ),
    "softmax-not-cast-back": (
        (
            "F.softmax(scores.masked_fill(nothing, 0.0), dim=-1)",
            "F.softmax(scores.masked_fill(nothing, 0.0), dim=-1, dtype=torch.float32)",
        ),
    ),
}
