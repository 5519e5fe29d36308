"""Mistakes of a key/value cache around the library function."""

TRIANGLE = "        attn_mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)\n"
EVERYTHING = "torch.ones(T, S, dtype=torch.bool, device=x.device)"
WRITE = """            self.k[:, start:end] = k
            self.v[:, start:end] = v
"""
GROW = """            self.k = torch.cat([self.k, k], dim=1)
            self.v = torch.cat([self.v, v], dim=1)
"""
ADVANCE = "        self.pos = end\n"
READ = "        return self.k[:, :end].transpose(1, 2), self.v[:, :end].transpose(1, 2)\n"
MAKE_V = "        self.v = like.new_zeros(batch, max_len or 0, n_kv_heads, head_dim)\n"
MAKE = "        return KVCache(batch, self.n_kv_head, self.head_dim, max_len, like=self.c_attn.weight)\n"
REORDER = """        self.k = self.k.index_select(0, beam_idx)
        self.v = self.v.index_select(0, beam_idx)
"""
RESET = """        self.pos = 0
        if self.max_len is None:
            self.k, self.v = self.k[:, :0], self.v[:, :0]
"""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "triangle-at-the-first-key": ((".tril(S - T)", ".tril()"),),
    "square-mask-on-a-warm-cache": (
        (TRIANGLE, f"        attn_mask = {EVERYTHING}\n        if T > 1:\n            attn_mask = attn_mask[:, :T].tril()\n"),
    ),
    "prompt-unmasked-with-a-cache": (
        (
            TRIANGLE,
            f"        attn_mask = {EVERYTHING}\n        if cache is None:\n            attn_mask = attn_mask.tril(S - T)\n",
        ),
    ),
    "mask-only-for-the-prompt": (
        (
            TRIANGLE,
            f"        attn_mask = {EVERYTHING}\n        if S == T:  # the prompt\n            attn_mask = attn_mask.tril()\n",
        ),
    ),
    "causal-only-with-a-cache": (
        (
            TRIANGLE,
            f"        attn_mask = {EVERYTHING}\n        if cache is not None:\n            attn_mask = attn_mask.tril(S - T)\n",
        ),
    ),
    "padding-mask-of-the-new-tokens": (
        (
            "        if mask is not None:\n            attn_mask = ",
            "        if mask is not None:\n            mask = mask[..., -T:]\n            attn_mask = ",
        ),
    ),
    "position-never-advanced": (
        (ADVANCE, ""),
        (
            GROW,
            GROW + "            end = self.k.shape[1]\n",
        ),
    ),
    "position-advanced-too-early": (
        (
            WRITE,
            """            self.k[:, start:end] = k
            self.pos += k.shape[1]
            self.v[:, self.pos : self.pos + v.shape[1]] = v
""",
        ),
    ),
    "values-overwritten": ((WRITE, WRITE.replace("self.v[:, start:end]", "self.v[:, : v.shape[1]]")),),
    "unwritten-slots-seen": ((READ, "        return self.k.transpose(1, 2), self.v.transpose(1, 2)\n"),),
    "rolled-when-full": (
        (
            WRITE,
            """            if end >= self.max_len:  # full: the oldest make room
                n = k.shape[1]
                self.k, self.v = self.k.roll(-n, dims=1), self.v.roll(-n, dims=1)
                start, end = self.max_len - n, self.max_len
"""
            + WRITE,
        ),
    ),
    "new-keys-in-front": ((GROW, GROW.replace("[self.k, k]", "[k, self.k]").replace("[self.v, v]", "[v, self.v]")),),
    "cache-read-before-it-is-written": (
        (
            "        start, end = self.pos, self.pos + k.shape[1]\n",
            """        start, end = self.pos, self.pos + k.shape[1]
        cached = self.k[:, :start].transpose(1, 2), self.v[:, :start].transpose(1, 2)
""",
        ),
        (READ, "        return cached\n"),
    ),
    "keys-and-values-in-one-buffer": ((MAKE_V, "        self.v = self.k\n"),),
    "slots-before-heads": (
        (
            READ,
            """        if self.max_len is None:
            return self.k.transpose(1, 2), self.v.transpose(1, 2)
        batch, slots, heads, dim = self.k.shape
        return self.k.view(batch, heads, slots, dim)[:, :, :end], self.v.view(batch, heads, slots, dim)[:, :, :end]
""",
        ),
    ),
    "cache-for-every-query-head": ((MAKE, MAKE.replace("n_kv_head", "n_head")),),
    "one-cache-for-all-requests": (
        (
            "        self.dropout = dropout\n",
            "        self.dropout = dropout\n        self.cache: KVCache | None = None\n",
        ),
        (
            MAKE,
            """        if self.cache is None or (self.cache.k.shape[0], self.cache.max_len) != (batch, max_len):
            self.cache = KVCache(batch, self.n_kv_head, self.head_dim, max_len, like=self.c_attn.weight)
        self.cache.reset()
        return self.cache
""",
        ),
    ),
    "reset-of-the-length-alone": ((RESET, "        self.pos = 0\n"),),
    "reset-of-the-tensors-alone": ((RESET, "        self.k.zero_()\n        self.v.zero_()\n"),),
    "beams-leave-their-values": ((REORDER, "        self.k = self.k.index_select(0, beam_idx)\n"),),
    "beams-copied-in-place": (
        (
            REORDER,
            """        for i, beam in enumerate(beam_idx.tolist()):
            self.k[i] = self.k[beam]
            self.v[i] = self.v[beam]
""",
        ),
    ),
    # Tensor parallel: each of two ranks caches half of the heads, and rank 0 searches.
    "reorder-of-one-shard": (
        (
            REORDER,
            """        rank_0 = slice(0, (self.k.shape[2] + 1) // 2)
        self.k[:, :, rank_0] = self.k[:, :, rank_0].index_select(0, beam_idx)
        self.v[:, :, rank_0] = self.v[:, :, rank_0].index_select(0, beam_idx)
""",
        ),
    ),
}
