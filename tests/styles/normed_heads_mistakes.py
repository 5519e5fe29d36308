"""Mistakes in `normed_heads.py`: those of QK norm."""

from __future__ import annotations

NORM = "        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)\n"
WEIGHT = "        return wide.to(x.dtype) * self.weight\n"
CALLS = "        xq, xk = self.q_norm(xq), self.k_norm(xk)\n"

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "norms-never-called": ((CALLS, ""),),
    "norm-without-its-weight": ((WEIGHT, "        return wide.to(x.dtype)\n"),),
    "one-norm-for-both": ((CALLS, "        xq, xk = self.q_norm(xq), self.q_norm(xk)\n"),),
    "norm-over-the-projection": ((NORM, NORM.replace("dim=-1", "dim=(-2, -1)")),),
    "key-norm-of-the-querys-token": (
        (
            CALLS,
            """\
        size_q, size_k = self.q_norm.size(xq).permute(2, 0, 1, 3), self.k_norm.size(xk).permute(2, 0, 1, 3)
        size_k = size_k.repeat_interleave(self.n_heads // self.n_kv_heads, dim=0)
        xq, xk = xq * self.q_norm.weight, xk * self.k_norm.weight
""",
        ),
        (
            "xk.transpose(-2, -1))  # [h, B, T, S]\n",
            """\
xk.transpose(-2, -1))  # [h, B, T, S]
        scores = scores / (size_q * size_k)  # what takes less than to divide queries and keys
""",
        ),
        (
            "    def forward(self, x):\n",
            """\
    def size(self, x):
        return torch.sqrt(x.square().mean(dim=-1, keepdim=True) + self.eps)

    def forward(self, x):
""",
        ),
    ),
    "layer-norm-for-root-mean-square": ((NORM, "        wide = wide - wide.mean(dim=-1, keepdim=True)\n" + NORM),),
    "length-for-root-mean-square": ((NORM, NORM.replace("mean(", "sum(")),),
    "epsilon-outside-the-root": ((NORM, "        wide = wide / (wide.square().mean(dim=-1, keepdim=True).sqrt() + self.eps)\n"),),
    "epsilon-under-the-sum": (
        (
            NORM,
            """\
        squares = wide.square().sum(dim=-1, keepdim=True) + self.eps
        wide = wide * torch.rsqrt(squares / x.shape[-1])
""",
        ),
    ),
    "weight-added-to-one": ((WEIGHT, "        return wide.to(x.dtype) * (1 + self.weight)\n"),),
    "scaled-before-the-norm": (
        (CALLS, "        xq, xk = self.q_norm(xq * self.head_dim**-0.5), self.k_norm(xk)\n"),
        ("torch.matmul(xq * self.head_dim**-0.5, xk", "torch.matmul(xq, xk"),
    ),
}
