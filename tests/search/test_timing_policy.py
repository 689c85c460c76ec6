"""TimingPolicy: which values of its fields are allowed together."""

import pytest

from cudnnlite.search.timing_policy import DEFAULT_TIMING, ONE_LOOK, parse_timing


@pytest.mark.parametrize("timing", [DEFAULT_TIMING, ONE_LOOK], ids=["default", "one look"])
def test_what_handles_begin_with_is_allowed(timing):
    assert parse_timing(timing) is timing
