"""What long campaigns once flagged, though it is correct, each on the case on which it was."""

from __future__ import annotations

import pytest

from properties import Case
from properties.campaign import asked
from properties.conformance import find
from properties.runner import judge
from properties.time_limit import Patience

# In bfloat16, another position may change the weights by less than any digit of the output shows.
ROTARY = Case(
    queries=2,
    d_head=4,
    mask="full",
    encoding="bias",
    bias=True,
    layout="strided",
    dtype="bfloat16",
    placing="rotary",
    rotary_width=2,
    stretch=4.0,
    positions="given",
    seed=1961683776,
)
ALARMS = [("attn.RotaryAttention in bfloat16", "every_position_counts", ROTARY)]


@pytest.mark.parametrize(("name", "law", "case"), ALARMS)
def test_it_is_not_flagged_any_more(name: str, law: str, case: Case) -> None:
    subject = asked("faults.subject:SUBJECTS")[name].subject()
    assert judge(find(law), subject, case, Patience()) is None
