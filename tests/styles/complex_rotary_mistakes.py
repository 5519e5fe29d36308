"""Mistakes of rotary positions as complex numbers."""

PAIRS = """    if interleaved:
        pairs = torch.view_as_complex(x_rot.unflatten(-1, (-1, 2)).contiguous())
    else:
        pairs = torch.complex(*x_rot.chunk(2, dim=-1))
"""
PAIRS_BACK = """    if interleaved:
        out = torch.view_as_real(turned).flatten(-2)
    else:
        out = torch.cat([turned.real, turned.imag], dim=-1)
"""
FREQS_CIS = "freqs_cis = precompute_freqs_cis(positions, self.rotary_dim, self.base, self.stretch)\n"
TURN_Q = "        xq = apply_rotary_emb(xq, freqs_cis, self.rotary_dim, self.interleaved)\n"
TURN_K = "        xk = apply_rotary_emb(xk, freqs_cis, self.rotary_dim, self.interleaved)\n"

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "interleaving-ignored": (
        (PAIRS, "    pairs = torch.complex(*x_rot.chunk(2, dim=-1))\n"),
        (PAIRS_BACK, "    out = torch.cat([turned.real, turned.imag], dim=-1)\n"),
    ),
    "neighbours-for-halves": (
        (PAIRS, "    pairs = torch.view_as_complex(x_rot.unflatten(-1, (-1, 2)).contiguous())\n"),
        (PAIRS_BACK, "    out = torch.view_as_real(turned).flatten(-2)\n"),
    ),
    "turned-the-other-way": (
        ("return torch.polar(torch.ones_like(angles), angles)", "return torch.complex(angles.cos(), -angles.sin())"),
    ),
    # Transposed too early: what apply_rotary_emb takes for the tokens, axis 1, are the heads.
    "turned-by-the-head": (
        (
            "self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)",
            "self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)",
        ),
        (
            "self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)\n        xv",
            "self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim).transpose(1, 2)\n        xv",
        ),
        (
            "        if positions is None:\n            positions = torch.arange(seqlen, device=x.device)\n",
            "        positions = torch.arange(self.n_heads, device=x.device)\n",
        ),
        (
            TURN_Q,
            "        xq = apply_rotary_emb(xq, freqs_cis[: xq.shape[1]], self.rotary_dim, self.interleaved).transpose(1, 2)\n",
        ),
        (
            TURN_K,
            "        xk = apply_rotary_emb(xk, freqs_cis[: xk.shape[1]], self.rotary_dim, self.interleaved).transpose(1, 2)\n",
        ),
    ),
    "queries-not-turned": ((TURN_Q, ""),),
    "keys-turned-backwards": ((TURN_K, TURN_K.replace("freqs_cis", "freqs_cis.conj()")),),
    "values-turned-too": (
        (TURN_K, TURN_K + "        xv = apply_rotary_emb(xv, freqs_cis, self.rotary_dim, self.interleaved)\n"),
    ),
    "partial-width-dropped": (("self.rotary_dim = rotary_dim or self.head_dim", "self.rotary_dim = self.head_dim"),),
    "frequencies-of-the-whole-head": ((FREQS_CIS, FREQS_CIS.replace("rotary_dim", "head_dim")),),
    "frequencies-for-the-width-of-a-head": (
        ("positions: Tensor, dim: int, base: float, stretch", "positions: Tensor, dim: int, head_dim: int, base: float, stretch"),
        (".double() / dim)", ".double() / head_dim)"),
        (FREQS_CIS, FREQS_CIS.replace("self.rotary_dim,", "self.rotary_dim, self.head_dim,")),
    ),
    "exponent-without-the-two": (
        ("torch.arange(0, dim, 2, device=positions.device)", "torch.arange(dim // 2, device=positions.device)"),
    ),
    "positions-in-half": (("(positions.double() / stretch)", "(positions.bfloat16().double() / stretch)"),),
    "stretch-forgotten": (("(positions.double() / stretch)", "positions.double()"),),
    "base-stretched-for-positions": (
        ("freqs = 1.0 / base **", "freqs = 1.0 / (base * stretch) **"),
        ("(positions.double() / stretch)", "positions.double()"),
    ),
    "keys-not-stretched": (
        (
            TURN_K,
            "        freqs_cis = precompute_freqs_cis(positions, self.rotary_dim, self.base, stretch=1.0)\n" + TURN_K,
        ),
    ),
}
