"""Long runs: many subjects, all laws, as many cases as there is time for, on as many processes or machines as there are."""

from properties.campaign.asked import Asked, asked
from properties.campaign.engine import Progress
from properties.campaign.plan import run
from properties.campaign.summary import Summary
from properties.campaign.unit import CampaignError
from properties.campaign.workers import Workers, dask, processes

__all__ = ["Asked", "CampaignError", "Progress", "Summary", "Workers", "asked", "dask", "processes", "run"]
