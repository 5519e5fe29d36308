"""Mistakes in `capped_einsum.py`: those of a soft cap."""

from __future__ import annotations

CAP = "        logits = self.cap * torch.tanh(logits / self.cap)\n"
MASK = """\
        if mask is not None and mask.dtype != torch.bool:
            logits = logits + mask.masked_fill(mask == float("-inf"), 0.0)
        # Hidden keys get the smallest number, and nothing of what it leaves them: so rows without a key are zero.
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1).masked_fill(~visible, 0.0)
"""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "cap-after-the-mask": (
        (CAP, ""),
        (
            MASK,
            """\
        if mask is not None and mask.dtype != torch.bool:
            logits = logits + mask.masked_fill(mask == float("-inf"), 0.0)
        logits = logits.masked_fill(~visible, float("-inf"))
        logits = self.cap * torch.tanh(logits / self.cap)
        weights = logits.softmax(dim=-1).masked_fill(~visible.any(dim=-1, keepdim=True), 0.0)
""",
        ),
    ),
    "cap-never-applied": ((CAP, ""),),
    "cap-lost-in-evaluation": (
        (
            CAP,
            """\
        if self.training:  # the fast path has no cap
            logits = self.cap * torch.tanh(logits / self.cap)
""",
        ),
    ),
    "cap-times-the-score": ((CAP, "        logits = logits * torch.tanh(logits / self.cap)\n"),),
    "cap-only-behind-the-tanh": ((CAP, "        logits = self.cap * torch.tanh(logits)\n"),),
    "cap-before-the-scale": (
        (
            '        logits = torch.einsum("btgrf,bsgf->bgrts", q, k) * self.head_dim**-0.5\n' + CAP,
            '        logits = torch.einsum("btgrf,bsgf->bgrts", q, k)\n'
            "        logits = self.cap * torch.tanh(logits / self.cap) * self.head_dim**-0.5\n",
        ),
    ),
    "cap-in-base-two": (
        ("from __future__ import annotations\n", "from __future__ import annotations\n\nimport math\n"),
        ("q, k) * self.head_dim**-0.5", "q, k) * (self.head_dim**-0.5 * math.log2(math.e))  # for exp2"),
        ('mask.masked_fill(mask == float("-inf"), 0.0)', 'mask.masked_fill(mask == float("-inf"), 0.0) * math.log2(math.e)'),
        (
            "        weights = logits.softmax(dim=-1).masked_fill(~visible, 0.0)\n",
            """\
        powers = torch.exp2(logits - logits.detach().amax(dim=-1, keepdim=True))
        weights = (powers / powers.sum(dim=-1, keepdim=True)).masked_fill(~visible, 0.0)
""",
        ),
    ),
    "cap-twice": ((CAP, "        for _ in range(2):\n            logits = self.cap * torch.tanh(logits / self.cap)\n"),),
}
