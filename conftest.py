"""Settings of every pytest run: one thread, and how hard Hypothesis tries."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

# A mutation run forks, and a child waits for ever for torch's worker threads, which a fork does not copy. Small ones need none.
torch.set_num_threads(1)

# Runs must say the same thing twice: `default` draws the same cases every time, `thorough` draws new ones, and more.
settings.register_profile("default", deadline=None, derandomize=True, database=None, max_examples=100, print_blob=False)
settings.register_profile("thorough", deadline=None, database=None, max_examples=2000)
# A mutant that is killed needs neither shrinking nor an explanation: they take ten times as long as the kill.
settings.register_profile(
    "mutation",
    settings.get_profile("default"),
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)

MUTATING = "MUTANT_UNDER_TEST" in os.environ  # mutmut sets it in all of its runs, to an empty string in some
settings.load_profile("mutation" if MUTATING else os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ask a mutant the quick questions first: a plain test takes a millisecond, a property fifty."""
    if MUTATING:
        items.sort(key=lambda item: item.path.name == "test_properties_hold.py")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Do once, in the process that mutmut forks, what every mutant would have to do again."""
    if MUTATING and session.config.option.collectonly:
        given(st.integers())(lambda n: None)()  # the first draw reads the constants of every module, 0.3 s
        torch.ones(1, 1, device="meta").tril()  # the first tensor without content imports 800 modules, 0.8 s
        gc.collect()
        gc.freeze()  # a collection looks at everything torch has made, 0.5 s; not at what is frozen


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Give every test the same random numbers, whatever ran before it; `torch.manual_seed` does it too, 500 times slower."""
    torch.random.default_generator.manual_seed(0)
