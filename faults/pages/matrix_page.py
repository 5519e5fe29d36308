"""The kill matrix as one HTML file that needs nothing besides itself: its style, its script and its data stand in it."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

_SOURCES = files("faults.pages") / "matrix"
SCRIPTS = ("data.js", "grid.js", "filters.js", "lesson.js", "page.js")  # in this order they are one script


def matrix_page(told: dict[str, Any]) -> str:
    """The page about these facts (see `faults.pages.facts`). The same facts give the same bytes."""
    style = "\n" + _source("page.css")
    script = '\n(() => {\n"use strict";\n' + "\n".join(map(_source, SCRIPTS)) + "})();\n"
    # The browser is told to load nothing from anywhere, and to run no script and apply no style but these two.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "script": script, "facts": _json(told)}
    before, *rest = _source("page.html").split("{{")
    pieces = [before]
    for piece in rest:
        name, _, after = piece.partition("}}")
        pieces += [parts[name], after]
    return "".join(pieces)


def _source(name: str) -> str:
    return (_SOURCES / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(told: dict[str, Any]) -> str:
    """JSON that may stand in a script element: no "<" in it can end the element, or begin a comment."""
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
