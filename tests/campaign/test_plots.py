"""The plots show what the report says, and are the same every time."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from running import needed

from faults.campaign.plan import about as about_faults
from faults.campaign.race import SEEDS
from properties.campaign.plan import about as about_properties
from properties.campaign.store import Store
from properties.campaign.unit import Unit

needed("matplotlib")
SVG = "{http://www.w3.org/2000/svg}"


def test_survival_shows_every_fault_and_the_published_figures(tmp_path: Path) -> None:
    file = _races(tmp_path / "faults.db")
    written = _plots("faults", file, tmp_path / "plots")
    assert [path.name for path in written] == ["survival.svg", "first-kills.svg"]
    survival, first = written
    words = _words(survival)
    assert {"all 2 faults", "each fault", "95 % band", "cases of each property", "share alive"} <= set(words)
    assert any("as published" in word for word in words)
    assert {"wrong-split-order", "causal-flag-sticks", "median"} <= set(_words(first))
    assert _words(first).index("causal-flag-sticks") < _words(first).index("wrong-split-order")  # what takes longest is on top


def test_coverage_names_what_never_came_up(tmp_path: Path) -> None:
    file = tmp_path / "properties.db"
    with Store(file, about_properties()) as store:
        store.take_subjects({"mine in float64": {}})
        drawn = {"T = S": 15, "mask='none'": 20, "window=2": 5}
        store.add(Unit("mine in float64", "rows_sum_to_one", 0), {"cases": 20, "failures": 0, "shown": [], "drawn": drawn}, 0.5)
    coverage, cost = _plots("properties", file, tmp_path / "plots")
    assert {"T = S", "mask='none'", "window=2", "B = g", "an empty row"} <= set(_words(coverage))
    assert "rows_sum_to_one" in _words(cost)


def test_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    file = _races(tmp_path / "faults.db")
    once, again = (_plots("faults", file, tmp_path / name) for name in ("once", "again"))
    for one, other in zip(once, again, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    file = tmp_path / "empty.db"
    with Store(file, about_faults(350, False)):
        pass
    command = [sys.executable, "-m", "faults", "campaign", "report", str(file), "--plots", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "there is no seed yet that all faults were tried on" in done.stderr
    assert "Traceback" not in done.stderr


def _races(file: Path) -> Path:
    """Two faults: one falls at once, the other later."""
    rounds = {"wrong-split-order": [1] * SEEDS, "causal-flag-sticks": [*range(1, SEEDS), None]}
    with Store(file, about_faults(350, False)) as store:
        for name, numbers in rounds.items():
            seeds = [[number, ["rows_sum_to_one"] if number else []] for number in numbers]
            store.add(Unit(name, "", 0), json.loads(json.dumps({"cases": 10, "seeds": seeds})), 1.0)
    return file


def _plots(package: str, file: Path, directory: Path) -> list[Path]:
    command = [sys.executable, "-W", "ignore", "-m", package, "campaign", "report", str(file), "--plots", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [Path(line.removesuffix(" written")) for line in done.stderr.splitlines() if line.endswith(" written")]


def _words(file: Path) -> list[str]:
    """The texts of an SVG, in order."""
    return ["".join(text.itertext()).strip() for text in ElementTree.parse(file).iter(f"{SVG}text")]
