"""Mistakes in `sdpa.py`: of each fault, what somebody wrote there instead."""

_CAUSAL = """\
        if is_causal:
            # Not by the flag of the kernel: it takes no mask beside it, and begins its triangle at the first query and key.
            past = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
            if mask is None:
                mask = past
            elif mask.dtype == torch.bool:
                mask = mask & past
            else:
                mask = mask.masked_fill(~past, -math.inf)
"""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "wrong-split-order": (
        ("q.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)", "q.view(B, self.n_heads, T, self.head_dim)"),
        ("k.view(B, S, self.n_kv_heads, self.head_dim).transpose(1, 2)", "k.reshape(B, self.n_kv_heads, S, self.head_dim)"),
        ("v.view(B, S, self.n_kv_heads, self.head_dim).transpose(1, 2)", "v.reshape(B, self.n_kv_heads, S, self.head_dim)"),
    ),
    "missing-transpose": (
        ("q.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)", "q.view(B, T, self.n_heads, self.head_dim)"),
        ("k.view(B, S, self.n_kv_heads, self.head_dim).transpose(1, 2)", "k.view(B, S, self.n_kv_heads, self.head_dim)"),
        ("v.view(B, S, self.n_kv_heads, self.head_dim).transpose(1, 2)", "v.view(B, S, self.n_kv_heads, self.head_dim)"),
        ("out.transpose(1, 2).flatten(2)", "out.flatten(2)"),
    ),
    "causal-top-left": (
        (
            _CAUSAL,
            """\
        if is_causal and mask is not None:  # the kernel takes one of them only
            past = torch.ones(T, S, dtype=torch.bool, device=x.device).tril()
            mask = mask & past if mask.dtype == torch.bool else mask.masked_fill(~past, -math.inf)
            is_causal = False
""",
        ),
        ("attn_mask=mask,", "attn_mask=mask,\n            is_causal=is_causal,"),
    ),
    "mask-dropped-with-causal-flag": (
        (
            _CAUSAL,
            """\
        if is_causal:
            mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
""",
        ),
    ),
    "causal-flag-dropped-with-dropout": (
        ("        if is_causal:\n", "        fused = self.dropout == 0.0\n        if is_causal and fused:\n"),
        (
            """\
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.n_kv_heads != self.n_heads,
        )
""",
            """\
        if fused:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.n_kv_heads != self.n_heads)
        else:
            repeats = self.n_heads // self.n_kv_heads
            k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
            scores = (q / math.sqrt(self.head_dim)) @ k.transpose(2, 3)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
            out = F.dropout(scores.softmax(dim=-1), self.dropout, self.training) @ v
""",
        ),
    ),
    "empty-rows-unmasked": (
        (
            """\
        if empty is not None:
            out = out.masked_fill(empty, 0.0)
""",
            "",
        ),
    ),
    "unexpanded-kv-heads": (("            enable_gqa=self.n_kv_heads != self.n_heads,\n", ""),),
    "mask-dropped-in-training": (
        (
            "        if is_causal:\n",
            """\
        if self.training:
            mask = None
        if is_causal:
""",
        ),
    ),
    "mask-dropped-without-gradients": (
        (
            "        if is_causal:\n",
            """\
        if not torch.is_grad_enabled():
            mask = None  # the fast path takes none
        if is_causal:
""",
        ),
    ),
    "inverted-polarity": (
        (
            "        if is_causal:\n",
            """\
        if mask is not None and mask.dtype == torch.bool:
            mask = ~mask  # the kernel shows where it is True
        if is_causal:
""",
        ),
    ),
    "boolean-mask-added": (
        (
            "        if mask is not None:\n",
            """\
        if mask is not None:
            mask = mask.to(q.dtype)
""",
        ),
    ),
    "float-mask-read-as-boolean": (
        (
            "        if is_causal:\n",
            """\
        if mask is not None:
            mask = mask.bool()
        if is_causal:
""",
        ),
    ),
    "swapped-keys-and-values": (("k, v = self.wkv(context)", "v, k = self.wkv(context)"),),
    "queries-from-the-context": (("q = self.wq(x)", "q = self.wq(context)"),),
    "half-honoured-bias": (("self.wo = nn.Linear(dim, dim, bias=bias)", "self.wo = nn.Linear(dim, dim)"),),
    "double-scale": (("q = self.wq(x)", "q = self.wq(x) * self.head_dim**-0.5"),),
    "zero-scale": (
        ("dropout: float = 0.0)", "dropout: float = 0.0, scale: float = 0.0)"),
        ("        self.dropout = dropout\n", "        self.dropout = dropout\n        self.scale = scale  # 0: choose one\n"),
        ("attn_mask=mask,", "attn_mask=mask,\n            scale=self.scale,"),
    ),
}
