"""Plots of a campaign of properties, as SVG: what came up, and where the time went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from properties.campaign.summary import Summary
from properties.campaign.unit import CampaignError

SLOWEST = 30  # laws in the plot of the time


def figure(width: float, height: float) -> tuple[Any, Any]:
    """An empty figure of matplotlib and its axes, in inches; CampaignError if it is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise CampaignError("plots need the package matplotlib: pip install matplotlib") from None
    # Text as text, which can be searched, and names that are the same every time: the file changes only if the numbers do.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "campaign"}):
        made = Figure(figsize=(width, height), layout="constrained")
        axes = made.subplots()
        axes.spines[["top", "right"]].set_visible(False)
    return made, axes


def save(drawn: Any, file: Path) -> Path:
    """Write the figure and return the file."""
    from matplotlib import rc_context

    file.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "campaign"}):
        drawn.savefig(file, metadata={"Date": None})
    return file


def plot(summary: Summary, directory: Path) -> list[Path]:
    """Draw all plots into the directory."""
    if not summary.whole.cases:
        raise CampaignError(f"{summary.file}: there is nothing to draw yet")
    shares = {name: number / summary.whole.cases for name, number in summary.came_up()}
    shares |= dict.fromkeys(summary.never_drawn, 0.0)
    laws = sorted(summary.laws.items(), key=lambda item: -item[1].seconds)[:SLOWEST]
    return [
        _bars(shares, "share of all cases in which it came up", directory / "coverage.svg"),
        _bars({name: 1000 * t.seconds / t.cases for name, t in laws}, "milliseconds a case", directory / "cost.svg", log=True),
    ]


def _bars(values: dict[str, float], what: str, file: Path, *, log: bool = False) -> Path:
    drawn, axes = figure(8, 0.9 + 0.19 * len(values))
    axes.barh(list(values), list(values.values()), color="#4269d0", log=log)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.set_xlabel(what)
    return save(drawn, file)
