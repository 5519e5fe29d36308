"""`python -m faults new`: what it writes can be imported, is formatted, and is the clean step until somebody spoils it."""

from __future__ import annotations

import importlib.util
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import faults
from attn import MultiHeadAttention
from faults import __main__ as command
from faults.fault import FaultError
from faults.lessons.imports import merged
from faults.lessons.scaffold import next_steps, scaffold
from faults.subject import DECLARED

ROOT = Path(faults.__file__).parents[1]
FAMILIES = ("a_new_family", "heads", "cache", "mask_application", "tools", "lesson", "rotary", "window", "decoder", "state")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the catalog to write to."""
    shutil.copytree(ROOT / "faults", tmp_path / "faults", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "faults"


def every_step() -> list[tuple[str, str]]:
    """Each step of each class of attn, where it is written."""
    return [
        (attention.__name__, name)
        for attention in DECLARED
        for name, member in vars(attention).items()
        if inspect.isfunction(member) and issubclass(attention, MultiHeadAttention)
    ]


# Run in a process whose `faults` is the copy: every scaffold is there, is no entry yet, and computes what the clean class does.
CHECK = """
from faults.catalog import catalog
from faults.elsewhere import near
from faults.fault import FaultError, check_entry, step_of, subject_of
from faults.subject import clean_class, subject
from properties.case import sample
from properties.inputs import make_inputs
from random import Random
new = [fault for name, fault in catalog().items() if name.startswith("begun-from-")]
for fault in new:
    for function, error in ((lambda: check_entry(fault), FaultError), (lambda: fault.visible(None), NotImplementedError)):
        try:
            function()
        except error as raised:
            assert "TODO" in str(raised) or "visible is not written" in str(raised)
        else:
            raise SystemExit(f"{fault.__name__} passes for an entry")
    case = sample(Random(step_of(fault)), subject_of(fault).supports.fields())
    inputs = make_inputs(case)
    got, right = (s.layer(inputs).run(inputs, False).output for s in (subject_of(fault), subject(clean_class(fault))))
    assert near(got, right, 1e-12), fault
print(len(new))
"""


def test_every_step_can_be_begun_with(package: Path) -> None:
    steps, written = every_step(), set()
    for number, (of, step) in enumerate(steps):
        name = f"begun-from-{LETTERS[number // 26]}{LETTERS[number % 26]}"
        path = scaffold(name, step, family=FAMILIES[number % len(FAMILIES)], of=of, package=package)
        written.add(str(path))
    assert written == {str(package / f"{family}.py") for family in FAMILIES}
    for beside in ("attn", "properties"):  # to be imported, and for ruff to know as ours
        shutil.copytree(ROOT / beside, package.parent / beside, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    run = subprocess.run([sys.executable, "-c", CHECK], cwd=package.parent, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == len(steps) > 40
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("there is no ruff to ask whether it is formatted")
    shutil.copy(ROOT / "pyproject.toml", package.parent)
    for arguments in (["format", "--check"], ["check"]):
        run = subprocess.run([sys.executable, "-m", "ruff", *arguments, *written], capture_output=True, text=True)
        assert run.returncode == 0, run.stdout


def test_what_is_written(package: Path) -> None:
    path = scaffold("first-head-forgotten", "score", family="fresh heads", of="AlibiAttention", package=package)
    assert path == package / "fresh_heads.py"
    written = path.read_text()
    assert written.startswith('"""TODO')
    assert "class FirstHeadForgotten(Fault, AlibiAttention):\n" in written
    assert "\nfrom attn import AlibiAttention\n" in written and "\nfrom attn.relative import distances\n" in written
    # A bare super() would call the step that is copied, and take the distances off twice.
    assert "scores = super(AlibiAttention, self).score(q, k)" in written
    assert all(f"    {heading}:\n        TODO" in written for heading in ("Why it is wrong", "When it shows", "Seen in the wild"))
    assert "score: normalization, implementation, precision handling" in written
    assert "def visible(case: Case) -> bool:\n        raise NotImplementedError(" in written
    assert "python -m faults bless first-head-forgotten" in next_steps("first-head-forgotten", path)


def test_a_second_one_goes_below_the_first(package: Path) -> None:
    before = (package / "heads.py").read_text()
    scaffold("first-of-two", "merge_heads", family="heads", package=package)
    scaffold("second-of-two", "softmax", family="heads", package=package)
    written = (package / "heads.py").read_text()
    assert written.startswith(before.rstrip()) and written.index("class FirstOfTwo") < written.index("class SecondOfTwo")


def test_the_family_is_where_the_step_is_at_home(package: Path) -> None:
    assert scaffold("begun-anew", "split_heads", package=package).stem == "lesson"
    assert scaffold("begun-again", "frequencies", of="RotaryAttention", package=package).stem == "rotary"
    assert scaffold("begun-a-third-time", "forward", of="PackedAttention", package=package).stem == "packed"


def test_a_new_family_is_said_to_be_one(package: Path) -> None:
    path = scaffold("lost-in-a-new-file", "score", family="nosuch", package=package)
    said = next_steps("lost-in-a-new-file", path)
    assert "/nosuch.py is a new family" in said and "there are alibi, cache, causal" in said and "nosuch, " not in said
    path = scaffold("found-in-an-old-file", "score", family="scale", package=package)
    assert "new family" not in next_steps("found-in-an-old-file", path)


@pytest.mark.parametrize(
    ("name", "step", "options", "message"),
    [
        ("WrongName", "score", {}, "no name for a fault: small letters"),
        ("wrong_name", "score", {}, "no name for a fault: small letters"),
        ("scale-by-2", "score", {}, "would be listed as 'scale-by2'"),
        ("none", "score", {}, "Python has a word None"),
        ("wrong-merge-order", "merge_heads", {}, "WrongMergeOrder exists already, in faults/lesson.py"),
        ("dropped-key-bias", "project_in", {}, "DroppedKeyBias exists already, in faults/equivalents.py"),
        ("tensor", "score", {}, "something else that is called Tensor"),
        ("a-new-one", "rotate", {}, "no step 'rotate' .RotaryAttention has it: --of RotaryAttention.; it has __init__, forward"),
        ("a-new-one", "train", {}, "no step 'train'; it has __init__"),
        ("a-new-one", "d_model", {}, "no step 'd_model'; it has __init__"),
        (
            "a-new-one",
            "score",
            {"of": "TorchAttention"},
            "attn has no class 'TorchAttention' to spoil; it has MultiHeadAttention",
        ),
        ("a-new-one", "score", {"family": "matrix"}, "faults/matrix.py is machinery, no family; there are alibi, cache"),
        ("a-new-one", "score", {"family": "fault"}, "faults/fault.py is machinery"),
        ("a-new-one", "score", {"family": "__main__"}, "no name for a family"),
        ("a-new-one", "score", {"family": "lessons"}, "faults/lessons/ is machinery"),
        ("a-new-one", "score", {"family": "equivalents"}, "has what is no fault"),
        ("a-new-one", "score", {"family": "import"}, "no name for a family"),
        ("a-new-one", "__init__", {"of": "WindowAttention"}, "say where this one goes, like --family"),
        ("a-new-one", "forward", {}, "at home in no family, its faults are in dropout, heads, .*say where this one goes"),
        ("a-new-one", "__init__", {}, "at home in no family, .*say where this one goes"),
    ],
)
def test_what_is_refused(name: str, step: str, options: dict[str, str], message: str, package: Path) -> None:
    before = {path: path.read_text() for path in package.rglob("*.py")}
    with pytest.raises(FaultError, match=message):
        scaffold(name, step, package=package, **options)
    assert {path: path.read_text() for path in package.rglob("*.py")} == before


def test_a_family_that_means_something_else_by_a_name(package: Path) -> None:
    (package / "odd.py").write_text(
        '"""Odd."""\n\nfrom faults.fault import Fault\n\nF = 1\n\n\nclass Odd(Fault):\n    """Odd."""\n'
    )
    with pytest.raises(FaultError, match="odd.py means something else by F than the clean step does"):
        scaffold("a-new-one", "drop", family="odd", package=package)


def test_the_command_says_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["new", "wrong-merge-order", "--step", "merge_heads"]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "statements", "result"),
    [
        ('"""A."""\n', ["import math"], '"""A."""\n\nimport math\n'),
        ('"""A."""\n\nimport math\n\nx = 1\n', ["import math"], '"""A."""\n\nimport math\n\nx = 1\n'),
        (
            '"""A."""\n\nfrom torch import nn\n\nx = 1\n',
            [
                "import math",
                "from torch import Tensor",
                "import torch",
                "from attn.masks import restrict",
                "from attn import checks",
            ],
            '"""A."""\n\nimport math\n\nimport torch\nfrom torch import Tensor, nn\n\nfrom attn import checks\n'
            "from attn.masks import restrict\n\nx = 1\n",
        ),
        (
            '"""A."""\n\nfrom attn import (\n    checks,\n)\n',
            ["from attn import FAR, Cache"],
            '"""A."""\n\nfrom attn import (\n    FAR,\n    Cache,\n    checks,\n)\n',
        ),
    ],
)
def test_imports_are_put_in_their_order(source: str, statements: list[str], result: str) -> None:
    assert merged(source, statements) == result


def test_a_comment_among_the_imports_is_not_lost() -> None:
    with pytest.raises(FaultError, match="there are comments among the imports"):
        merged('"""A."""\n\nimport math  # for pi\n', ["import torch"])
