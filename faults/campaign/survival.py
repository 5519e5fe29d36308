"""How long faults survive: the share that is not killed after so many cases of each property."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from properties.campaign.bounds import CONFIDENCE, at_most

RESAMPLED = 2000

Rounds = Sequence[int | None]  # of each seed, the number of cases of the first kill; None: more than were tried


@dataclass(frozen=True)
class Curve:
    """`share[n]` survives n cases, for n = 0, 1, ..., within; the whole true curve lies within the band with 95 % confidence."""

    share: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def killed(self, cases: int) -> tuple[float, float, float]:
        """The share that is killed by so many, and its band."""
        return 1 - self.share[cases], 1 - self.high[cases], 1 - self.low[cases]


def of_fault(rounds: Rounds, within: int) -> Curve:
    """The curve of one fault, from independent seeds.

    The band is the one of Dvoretzky, Kiefer and Wolfowitz with Massart's constant (Annals of Probability 18, 1990), which holds
    for any distribution and any number of seeds.
    """
    share = _survivors([rounds], within)[:, 0].mean(1)
    return _curve(share, math.sqrt(math.log(2 / (1 - CONFIDENCE)) / (2 * len(rounds))))


def of_all(rounds: Sequence[Rounds], within: int) -> Curve:
    """The curve of a fault drawn at random from these, all on the same seeds.

    On one seed all faults meet the same cases, so it is seeds that are resampled (Efron's bootstrap), with all that happened on
    them: the band is as wide as 95 % of the resampled curves stay around the measured one. It is not narrower than what has never
    happened on so many seeds may still happen. Of one fault alone it is the band above.
    """
    if len(rounds) == 1:
        return of_fault(rounds[0], within)
    by_seed = _survivors(rounds, within).mean(1)  # [within + 1, seeds]
    seeds = by_seed.shape[1]
    share = by_seed.mean(1)
    random = torch.Generator().manual_seed(0)
    drawn = torch.randint(seeds, (RESAMPLED, seeds), generator=random)
    times = torch.zeros(RESAMPLED, seeds).scatter_add_(1, drawn, torch.ones(RESAMPLED, seeds))
    off = (by_seed.float() @ times.T / seeds - share.float()[:, None]).abs().amax(0)
    return _curve(share, max(float(off.quantile(CONFIDENCE)), at_most(0, seeds)))


def percentile(rounds: Rounds, share: float) -> int | None:
    """The number of cases that suffice on this share of the seeds; None: more than were tried."""
    ordered = sorted(math.inf if number is None else number for number in rounds)
    found = ordered[math.ceil(share * len(ordered)) - 1]
    return None if found == math.inf else int(found)


def complete(rounds: Mapping[str, Mapping[int, int | None]]) -> dict[str, list[int | None]]:
    """The same, of those seeds alone that all faults were tried on."""
    shared = set.intersection(*(set(of) for of in rounds.values())) if rounds else set()
    return {name: [of[seed] for seed in sorted(shared)] for name, of in rounds.items()}


def _survivors(rounds: Sequence[Rounds], within: int) -> Tensor:
    """1 where a fault is alive after n cases on a seed, `[within + 1, faults, seeds]`."""
    killed = torch.tensor([[within + 1 if number is None else number for number in of] for of in rounds])
    return torch.stack([(killed > number).double() for number in range(within + 1)])


def _curve(share: Tensor, off: float) -> Curve:
    off = max(off, 0.0)
    return Curve(
        tuple(share.tolist()),
        tuple(max(0.0, value - off) for value in share.tolist()),
        tuple(min(1.0, value + off) for value in share.tolist()),
    )
