"""Mistakes in `rows.py`: conflicts, dropout, gradients, kernels, state and tools."""

from __future__ import annotations

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    # Conflicts of mask, flag and sizes.
    "two-fills-added": (
        (
            """\
            bias = torch.zeros(hidden.shape, dtype=scores.dtype, device=x.device).masked_fill(hidden, -math.inf)
""",
            """\
            bias = torch.zeros(hidden.shape, dtype=scores.dtype, device=x.device).masked_fill(hidden, lowest)
        elif attn_mask is not None:
            bias = attn_mask.clamp(min=lowest)
""",
        ),
        ("        bias = attn_mask\n", "        bias, lowest = attn_mask, torch.finfo(scores.dtype).min\n"),
        (
            "            bias = bias.masked_fill(future, -math.inf)\n",
            "            bias = bias + torch.zeros_like(future, dtype=scores.dtype).masked_fill(future, lowest)\n",
        ),
        ("(bias == -math.inf).all", "(bias == lowest).all"),
    ),
    "mask-or-flag": (
        (
            "        bias = attn_mask\n",
            """\
        bias = attn_mask
        if is_causal and attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = attn_mask | torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
            is_causal = False
""",
        ),
    ),
    "causal-flag-sticks": (
        ("        self.dropout = dropout\n", "        self.dropout = dropout\n        self.is_causal = False\n"),
        (
            "        if is_causal:  # the last query sees the last key\n",
            """\
        self.is_causal = self.is_causal or is_causal
        if self.is_causal:  # the last query sees the last key
""",
        ),
    ),
    "padding-taken-for-a-prefix": (
        (
            "            hidden = attn_mask.logical_not()\n",
            """\
            if T > 1 and attn_mask.shape[-2] == 1:  # padding: the same for all queries
                lengths = attn_mask.sum(dim=-1, keepdim=True)
                attn_mask = torch.arange(S, device=x.device) < lengths
            hidden = attn_mask.logical_not()
""",
        ),
    ),
    "mask-indexed-by-head": (
        (
            "            scores = scores + bias.expand(B, h, T, S).reshape(B * h, T, S)\n",
            """\
            if bias.dim() == 4:
                bias = torch.stack([bias[:, head] for head in range(h)], dim=1)
            scores = scores + bias.expand(B, h, T, S).reshape(B * h, T, S)
""",
        ),
    ),
    "mask-in-the-default-dtype": (
        (
            "torch.zeros(hidden.shape, dtype=scores.dtype, device=x.device)",
            "torch.zeros(hidden.shape, device=x.device)",
        ),
        ("torch.zeros(T, S, dtype=scores.dtype, device=x.device)", "torch.zeros(T, S, device=x.device)"),
    ),
    "keys-viewed-at-query-length": (
        ("k = self.k_proj(source).view(B, S, g, f)", "k = self.k_proj(source.reshape(-1, d)).view(B, T, g, f)"),
        ("v = self.v_proj(source).view(B, S, g, f)", "v = self.v_proj(source.reshape(-1, d)).view(B, T, g, f)"),
        ("q = self.q_proj(x).view(B, T, h, f)", "q = self.q_proj(x.reshape(-1, d)).view(B, T, h, f)"),
    ),
    # Dropout.
    "dropout-in-evaluation": (
        ("F.dropout(weights, p=self.dropout, training=self.training)", "F.dropout(weights, p=self.dropout)"),
    ),
    "dropout-module-made-in-forward": (
        ("F.dropout(weights, p=self.dropout, training=self.training)", "nn.Dropout(self.dropout)(weights)"),
    ),
    "dropout-lost-after-evaluation": (
        (
            "        dropped = F.dropout(weights, p=self.dropout, training=self.training)\n",
            """\
        if not self.training:
            self.dropout = 0.0
        dropped = F.dropout(weights, p=self.dropout)
""",
        ),
    ),
    "dropout-before-softmax": (
        (
            "        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]\n",
            """\
        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]
        scores = F.dropout(scores, p=self.dropout, training=self.training)
""",
        ),
        ("        dropped = F.dropout(weights, p=self.dropout, training=self.training)\n", ""),
        ("torch.bmm(dropped, v)", "torch.bmm(weights, v)"),
    ),
    "dropout-on-the-output": (
        ("        dropped = F.dropout(weights, p=self.dropout, training=self.training)\n", ""),
        (
            "        heads = torch.bmm(dropped, v)  # [B*h, T, f]\n",
            "        heads = F.dropout(torch.bmm(weights, v), p=self.dropout, training=self.training)  # [B*h, T, f]\n",
        ),
    ),
    "dropped-weights-returned": (
        ("        dropped = F.dropout(weights,", "        weights = F.dropout(weights,"),
        ("torch.bmm(dropped, v)", "torch.bmm(weights, v)"),
    ),
    "dropout-shared-by-queries": (
        (
            "        dropped = F.dropout(weights, p=self.dropout, training=self.training)\n",
            """\
        kept = torch.ones(B * h, 1, S, dtype=weights.dtype, device=x.device)
        dropped = weights * F.dropout(kept, p=self.dropout, training=self.training)
""",
        ),
    ),
    "dropout-shared-by-heads": (
        (
            "        dropped = F.dropout(weights, p=self.dropout, training=self.training)\n",
            """\
        kept = F.dropout(torch.ones(B, T, S, dtype=weights.dtype, device=x.device), p=self.dropout, training=self.training)
        dropped = weights * kept.repeat_interleave(h, dim=0)
""",
        ),
    ),
    "dropout-shared-by-keys": (
        (
            "        dropped = F.dropout(weights, p=self.dropout, training=self.training)\n",
            """\
        kept = torch.ones(B * h, T, 1, dtype=weights.dtype, device=x.device)
        dropped = weights * F.dropout(kept, p=self.dropout, training=self.training)
""",
        ),
    ),
    "dropout-not-rescaled": (
        (
            "        dropped = F.dropout(weights, p=self.dropout, training=self.training)\n",
            """\
        dropped = weights
        if self.training:
            dropped = weights * (torch.rand_like(weights) >= self.dropout)
""",
        ),
    ),
    "dropout-in-the-denominator": (
        (
            "        dropped = F.dropout(weights, p=self.dropout, training=self.training)\n",
            """\
        dropped = F.dropout(weights, p=self.dropout, training=self.training)
        dropped = dropped / dropped.sum(dim=-1, keepdim=True)
""",
        ),
    ),
    "keep-probability-for-drop-probability": (("F.dropout(weights, p=self.dropout,", "F.dropout(weights, p=1 - self.dropout,"),),
    # Gradients.
    "softmax-without-backward": (("torch.softmax(scores, dim=-1)", "torch.softmax(scores.detach(), dim=-1)"),),
    "scores-outside-the-graph": (
        (
            "        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]\n",
            """\
        with torch.no_grad():
            scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]
""",
        ),
    ),
    "detached-keys": (("torch.bmm(q * f**-0.5, k.transpose(1, 2))", "torch.bmm(q * f**-0.5, k.detach().transpose(1, 2))"),),
    "detached-mask": (("        bias = attn_mask\n", "        bias = None if attn_mask is None else attn_mask.detach()\n"),),
    "context-rebuilt-from-numbers": (
        (
            "        merged = heads.view(B, h, T, f).transpose(1, 2).reshape(B, T, d)\n",
            """\
        numbers = heads.view(B, h, T, f).transpose(1, 2).tolist()
        merged = torch.tensor(numbers, dtype=heads.dtype, device=x.device).view(B, T, d)
""",
        ),
    ),
    "jacobian-without-row-dot": (
        ("torch.softmax(scores, dim=-1)", "RowSoftmax.apply(scores)"),
        (
            "class RowsAttention(nn.Module):\n",
            '''\
class RowSoftmax(torch.autograd.Function):
    """A softmax over the last axis that keeps only its result for the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores):
        return torch.softmax(scores, dim=-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (weights,) = ctx.saved_tensors
        return weights * grad


class RowsAttention(nn.Module):
''',
        ),
    ),
    "dropout-ignored-in-the-backward": (
        (
            "        dropped = F.dropout(weights, p=self.dropout, training=self.training)\n",
            """\
        dropped = F.dropout(weights, p=self.dropout, training=self.training)
        dropped = weights + (dropped - weights).detach()
""",
        ),
    ),
    # Kernels, and what is done where they do not fit.
    "scale-lost-in-the-fallback": (
        (
            "        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]\n",
            """\
        scores = q.new_empty(B * h, T, S)
        try:
            torch.bmm(q * f**-0.5, k.transpose(1, 2), out=scores)
        except RuntimeError:
            scores = torch.bmm(q, k.transpose(1, 2))
""",
        ),
    ),
    "mask-forgotten-by-the-fallback": (
        (
            "        bias = attn_mask\n",
            """\
        if f % 4 != 0:  # the kernel cannot, so the plain way
            return self.plain(scores, v, is_causal)
        bias = attn_mask
""",
        ),
        (
            "\n\ndef subject(",
            """\

    def plain(self, scores, v, is_causal):
        rows, T, S = scores.shape
        weights = scores
        if is_causal:
            future = torch.ones(T, S, dtype=torch.bool, device=scores.device).triu(S - T + 1)
            empty = future.all(dim=-1, keepdim=True)
            weights = scores.masked_fill(future & ~empty, -math.inf)
        weights = torch.softmax(weights, dim=-1)
        if is_causal:
            weights = weights.masked_fill(empty, 0.0)
        heads = torch.bmm(F.dropout(weights, p=self.dropout, training=self.training), v)
        B, d = rows // self.num_heads, self.num_heads * self.head_dim
        merged = heads.view(B, self.num_heads, T, self.head_dim).transpose(1, 2).reshape(B, T, d)
        return self.out_proj(merged), weights.view(B, self.num_heads, T, S)


def subject(""",
        ),
    ),
    "merge-by-the-advice-of-the-error": (
        (
            "        merged = heads.view(B, h, T, f).transpose(1, 2).reshape(B, T, d)\n",
            """\
        heads = heads.view(B, h, T, f)
        try:
            merged = heads.transpose(1, 2).view(B, T, d)
        except RuntimeError:
            merged = heads.reshape(B, T, d)
""",
        ),
    ),
    "scale-by-the-padded-width": (
        (
            "        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]\n",
            """\
        q, k = F.pad(q, (0, -f % 8)), F.pad(k, (0, -f % 8))
        scores = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2))  # [B*h, T, S]
""",
        ),
    ),
    "odd-widths-in-half": (
        (
            "        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]\n",
            """\
        if self.training or f % 8 == 0:
            scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]
        else:
            scores = torch.bmm((q * f**-0.5).half(), k.half().transpose(1, 2)).to(q.dtype)
""",
        ),
    ),
    "tail-of-the-width-left-out": (
        (
            "        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]\n",
            """\
        q = q * f**-0.5
        scores = torch.zeros(B * h, T, S, dtype=q.dtype, device=x.device)
        for block in range(f // 2):
            pair = slice(2 * block, 2 * block + 2)
            scores = scores + torch.bmm(q[..., pair], k[..., pair].transpose(1, 2))
""",
        ),
    ),
    "mask-on-the-default-device": (
        (
            "torch.ones(T, S, dtype=torch.bool, device=x.device).triu(S - T + 1)",
            "torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)",
        ),
    ),
    "result-in-kept-memory": (
        ("        self.dropout = dropout\n", "        self.dropout = dropout\n        self.results = {}\n"),
        (
            "        output = self.out_proj(merged)\n",
            """\
        output = self.out_proj(merged)
        if output.shape not in self.results:
            self.results[output.shape] = torch.empty(output.shape, dtype=output.dtype, device=x.device)
        output = self.results[output.shape].detach().copy_(output)
""",
        ),
    ),
    "nothing-for-no-tokens": (
        (
            "        B, T, d = x.shape\n",
            """\
        B, T, d = x.shape
        if T == 0:
            return x, None
""",
        ),
    ),
    "maximum-over-hidden-keys": (
        (
            "        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]\n",
            """\
        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]
        scores = scores - scores.amax(dim=-1, keepdim=True)  # so that nothing overflows
""",
        ),
    ),
    "nan-taken-for-an-empty-row": (
        ("weights = torch.softmax(scores, dim=-1)", "weights = torch.softmax(scores, dim=-1).nan_to_num(nan=0.0)"),
    ),
    # State.
    "input-changed-in-place": (
        ("q = self.q_proj(x).view(B, T, h, f)", "q = x.copy_(self.q_proj(x)).view(B, T, h, f)  # x is not needed any more"),
    ),
    "mask-changed-in-place": (("bias = bias.masked_fill(empty, 0.0)", "bias = bias.masked_fill_(empty, 0.0)"),),
    "mask-inverted-in-place": (("hidden = attn_mask.logical_not()", "hidden = attn_mask.logical_not_()"),),
    "scale-accumulates": (
        ("        self.dropout = dropout\n", "        self.dropout = dropout\n        self.scale = 1.0\n"),
        (
            "        scores = torch.bmm(q * f**-0.5, k.transpose(1, 2))  # [B*h, T, S]\n",
            """\
        self.scale /= math.sqrt(f)
        scores = torch.bmm(q * self.scale, k.transpose(1, 2))  # [B*h, T, S]
""",
        ),
    ),
    "mask-remembered": (
        ("        self.dropout = dropout\n", "        self.dropout = dropout\n        self.known_mask = None\n"),
        (
            "        bias = attn_mask\n",
            """\
        if attn_mask is not None:
            if self.known_mask is None or self.known_mask.shape != attn_mask.shape:
                self.known_mask = attn_mask
            attn_mask = self.known_mask
        bias = attn_mask
""",
        ),
    ),
    "keys-remembered": (
        ("        self.dropout = dropout\n", "        self.dropout = dropout\n        self.memory = None\n"),
        (
            "        q = self.q_proj(x).view(B, T, h, f)\n",
            """\
        q = self.q_proj(x).view(B, T, h, f)
        if context is not None:  # the context is the same for every token that is decoded
            if self.memory is None:
                self.memory = k, v
            k, v = self.memory
""",
        ),
    ),
    "strides-ignored": (
        (
            "        k = self.k_proj(source).view(B, S, g, f)\n",
            """\
        x = x.as_strided((B, T, d), (T * d, d, 1))
        source = source.as_strided((B, S, d), (S * d, d, 1))
        k = self.k_proj(source).view(B, S, g, f)
""",
        ),
    ),
    # Tools.
    "out-projection-bypassed": (
        ("output = self.out_proj(merged)", "output = F.linear(merged, self.out_proj.weight, self.out_proj.bias)"),
    ),
    "weights-bound-in-the-constructor": (
        ("import math\n", "import math\nfrom functools import partial\n"),
        (
            "        self.reset_parameters()\n",
            """\
        self.reset_parameters()
        self.project_out = partial(F.linear, weight=self.out_proj.weight, bias=self.out_proj.bias)
""",
        ),
        ("output = self.out_proj(merged)", "output = self.project_out(merged)"),
    ),
    "closure-over-the-original": (
        (
            "        self.reset_parameters()\n",
            """\
        self.reset_parameters()
        self.project_out = (lambda heads: heads) if d_model == 0 else (lambda heads: self.out_proj(heads))
""",
        ),
        ("output = self.out_proj(merged)", "output = self.project_out(merged)"),
    ),
    "kv-heads-forgotten-on-loading": (
        (
            "    def reset_parameters(self):\n",
            """\
    def __setstate__(self, state):
        super().__setstate__(state)
        self.num_kv_heads = self.num_heads  # files from before there were groups do not have it

    def reset_parameters(self):
""",
        ),
    ),
    "cache-grows-in-recomputation": (
        ("        self.dropout = dropout\n", "        self.dropout = dropout\n        self.seen, self.cached = None, None\n"),
        (
            "        # Fold the heads into the batch: row b*h + i is head i of sample b.\n",
            """\
        if self.training and torch.is_grad_enabled():
            if self.seen is x:  # the next segment of the same tokens
                k, v = torch.cat([self.cached[0], k], dim=1), torch.cat([self.cached[1], v], dim=1)
            self.seen, self.cached = x, (k, v)
            S = k.shape[1]

        # Fold the heads into the batch: row b*h + i is head i of sample b.
""",
        ),
    ),
    "context-accumulated-in-place": (
        (
            "        heads = torch.bmm(dropped, v)  # [B*h, T, f]\n",
            """\
        heads = torch.zeros_like(q, dtype=self.v_proj.weight.dtype)  # [B*h, T, f]
        heads.baddbmm_(dropped, v)
""",
        ),
    ),
    "no-empty-rows-in-a-graph": (
        (
            "            bias = bias.masked_fill(empty, 0.0)\n",
            """\
            if torch.compiler.is_compiling() or not _any(empty):
                empty = None
            else:
                bias = bias.masked_fill(empty, 0.0)
""",
        ),
        (
            "class RowsAttention(nn.Module):\n",
            '''\
def _any(flags: Tensor) -> bool:
    """Is any flag True? Where there are no numbers to look at, suppose so."""
    try:
        return bool(flags.any())
    except RuntimeError:
        return True


class RowsAttention(nn.Module):
''',
        ),
    ),
    "heads-start-alike": (
        (
            """\
        for proj in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(proj.weight)
""",
            """\
        nn.init.xavier_uniform_(self.out_proj.weight)
        for proj in (self.q_proj, self.k_proj, self.v_proj):
            head = nn.init.xavier_uniform_(torch.empty_like(proj.weight[: self.head_dim]))
            with torch.no_grad():
                proj.weight.copy_(head.repeat(len(proj.weight) // self.head_dim, 1))
        for proj in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
""",
        ),
    ),
    "values-not-initialised": (
        (
            """\
            nn.init.xavier_uniform_(proj.weight)
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)
""",
            """\
            nn.init.zeros_(proj.weight)
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)
        for proj in (self.q_proj, self.k_proj, self.out_proj):
            nn.init.xavier_uniform_(proj.weight)
""",
        ),
    ),
}
