"""Campaigns: what takes tools that nothing else here takes; `tox run -e campaign` has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session")
def needed() -> Callable[[str], None]:
    """Call it with the name of a package: without that the test is skipped, and in CI it fails."""

    def needed(package: str) -> None:
        if find_spec(package) is None:
            advice = f"{package} is not installed: run `tox run -e campaign`, or pip install {package}"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(advice)

    return needed
