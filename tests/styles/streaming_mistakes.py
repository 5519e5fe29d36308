"""Mistakes in `streaming.py`: those of an online softmax."""

from __future__ import annotations

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "hidden-first-key-nan": (
        (
            """\
            shift = largest.masked_fill(largest == -math.inf, 0.0)  # -inf - -inf would be NaN
            rescale = torch.exp(before - shift)
            weight = torch.exp(score - shift)
""",
            """\
            rescale = torch.exp(before - largest)
            weight = torch.exp(score - largest)
""",
        ),
        (
            """\
        total = total.masked_fill(total == 0.0, 1.0)  # a query that has seen no key has a mix of 0
        output = self.wo((mix / total).transpose(1, 2).reshape(B, T, dim))
        weights = torch.exp(torch.cat(seen, dim=-1) - shift) / total
""",
            """\
        nothing = largest == -math.inf  # a query that has seen no key
        output = self.wo((mix / total).masked_fill(nothing, 0.0).transpose(1, 2).reshape(B, T, dim))
        weights = (torch.exp(torch.cat(seen, dim=-1) - largest) / total).masked_fill(nothing, 0.0)
""",
        ),
    ),
    "scale-again-for-every-key": (
        ("        q = q / math.sqrt(self.width)\n", ""),
        ("        for s in range(S):\n", "        for s in range(S):\n            q = q / math.sqrt(self.width)\n"),
    ),
    "powers-of-two": (
        ("rescale = torch.exp(before - shift)", "rescale = torch.exp2(before - shift)"),
        ("weight = torch.exp(score - shift)", "weight = torch.exp2(score - shift)"),
        ("weights = torch.exp(torch.cat(", "weights = torch.exp2(torch.cat("),
    ),
}
