"""How many examples are drawn.

CI draws few, and always the same. `--fuzz N` draws N new examples in each test.

N is shared among the cases of a test.  Where these are few, each is drawn by many tests, so that
all processes of `-n` have something to do.  The number at the end counts the examples that were run
to their end.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from random import SystemRandom
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings

import cudnnlite as dnn
from cudnnlite.devices.device_choice import get_device
from cudnnlite.emulated.device import EmulatedDevice


def shards(config: pytest.Config) -> int:
    """Return how many tests a long run makes of one case, so that all processes end together."""
    return (
        4 * int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) if config.getoption("--fuzz") else 1
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test that takes `shard` one for each process."""
    if "shard" in metafunc.fixturenames:
        metafunc.parametrize("shard", range(shards(metafunc.config)))


class Drawing:
    """Lets a Hypothesis test draw its number of examples, and counts them.

    The test itself counts `refused`.  If a case has fewer different examples, the next case in its
    process draws the rest.
    """

    missing = 0

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._examples = request.config.getoption("--fuzz")
        self._shards = shards(request.config) if "shard" in request.fixturenames else 1
        self.run = self.refused = self.most = 0

    def __call__(self, usual: int, share: int = 1) -> Callable[[Any], Any]:
        """Return a decorator for examples: so many in CI; of a long run's, one share of so many."""
        self.most = most = (
            -(-self._examples // (share * self._shards)) + Drawing.missing
            if self._examples
            else usual
        )

        def decorate(test: Any) -> Any:
            inner = test.hypothesis.inner_test

            def counted(*arguments: Any, **keywords: Any) -> None:
                inner(*arguments, **keywords)
                self.run += 1  # but not where hypothesis gave up drawing

            test.hypothesis.inner_test = counted
            test = settings(
                max_examples=most,
                database=None,
                derandomize=not self._examples,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            )(test)
            return seed(SystemRandom().getrandbits(64))(test) if self._examples else test

        return decorate


@pytest.fixture
def drawing(request: pytest.FixtureRequest) -> Any:
    """See `Drawing`; what it counted goes with the test's report."""
    new_drawing = Drawing(request)
    yield new_drawing
    Drawing.missing = max(0, new_drawing.most - new_drawing.run)
    request.node.user_properties.append(
        ("examples", (request.node.originalname, new_drawing.run, new_drawing.refused))
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many examples were run."""
    counts: dict[str, Counter[str]] = {}
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        for name, value in (
            getattr(report, "user_properties", ())
            if getattr(report, "when", "") == "teardown"
            else ()
        ):
            if name == "examples":
                counts.setdefault(value[0], Counter()).update(
                    run=value[1], refused=value[2], cases=1
                )
    for test, totals in counts.items():
        terminalreporter.write_line(
            f"{test}: {totals['run']} examples in {totals['cases']} cases, {totals['refused']} "
            "not supported by the device"
        )


@pytest.fixture
def fuzz_handle(request: pytest.FixtureRequest) -> Any:
    """A handle on a device of its own, or on a GPU where `--fuzz-device` says so."""
    kind = request.config.getoption("--fuzz-device")
    with dnn.Handle(
        EmulatedDevice(5, capacity="256 MiB") if kind == "emulated" else get_device(kind)
    ) as new_handle:
        yield new_handle
