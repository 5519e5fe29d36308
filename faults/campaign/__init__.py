"""How many cases it takes to kill each fault, over many seeds."""

from faults.campaign.plan import run
from faults.campaign.summary import Summary

__all__ = ["Summary", "run"]
