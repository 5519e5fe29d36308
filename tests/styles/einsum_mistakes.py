"""Mistakes in `einsum.py`: of each fault, what somebody wrote there instead."""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "mask-shape-mismatch": (
        (
            "            bias = additive(mask, logits.dtype)\n",
            """\
            if mask.dim() == 4:
                mask = mask.squeeze(1)  # b t s
            bias = additive(mask, logits.dtype)
""",
        ),
    ),
    "transposed-mask": (("bias = additive(mask, logits.dtype)", "bias = additive(mask.transpose(-2, -1), logits.dtype)"),),
    "causal-off-by-one": ((".tril(s - t)", ".tril(s - t + 1)"),),
    "causal-flag-dropped-with-mask": (("        if causal:\n", "        elif causal:\n"),),
    "empty-rows-uniform": (
        (
            """\
            # A row in which everything is hidden would be NaN, and so would its gradient.
            empty = (bias == -math.inf).all(dim=-1, keepdim=True)
            logits = logits + bias.masked_fill(empty, 0.0)
""",
            """\
            # With -inf, a row in which everything is hidden would be NaN.
            logits = (logits + bias).masked_fill(bias == -math.inf, torch.finfo(logits.dtype).min)
""",
        ),
    ),
    "empty-rows-nan-in-the-gradient": (
        (
            """\
            # A row in which everything is hidden would be NaN, and so would its gradient.
            empty = (bias == -math.inf).all(dim=-1, keepdim=True)
            logits = logits + bias.masked_fill(empty, 0.0)
""",
            """\
            # A row in which everything is hidden becomes NaN in the softmax.
            empty = (bias == -math.inf).all(dim=-1, keepdim=True)
            logits = logits + bias
""",
        ),
    ),
    "tokens-repeated-for-kv-heads": (
        (
            """\
        grouped = scaled.unflatten(2, (self.kv_heads, -1))  # b t g r d
        logits = einsum("btgrd,bsgd->bgrts", grouped, k).flatten(1, 2)  # b h t s
""",
            """\
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        logits = einsum("bthd,bshd->bhts", scaled, k)
""",
        ),
        (
            """\
        shares = self.drop(weights).unflatten(1, (self.kv_heads, -1))  # b g r t s
        mixed = einsum("bgrts,bsgd->btgrd", shares, v).flatten(2)
""",
            """\
        mixed = einsum("bhts,bshd->bthd", self.drop(weights), v).flatten(2)
""",
        ),
    ),
    "elementwise-scores": (
        (
            """\
        logits = einsum("btgrd,bsgd->bgrts", grouped, k).flatten(1, 2)  # b h t s
""",
            """\
        logits = einsum("btgrd,btgd->bgrt", grouped, k).flatten(1, 2)
        logits = logits[:, :, None].expand(-1, -1, x.shape[1], -1)  # b h t s
""",
        ),
    ),
    "averaged-heads": (
        (
            "        shares = self.drop(weights)",
            """\
        weights = weights.mean(dim=1, keepdim=True).expand(-1, self.heads, -1, -1)
        shares = self.drop(weights)""",
        ),
    ),
    "weights-times-queries": (('"bgrts,bsgd->btgrd", shares, v', '"bgrts,bsgd->btgrd", shares, q'),),
    "transposed-weights": (('"bgrts,bsgd->btgrd", shares', '"bgrst,bsgd->btgrd", shares'),),
    "mask-after-softmax-renormalised": (
        (
            """\
        empty = None
        if bias is not None:
            # A row in which everything is hidden would be NaN, and so would its gradient.
            empty = (bias == -math.inf).all(dim=-1, keepdim=True)
            logits = logits + bias.masked_fill(empty, 0.0)
        weights = logits.softmax(dim=-1)
        if empty is not None:
            weights = weights.masked_fill(empty, 0.0)
""",
            """\
        hidden = None
        if bias is not None:
            hidden = bias == -math.inf
            logits = logits + bias.masked_fill(hidden, 0.0)
        weights = logits.softmax(dim=-1)
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0.0)
            weights = weights / weights.sum(dim=-1, keepdim=True)
""",
        ),
    ),
    "finite-fill": (("torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)", "(~mask).to(dtype) * -1e9"),),
    "infinity-of-the-wrong-sign": (("masked_fill(~mask, -math.inf)", "masked_fill(~mask, math.inf)"),),
    "zero-one-mask-added": (("torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)", "(~mask).to(dtype)"),),
    "untransposed-weight": (
        ("self.q_proj(x)", "project(x, self.q_proj)"),
        ("self.k_proj(memory)", "project(memory, self.k_proj)"),
        ("self.v_proj(memory)", "project(memory, self.v_proj)"),
        (
            "def additive(",
            """\
def project(tokens: Tensor, by: nn.Linear) -> Tensor:
    projected = einsum("bni,io->bno", tokens, by.weight)
    return projected if by.bias is None else projected + by.bias


def additive(""",
        ),
    ),
    "transposed-out-projection": (
        (
            "        return self.o_proj(mixed), weights\n",
            """\
        out = einsum("bti,io->bto", mixed, self.o_proj.weight)
        if self.o_proj.bias is not None:
            out = out + self.o_proj.bias
        return out, weights
""",
        ),
    ),
    "scale-without-root": (("q * self.dim_head**-0.5", "q / self.dim_head"),),
    "softmax-over-heads": (("logits.softmax(dim=-1)", "logits.softmax(dim=1)"),),
    "softmax-without-maximum": (
        (
            "        weights = logits.softmax(dim=-1)\n",
            """\
        powers = logits.exp()
        weights = powers / powers.sum(dim=-1, keepdim=True)
""",
        ),
    ),
    "half-precision-softmax": (("logits.softmax(dim=-1)", "logits.half().softmax(dim=-1).to(logits.dtype)"),),
}
