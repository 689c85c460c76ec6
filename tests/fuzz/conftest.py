"""How much is drawn: little, and always the same, in CI; `--fuzz N` draws about N examples in each test, others each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings


@pytest.fixture
def drawing(request: pytest.FixtureRequest) -> Callable[[int, int], Any]:
    """Return (examples in CI, among how many tests N is shared) -> hypothesis' settings."""
    wanted = request.config.getoption("--fuzz")

    def make(usual: int, share: int = 1) -> Any:
        return settings(
            max_examples=max(1, wanted // share) if wanted else usual,
            deadline=None,
            database=None,
            derandomize=not wanted,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )

    return make
