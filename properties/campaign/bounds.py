"""How often something may still happen that was seen so many times, or never."""

from __future__ import annotations

import math

CONFIDENCE = 0.95


def at_most(seen: int, cases: int, confidence: float = CONFIDENCE) -> float:
    """The upper bound of the rate of an event seen so often among so many independent cases; for none it is about 3 / cases.

    Exact for the Poisson distribution: at a higher rate, so few would be seen with a probability below 1 - confidence. Source:
    Garwood, Biometrika 28 (1936); for none, the rule of three, Hanley and Lippman-Hand, JAMA 249 (1983).
    """
    if cases < 1 or not 0 <= seen <= cases:
        raise ValueError(f"seen must lie between 0 and cases, and cases be at least 1; got {seen} of {cases}")
    low, high = float(seen), seen + 10.0 * math.sqrt(seen + 1.0)
    for _ in range(100):
        mean = (low + high) / 2
        low, high = (low, mean) if _at_most(seen, mean) < 1 - confidence else (mean, high)
    return min(1.0, high / cases)


def _at_most(seen: int, mean: float) -> float:
    """The probability of no more events than that, if so many are to be expected."""
    return math.fsum(math.exp(number * math.log(mean) - mean - math.lgamma(number + 1)) for number in range(seen + 1))
