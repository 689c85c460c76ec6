"""What a recurrent network refuses after good calls, and what a refused or failed call leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from device.test_rnn_plan import STANDARD, N, Network, refuse
from helpers.refusals import refuses

import cudnnlite as dnn

from .case import ARRAY
from .rnn import Bench, H


@pytest.fixture
def bench(handle: dnn.Handle) -> Any:
    """A bench whose outputs no test may change."""
    bench = Bench(handle)
    yield bench
    bench.assert_untouched()
    bench.assert_works()
    vars(bench).clear()  # pytest keeps the bench for longer than the handle's fixture allows


def test_only_an_lstm_has_a_cell_state(handle: dnn.Handle) -> None:
    network = Network(handle, "gru")
    cx = handle.empty((1, N, H))
    with network.plan() as plan:
        for call in (
            lambda: network.run(cx=cx),
            lambda: network.call(plan, cx=cx),
            lambda: network.find(cx=cx),
        ):
            refuses(dnn.ArgumentError, "cx is given to a GRU; only an LSTM", call)
    out = network.run(training=True)
    assert out.cy is None
    dcy = handle.empty((1, N, H))
    refuses(
        dnn.ArgumentError,
        "dcy is given to a GRU",
        lambda: dnn.rnn_backward_data(handle, out.reserve, out.y, None, dcy),
    )
    assert dnn.rnn_backward_data(handle, out.reserve, out.y).dcx is None
    outs = network.outputs()
    refuses(
        dnn.ArgumentError,
        r"out=.*y, hy$",
        lambda: network.run(out=(*outs, handle.empty((1, N, H)))),
    )
    network.assert_right(network.run(out=(*outs, None)))  # what an earlier call returned, as it is


def test_operands_closed_after_a_good_call(bench: Bench) -> None:
    """The plan knows them already; that does not help."""
    network = Network(bench.handle)
    with network.plan() as plan:
        for name in ("x", "hx", "cx", "weights"):
            network.call(plan)
            getattr(network, name).close()
            refuses(dnn.errors.ClosedError, "closed", lambda: network.call(plan))
            refuses(dnn.errors.ClosedError, "closed", network.run)
            fresh = Network(bench.handle)
            setattr(network, name, getattr(fresh, name))


def test_closed_handle(bench: Bench, device: Any) -> None:
    other = dnn.Handle(device)
    network = Network(other)
    trained = network.run(training=True)
    out = network.run()
    other.close()
    other.close()
    calls: list[Callable[[], Any]] = [
        network.run,
        network.find,
        network.plan,
        lambda: dnn.rnn_backward_data(other, trained.reserve, trained.y),
        lambda: dnn.rnn_backward_weights(other, trained.reserve),
        lambda: dnn.RNNWeights(other, network.spec),
        lambda: dnn.DropoutState(other, 1),
        lambda: network.weights.view(other),
    ]
    for call in calls:
        refuses(dnn.errors.ClosedError, "Handle was closed", call)
    network.assert_right(out)  # arrays outlive the handle that made them


def test_another_thread(bench: Bench) -> None:
    network = bench.network
    plan = network.plan()
    calls: list[Callable[[], Any]] = [
        bench.call,
        bench.train,
        bench.back,
        bench.weigh,
        bench.plan,
        lambda: network.call(plan, out=bench.out),
        lambda: dnn.RNNWeights(bench.handle, bench.spec),
        lambda: dnn.DropoutState(bench.handle, 1),
        lambda: network.weights.view(bench.handle),
    ]
    caught: list[BaseException] = []

    def run() -> None:
        for call in calls:
            try:
                call()
            except BaseException as error:
                caught.append(error.with_traceback(None))

    with plan:
        thread = threading.Thread(target=run, name="someone else")
        thread.start()
        thread.join()
    assert [type(error) for error in caught] == [dnn.errors.ThreadError] * len(calls)
    assert all("someone else" in str(error) for error in caught)


def test_a_refused_call_leaves_the_earlier_ones_reserve(bench: Bench) -> None:
    """Nothing was written, so the backward passes of the call before are still possible."""
    network = bench.network
    fresh = network.run(training=True, algorithm="standard")
    refusals: list[tuple[Any, str, dict[str, Any]]] = [
        (dnn.ArgumentError, "hy overlaps hx", {"out": bench.outs(1, network.hx)}),
        (dnn.ArgumentError, r"out\['y'\]", {"out": bench.outs(0, bench.empty(1, 1, 1))}),
        (dnn.ArgumentError, "lengths", {"lengths": [1]}),
        (ARRAY, r"\bx\b", {"x": network.x_host}),
        (
            dnn.ArgumentError,
            "workspace",
            {"workspace": bench.empty(1, dtype="uint8"), "workspace_limit": "1 GiB"},
        ),
        (dnn.WorkspaceLimitError, "limit", {"workspace_limit": 0}),
    ]
    for error, match, options in refusals:
        refuses(error, match, lambda options=options: bench.train(reserve=fresh.reserve, **options))
        assert fresh.reserve.call.y is fresh.y, match
    dnn.rnn_backward_data(bench.handle, fresh.reserve, fresh.y)
    dnn.rnn_backward_weights(bench.handle, fresh.reserve)


def test_a_failed_call_takes_the_reserve(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reserve space that a failed call may have written serves no backward pass.

    It can serve another call.
    """
    with dnn.Handle(bench.handle.device) as other:
        network = Network(other)
        trained = network.run(training=True, algorithm="standard")
        with monkeypatch.context() as patch:
            refuse(patch, other, "cudnnRNNForward", dnn.enums.Status.EXECUTION_FAILED, STANDARD)
            refuses(
                dnn.errors.ExecutionError,
                "cudnnRNNForward",
                lambda: network.run(
                    training=True, algorithm="standard", padding_fill=1, reserve=trained.reserve
                ),
            )
        for call in (
            lambda: dnn.rnn_backward_data(other, trained.reserve, trained.y),
            lambda: dnn.rnn_backward_weights(other, trained.reserve),
        ):
            refuses(dnn.errors.ClosedError, "RNNReserve holds no forward call: that failed", call)
        again = network.run(training=True, algorithm="standard", reserve=trained.reserve)
        assert again.reserve is trained.reserve
        dnn.rnn_backward_data(other, again.reserve, again.y)
