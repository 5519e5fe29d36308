"""Mistakes of rotary positions with tables of cosines and sines."""

OWN_POSITIONS = """        if position_ids is None:
            position_ids = torch.arange(n, device=x.device)
"""
INV_FREQ = """    def inv_freq(self, device: torch.device) -> Tensor:
        return self.base ** (-torch.arange(0, self.dim, 2, dtype=torch.float64, device=device) / self.dim)

"""
SIZES = "        self.dim, self.interleaved, self.base, self.scaling = dim, interleaved, base, scaling\n"
FREQS = "freqs = t[..., None] * self.inv_freq(positions.device)"

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "angles-for-the-other-pairing": (
        (
            "freqs.repeat_interleave(2, dim=-1) if self.interleaved else torch.cat((freqs, freqs), dim=-1)",
            "torch.cat((freqs, freqs), dim=-1) if self.interleaved else freqs.repeat_interleave(2, dim=-1)",
        ),
    ),
    "positions-given-are-ignored": ((OWN_POSITIONS, "        position_ids = torch.arange(n, device=x.device)\n"),),
    "one-row-of-positions": (
        ("position_ids = position_ids.expand(b, n)", "position_ids = position_ids.expand(b, n)[:1].expand(b, n)"),
    ),
    "table-kept-by-length": (
        (SIZES, SIZES + "        self.tables: dict[torch.Size, Tensor] = {}\n"),
        (
            "        t = positions.to(torch.float64) / self.scaling\n        " + FREQS + "\n",
            """        if positions.shape not in self.tables:  # made once for so many samples of this length
            t = positions.to(torch.float64) / self.scaling
            self.tables[positions.shape] = t[..., None] * self.inv_freq(positions.device)
        freqs = self.tables[positions.shape]
""",
        ),
    ),
    "position-divided-by-the-frequency": ((FREQS, FREQS.replace("*", "/")),),
    # Built on the meta device, and brought to life by `to_empty`: what no checkpoint holds stays as it comes.
    "frequencies-left-at-zero": (
        (SIZES, SIZES + '        self.register_buffer("inv_freq", torch.zeros(dim // 2), persistent=False)\n'),
        (INV_FREQ, ""),
        (FREQS, "freqs = t[..., None] * self.inv_freq.to(torch.float64)"),
    ),
    "frequencies-in-half": (
        (
            SIZES,
            SIZES
            + """        inv_freq = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        self.register_buffer("inv_freq", inv_freq.half(), persistent=False)
""",
        ),
        (INV_FREQ, ""),
        (FREQS, "freqs = t[..., None] * self.inv_freq.to(torch.float64)"),
    ),
}
