"""How many cases it takes to kill each fault, over many seeds."""

from faults.campaign.plan import run

__all__ = ["run"]
