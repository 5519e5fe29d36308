"""Mistakes in `sinks_in_the_denominator.py`."""

from __future__ import annotations

SINKS = "        sinks = self.sinks.view(-1, 1, 1)\n"
SOFTMAX = """\
        top = torch.maximum(scores.amax(dim=-1, keepdim=True), sinks)
        terms = torch.exp(scores - top)
        total = terms.sum(dim=-1, keepdim=True) + torch.exp(sinks - top)
        weights = terms / total
"""
# Without a sink below the line, a query without keys needs some care.
USUAL_SOFTMAX = """\
        empty = (scores == float("-inf")).all(dim=-1, keepdim=True)
        weights = scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
"""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "sink-in-every-score": ((SOFTMAX, "        scores = scores + sinks\n" + USUAL_SOFTMAX),),
    "sink-on-the-first-key": (
        (SOFTMAX, "        scores = torch.cat([scores[..., :1] + sinks, scores[..., 1:]], dim=-1)\n" + USUAL_SOFTMAX),
    ),
    "sink-of-the-group": ((SINKS, "        sinks = self.sinks[::group].repeat_interleave(group).view(-1, 1, 1)\n"),),
    "sink-along-the-queries": ((SINKS, "        sinks = self.sinks.view(-1, 1).expand(*scores.shape[:-1], 1)\n"),),
    "sink-beside-the-maximum": (
        (
            "top = torch.maximum(scores.amax(dim=-1, keepdim=True), sinks)",
            "top = scores.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)",
        ),
        ("torch.exp(sinks - top)", "torch.exp(sinks)"),
    ),
    "sink-in-base-two": (
        ("from __future__ import annotations\n", "from __future__ import annotations\n\nimport math\n"),
        (
            "        top = torch.maximum(",
            "        scores = scores * math.log2(math.e)  # for exp2\n        top = torch.maximum(",
        ),
        ("torch.exp(scores - top)", "torch.exp2(scores - top)"),
        ("torch.exp(sinks - top)", "torch.exp2(sinks - top)"),
    ),
    "sink-counted-twice": (
        (
            "        total = terms.sum(dim=-1, keepdim=True) + torch.exp(sinks - top)\n",
            """\
        halves = terms.tensor_split(2, dim=-1)  # for two workers
        total = sum(torch.exp(sinks - top) + half.sum(dim=-1, keepdim=True) for half in halves)
""",
        ),
    ),
    "sinks-not-trained": ((SINKS, "        sinks = self.sinks.detach().view(-1, 1, 1)\n"),),
    "sink-share-taken-for-a-constant": (
        (
            SOFTMAX,
            """\
        log_sum = torch.logsumexp(scores.detach(), dim=-1, keepdim=True)
"""
            + USUAL_SOFTMAX
            + """\
        weights = weights * torch.sigmoid(log_sum - sinks)  # what the sink leaves over
""",
        ),
    ),
}
