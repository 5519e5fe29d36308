"""The README shows what is so."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from faults.catalog import catalog, find
from faults.explain import explain
from properties import PROPERTIES, check

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


class MyAttention(nn.Module):
    """Self-attention as the README's reader may have written it."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        B, T, d = x.shape
        q, k, v = (t.reshape(B, T, self.num_heads, d // self.num_heads).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT * (d // self.num_heads) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        weights = scores.softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, d)), weights


def example() -> dict[str, Any]:
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, Any] = {"MyAttention": MyAttention}
    exec(block, names)
    return names


@pytest.mark.parametrize(
    "law", [law for law in PROPERTIES if not law.not_applicable(example()["MINE"])], ids=lambda law: law.name
)
def test_the_example_holds_for_a_correct_attention(law: Any) -> None:
    check(law, example()["MINE"])


def test_the_explanation_is_what_the_command_prints() -> None:
    printed = explain(find("wrong-merge-order")).splitlines()
    (shown,) = re.findall(r"-- explain wrong-merge-order\n\n(.*?)\n\n## ", README, flags=re.DOTALL)
    lines = [line.removeprefix("    ") for line in shown.splitlines()]
    assert [line for line in lines if line not in printed] == ["..."]


def test_it_counts_right() -> None:
    assert f"{len(catalog())} broken ones" in README
    assert f"{len(PROPERTIES)} properties" in README


def test_ci_runs_the_second_of_its_two_commands() -> None:
    commands = re.findall(r"^    (python3 -m venv .*)$", README, flags=re.MULTILINE)
    assert [command.rpartition(" -m ")[2] for command in commands] == ["tox run -e catalog", "tox"]
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "grep -m 1 ' -m tox$' README.md" in script.read_text(encoding="utf-8")
