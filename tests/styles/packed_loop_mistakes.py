"""Mistakes in `packed_loop.py`: those of packed documents."""

from __future__ import annotations

OWN = "        own = documents[:, :, None] == documents[:, None, :]  # [B, T, T]\n"

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "documents-ignored": (
        (
            OWN,
            """\
        if documents.shape != (samples, tokens):
            raise ValueError(f"documents must be [B, T], got {list(documents.shape)}")
""",
        ),
        ("        visible = own & earlier\n", "        visible = earlier\n"),
    ),
    "documents-compared-in-order": ((OWN, "        own = documents[:, :, None] >= documents[:, None, :]  # [B, T, T]\n"),),
    "documents-begin-one-token-late": (
        (
            OWN,
            """\
        begins = torch.ones_like(documents)
        begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
        number = begins.cumsum(dim=1) - begins  # how many have begun before a token
        own = number[:, :, None] == number[:, None, :]  # [B, T, T]
""",
        ),
    ),
    "documents-of-the-first-sample": ((OWN, "        own = documents[:1, :, None] == documents[:1, None, :]  # [1, T, T]\n"),),
    "document-zero-taken-for-padding": (
        (
            "        visible = own & earlier\n",
            """\
        real = documents != 0
        visible = own & earlier & real[:, None, :]
""",
        ),
    ),
    "documents-replace-the-mask": (
        (
            """\
        if mask is not None:
            mask = mask.expand(samples, self.num_heads, tokens, tokens)
""",
            "        mask = None  # that of the documents takes its place\n",
        ),
    ),
    "mask-replaces-the-documents": (
        ("        visible = own & earlier\n", "        visible = own & earlier if mask is None else earlier\n"),
    ),
    "causal-lost-in-documents": (
        (
            """\
        place = torch.arange(tokens, device=x.device)
        earlier = place[None, :] <= place[:, None]  # [T, T]
""",
            "",
        ),
        ("        visible = own & earlier\n", "        visible = own\n"),
    ),
}
