"""What a tuner refuses on a closed handle or cache and in another thread, and what it ignores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from device.test_tuner import W, X, hurry
from helpers.refusals import refuses

import cudnnlite as dnn
from cudnnlite import convolution_forward, rnn_forward
from cudnnlite.workbench.tuning.cache import TuningCache

from .tuner import Bench


@pytest.fixture
def bench(handle: dnn.Handle) -> Iterator[Bench]:
    """A bench whose arrays no test may change."""
    bench = Bench(handle)
    yield bench
    bench.assert_untouched()
    vars(bench).clear()  # pytest keeps the bench for longer than the handle's fixture allows


@pytest.mark.parametrize(
    "way", [dnn.Tuner, lambda handle: dnn.autotuned(handle).__enter__()], ids=["Tuner", "autotuned"]
)
def test_a_handle_that_was_closed(device: Any, way: Any) -> None:
    handle = dnn.Handle(device)
    handle.close()
    refuses(dnn.errors.ClosedError, "this Handle was closed", lambda: way(handle))


@pytest.mark.parametrize("remembered", [False, True])
def test_a_handle_that_was_closed_later(
    device: Any, monkeypatch: pytest.MonkeyPatch, remembered: bool
) -> None:
    hurry(monkeypatch)
    problem = convolution_forward.problem(dnn.TensorSpec(X), dnn.FilterSpec(W))
    with dnn.Handle(device) as handle:
        tuner = dnn.Tuner(handle, ":memory:")
        if remembered:
            tuner.tune(problem)
    for call in (lambda: tuner.tune(problem), lambda: tuner.choose(problem)):
        refuses(dnn.errors.ClosedError, "this Handle was closed", call)


def test_another_thread(bench: Bench) -> None:
    outcomes: list[Any] = []

    def work() -> None:
        calls = (
            lambda: dnn.Tuner(bench.handle),
            lambda: bench.tuner.tune(bench.problem),
            lambda: bench.tuner.choose(bench.problem),
            lambda: bench.tune(),
            lambda: bench.tune_rnn(),
        )
        for call in calls:
            try:
                outcomes.append(call())
            except dnn.errors.ThreadError as error:
                outcomes.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(outcomes) == 5
    assert all(isinstance(message, str) and "is used on" in message for message in outcomes)


def test_a_cache_that_was_closed(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU's times would be looked up."""
    hurry(monkeypatch)
    cache = TuningCache(":memory:")
    cache.close()
    monkeypatch.setattr(type(device), "kind", "cuda")
    with dnn.Handle(device) as handle:
        tuner = dnn.Tuner(handle, cache)
        problem = convolution_forward.problem(dnn.TensorSpec(X), dnn.FilterSpec(W))
        for call in (
            lambda: tuner.tune(problem),
            lambda: tuner.choose(problem),
            lambda: tuner.is_remembered(problem),
        ):
            refuses(dnn.errors.ClosedError, "the tuning cache :memory: is closed", call)


@pytest.mark.parametrize(("length", "value"), [(5, 1.0), (3, np.nan)])
def test_what_lies_beyond_a_sequences_end_is_not_looked_at(
    bench: Bench, length: int, value: float
) -> None:
    network = bench.network
    host = network.x_host.copy()
    host[length:] = value
    x = bench.handle.array(host)
    problem = rnn_forward.problem(network.spec, None, dnn.specs.RNNDataSpec(x.shape, (length,) * 4))
    assert dnn.Tuner(bench.handle, ":memory:").tune(problem, bench.rnn_operands | {"x": x})[0].ok
