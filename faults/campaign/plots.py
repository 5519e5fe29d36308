"""Plots of a campaign of faults, as SVG: how long they survive, and which take longest."""

from __future__ import annotations

from pathlib import Path

from faults.campaign.summary import PUBLISHED, Summary
from faults.campaign.survival import of_fault
from properties.campaign.plots import figure, save
from properties.campaign.unit import CampaignError

LONGEST = 40  # faults in the second plot
_OURS, _OTHERS, _EACH = "#4269d0", "#c2410c", "#9ca3af"


def plot(summary: Summary, directory: Path) -> list[Path]:
    """Draw all plots into the directory."""
    if summary.curve is None:
        raise CampaignError(f"{summary.file}: there is no seed yet that all faults were tried on")
    return [_survival(summary, directory / "survival.svg"), _longest(summary, directory / "first-kills.svg")]


def _survival(summary: Summary, file: Path) -> Path:
    """The share that is alive after 1, 2, ... cases: of each fault, and of all together with its band."""
    drawn, axes = figure(8, 5)
    cases = range(1, summary.within + 1)
    curve = summary.curve
    if curve is None:
        raise CampaignError(f"{summary.file}: there is no curve yet")
    for number, rounds in enumerate(summary.rounds.values()):
        share = of_fault(list(rounds.values()), summary.within).share[1:]
        axes.step(cases, share, where="post", color=_EACH, linewidth=0.5, alpha=0.5, label="each fault" if number == 0 else None)
    axes.fill_between(cases, curve.low[1:], curve.high[1:], step="post", color=_OURS, alpha=0.25, label="95 % band", linewidth=0)
    axes.step(cases, curve.share[1:], where="post", color=_OURS, linewidth=2, label=f"all {len(summary.rounds)} faults")
    axes.plot(
        list(PUBLISHED),
        [1 - killed for killed in PUBLISHED.values()],
        "s",
        color=_OTHERS,
        label="mutants of 40 Python projects under their property tests, as published",
    )
    axes.set(
        xscale="log", xlabel="cases of each property", ylabel="share alive", ylim=(-0.01, 1), xlim=(0.95, 1.1 * summary.within)
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)
    return save(drawn, file)


def _longest(summary: Summary, file: Path) -> Path:
    """Median, 95th percentile and most, of those that take longest."""
    names = summary.longest(LONGEST)
    drawn, axes = figure(8, 0.9 + 0.19 * len(names))
    above = summary.within + 1
    for key, marker, label in (("median", "o", "median"), ("95%", "D", "95 % of the seeds"), ("most", "|", "all seeds")):
        axes.plot([summary.of_fault(name)[key] or above for name in names], names, marker, color=_OURS, label=label)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.grid(axis="x", color=_EACH, linewidth=0.5, alpha=0.5)
    axes.set(xscale="log", xlabel="cases of each property to the first kill")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)
    return save(drawn, file)
