"""Mistakes of a decoder's attention, head by head."""

COUNT = """            offset = 0 if past is None else past.seen
            positions = torch.arange(offset, offset + tokens, device=x.device)
"""
ADD = "            ks, vs = past.add(ks, vs)\n"
TURN_Q = "        qs = [self.turn(q, rotations) for q in qs]\n"
CROP = "                mask = mask[..., -total:]  # it is over all tokens, also those that the cache has let go\n"

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "positions-from-zero-in-every-call": ((COUNT, "            positions = torch.arange(tokens, device=x.device)\n"),),
    "positions-end-at-the-window": (
        (
            COUNT,
            COUNT.replace("0 if past is None else past.seen", "past.keys[0].shape[1] if past is not None and past.keys else 0"),
        ),
    ),
    "chunk-at-one-position": (
        (
            COUNT,
            """            if past is None or past.seen == 0:
                positions = torch.arange(tokens, device=x.device)
            else:
                positions = torch.tensor([past.seen], device=x.device)
""",
        ),
    ),
    "layer-counts-the-tokens": (
        ("        self.dropout = dropout\n", "        self.dropout = dropout\n        self.offset = 0\n"),
        (
            COUNT,
            """            if past is None or past.seen == 0:
                self.offset = 0  # a new sequence
            positions = torch.arange(self.offset, self.offset + tokens, device=x.device)
            self.offset += tokens
""",
        ),
    ),
    "given-positions-only-at-first": (
        ("        if positions is None:\n", "        if positions is None or (past is not None and past.seen > 0):\n"),
    ),
    "offset-read-after-the-update": (
        (TURN_Q, ""),
        (
            "        if positions is None:\n            offset",
            "        counted = positions is None\n        if positions is None:\n            offset",
        ),
        (
            "        total = ks[0].shape[1]\n",
            """        if past is not None and counted:
            rotations = self.rotations(torch.arange(past.seen, past.seen + tokens, device=x.device), qs[0].dtype)
        qs = [self.turn(q, rotations) for q in qs]

        total = ks[0].shape[1]
""",
        ),
    ),
    "keys-turned-again": (
        (
            "        total = ks[0].shape[1]\n",
            """        total = ks[0].shape[1]
        if past is not None:
            rotations = self.rotations(torch.arange(total, device=x.device), x.dtype)
            ks = [self.turn(k, rotations) for k in ks]
""",
        ),
    ),
    "cut-to-the-window-before-all-have-seen": (
        (
            ADD,
            ADD
            + """            if self.window is not None:
                ks, vs = [k[:, -self.window :] for k in ks], [v[:, -self.window :] for v in vs]
""",
        ),
    ),
    "cache-one-token-too-short": (("past.keep_last(self.window - 1)", "past.keep_last(self.window - 2)"),),
    "cache-taken-for-the-window": (
        (
            "        if self.window is not None:\n            visible",
            "        if self.window is not None and keys == queries:\n            visible",
        ),
    ),
    "whole-mask-for-the-window": (("            if mask.shape[-1] > 1:\n" + CROP, ""),),
    "mask-cut-at-the-wrong-end": ((CROP, "                mask = mask[..., :total]\n"),),
}
