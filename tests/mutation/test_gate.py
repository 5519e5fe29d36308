"""The gate lets nothing through that is not listed, and keeps nothing listed that is not needed."""

from __future__ import annotations

import pytest
from gate import Equivalent, Mutant, decorated, judge, read_diff

MUTANT = Mutant("attn.multihead.MultiHeadAttention.mask", "return a + b", "return a - b")
LISTED = [Equivalent(MUTANT, "b is 0", "tests/test_attention.py::test_b_is_zero")]
DIFF = """\
--- attn/multihead.py
+++ attn/multihead.py
@@ -1,3 +1,3 @@
 def mask(self, a, b):
     # above
-    return a + b
+    return a - b
"""


def test_a_survivor_must_be_listed() -> None:
    assert judge({MUTANT: "survived"}, LISTED) == []
    (said,) = judge({MUTANT: "survived"}, [])
    assert said == "survived: attn.multihead.MultiHeadAttention.mask\n    - return a + b\n    + return a - b"


@pytest.mark.parametrize("verdict", ["timeout", "no tests", "suspicious", "segfault", "not checked"])
def test_only_surviving_is_excused(verdict: str) -> None:
    (said,) = judge({MUTANT: verdict}, LISTED)
    assert said.startswith(f"{verdict}: ")


def test_an_entry_must_be_needed() -> None:
    (said,) = judge({}, LISTED)
    assert said.startswith("listed as equivalent, but no such mutant survives: ")


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("attn.multihead.xǁMultiHeadAttentionǁmask__mutmut_26", "attn.multihead.MultiHeadAttention.mask"),
        ("attn.multihead.xǁMultiHeadAttentionǁ__init____mutmut_2", "attn.multihead.MultiHeadAttention.__init__"),
        ("attn.checks.x__check_mask__mutmut_3", "attn.checks._check_mask"),
    ],
)
def test_a_mutant_is_known_by_its_function_and_lines(name: str, function: str) -> None:
    assert read_diff(name, DIFF) == Mutant(function, "return a + b", "return a - b")


def test_decorated_functions_are_found() -> None:
    assert list(decorated("def a(): ...\nclass B:\n    @property\n    def c(self): ...")) == ["c"]
    assert list(decorated("@dataclass\nclass A:\n    b: int\n@dataclass\nclass C:\n    def d(self): ...")) == ["C"]
