"""Mistakes in `loop.py`: of each fault, what somebody wrote there instead."""

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "wrong-merge-order": (("torch.cat(outputs, dim=-1)", "torch.stack(outputs, dim=1).reshape(x.shape)"),),
    "surplus-projection-bias": (
        (
            "self.to_query = nn.ModuleList([nn.Linear(width, self.d_head, bias=bias) for",
            "self.to_query = nn.ModuleList([nn.Linear(width, self.d_head) for",
        ),
        (
            "self.to_key = nn.ModuleList([nn.Linear(width, self.d_head, bias=bias) for",
            "self.to_key = nn.ModuleList([nn.Linear(width, self.d_head) for",
        ),
        (
            "self.to_value = nn.ModuleList([nn.Linear(width, self.d_head, bias=bias) for",
            "self.to_value = nn.ModuleList([nn.Linear(width, self.d_head) for",
        ),
    ),
    "causal-without-itself": ((".triu(S - T + 1)", ".triu(S - T)"),),
    "square-causal-mask": (
        (
            "torch.ones(T, S, dtype=torch.bool, device=x.device).triu(S - T + 1)",
            "torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)",
        ),
    ),
    "no-mask-means-causal": (("if causal:", "if causal or mask is None:"),),
    "tiled-kv-heads": (("shared = i // self.group", "shared = i % len(self.to_key)"),),
    "only-the-returned-weights-averaged": (("torch.stack(weights, dim=1)", "torch.stack(weights).mean(dim=0)"),),
    "mask-after-softmax": (
        (
            """\
            if mask is not None:
                own = of_head(mask, i)
                scores = scores.masked_fill(~own, HIDDEN) if own.dtype == torch.bool else scores + own
            if causal:
                scores = scores.masked_fill(future, HIDDEN)
            empty = (scores == -math.inf).all(dim=-1, keepdim=True)  # nothing to see: the softmax would be 0 / 0
            weight = scores.masked_fill(empty, 0.0).softmax(dim=-1)
            weight = weight.masked_fill(empty, 0.0)
""",
            """\
            hidden = torch.zeros_like(future)
            if mask is not None:
                own = of_head(mask, i)
                if own.dtype == torch.bool:
                    hidden = ~own
                else:
                    hidden = own == -math.inf
                    scores = scores + own.masked_fill(hidden, 0.0)
            if causal:
                hidden = hidden | future
            weight = scores.softmax(dim=-1).masked_fill(hidden, 0.0)
""",
        ),
    ),
    "fill-overflow-in-half": (("HIDDEN = -math.inf", "HIDDEN = -1e9"),),
    "mask-dropped-in-cross-attention": (("if mask is not None:", "if mask is not None and memory is None:"),),
    "context-ignored": (("source = x if memory is None else memory", "source = x"),),
    "missing-out-projection": (("return self.mix(torch.cat(outputs, dim=-1)),", "return torch.cat(outputs, dim=-1),"),),
    "scale-by-d-model": (("math.sqrt(self.d_head)", "math.sqrt(x.shape[-1])"),),
    "missing-scale": (("project(x) / math.sqrt(self.d_head)", "project(x)"),),
    "hard-coded-scale": (("project(x) / math.sqrt(self.d_head)", "project(x) / 8"),),
    "softmax-over-queries": ((".softmax(dim=-1)", ".softmax(dim=1)"),),
    "softmax-over-the-batch": ((".softmax(dim=-1)", ".softmax(dim=0)"),),
    "single-precision-softmax": ((".softmax(dim=-1)", ".float().softmax(dim=-1).to(scores.dtype)"),),
    "values-from-the-key-rows": (
        ("values = [project(source) for project in self.to_value]", "values = [project(source) for project in self.to_key]"),
    ),
}
