"""No test depends on how fast a machine is, or on what else is installed there."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings


def test_hypothesis_has_no_time_limit() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_pytest_benchmark_does_not_end_the_run(request: pytest.FixtureRequest) -> None:
    """Up to 5.1 it warns at the start beside pytest-xdist, and a warning is an error."""
    assert request.config.pluginmanager.is_blocked("benchmark")
