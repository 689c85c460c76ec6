"""`capture` on both devices: what it records, what it refuses, and what it keeps alive."""

from __future__ import annotations

import ctypes
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from samples import SAMPLES

import cudnnlite as dnn
from cudnnlite.devices.arrays import part_of

from .operation_samples import Case as Sample
from .problems import Problem, fill, memory_of, poisoned
from .rnn_problems import Case, overwrite
from .rnn_problems import Problem as Network

X, W = (3, 4, 9, 11), (5, 4, 3, 3)

each_stream = pytest.mark.parametrize(
    "own_stream", [False, True], ids=["default stream", "own stream"]
)


def put_on_stream(handle: dnn.Handle, own_stream: bool) -> None:
    if own_stream:
        handle.synchronize()
        handle.stream = handle.device.create_stream()


Capture = Callable[[], AbstractContextManager[dnn.types.CapturedGraph]]


@pytest.fixture
def capture(handle: dnn.Handle) -> Iterator[Capture]:
    """`dnn.capture` of the handle; the graphs are closed after the test."""
    with ExitStack() as stack:

        @contextmanager
        def close_later() -> Iterator[dnn.types.CapturedGraph]:
            with dnn.capture(handle) as graph:
                yield stack.enter_context(graph)

        yield close_later


def capturing(handle: dnn.Handle) -> bool:
    return handle.device.is_capturing(handle.stream)  # type: ignore[no-any-return]


# ------------------------------------------------------------- what is recorded is what is launched


@each_stream
@pytest.mark.parametrize("interface", ["graph", "descriptor"])
def test_a_graph_computes_what_the_calls_do(
    handle: dnn.Handle, capture: Capture, own_stream: bool, interface: str
) -> None:
    put_on_stream(handle, own_stream)
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    plan = dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, interface=interface
    )
    y, positive = plan(problem.x, problem.w), poisoned(handle, problem.output_spec)
    dnn.activation_forward(handle, y, "relu", out=positive)
    for array in (y, positive):
        fill(array, 0xFF)
    with capture() as graph:
        assert capturing(handle)
        assert "recording" in repr(graph)
        plan(problem.x, problem.w, out=y)
        dnn.activation_forward(handle, y, "relu", out=positive)
    assert not capturing(handle)
    assert graph.calls == 2
    assert "2 calls" in repr(graph)
    assert "recording" not in repr(graph)
    assert np.isnan(y.numpy()).all(), "nothing runs in the block"
    assert np.isnan(positive.numpy()).all()
    graph.launch()
    problem.assert_right(y, plan.choice.algorithm)
    np.testing.assert_array_equal(positive.numpy(), np.maximum(y.numpy(), 0))
    twice = Problem(handle, X, W, padding=1, math_type="fma", seed=1)
    overwrite(problem.x, twice.x_host)
    overwrite(problem.w, twice.w_host)
    for _ in range(2):
        graph.launch()
    twice.assert_right(y, plan.choice.algorithm)
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    problem.assert_right(
        plan(problem.x, problem.w), plan.choice.algorithm
    )  # eager calls go on as before
    plan.close()


# by atomic additions: their last bits differ from call to call
SUMMED_IN_ANY_ORDER = {"spatial_transformer_grid_backward", "spatial_transformer_sample_backward"}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_operation_can_be_recorded(handle: dnn.Handle, capture: Capture, name: str) -> None:
    eager, recorded = Sample(handle, name), Sample(handle, name)
    eager.call()
    warm = Sample(handle, name)
    warm.call()
    before = [memory_of(array) for array in recorded.outs.values()]
    with capture() as graph:
        recorded.call()
    assert graph.calls == 1
    for array, old in zip(recorded.outs.values(), before, strict=True):
        np.testing.assert_array_equal(memory_of(array), old)
    graph.launch()
    for one, other in zip(eager.outs.values(), recorded.outs.values(), strict=True):
        if name in SUMMED_IN_ANY_ORDER:
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(memory_of(one), memory_of(other))


def network_of(handle: dnn.Handle, lengths: Any = (3, 5, 1), **options: Any) -> Network:
    return Network(
        handle,
        Case("lstm", num_layers=2, bidirectional=True, lengths=lengths, dtype="float32", **options),
    )


@each_stream
def test_a_network_with_lengths_that_change_later(
    handle: dnn.Handle, capture: Capture, own_stream: bool
) -> None:
    """The graph keeps the lengths that it was recorded with."""
    put_on_stream(handle, own_stream)
    network = network_of(handle)
    with dnn.rnn_forward.plan(
        handle, network.spec, None, network.x, lengths=network.lengths
    ) as plan:
        out = plan(network.weights, network.x, network.hx, network.cx, lengths=network.lengths)
        for array in out:
            fill(array, 0xFF)
        with capture() as graph:
            plan(
                network.weights, network.x, network.hx, network.cx, lengths=network.lengths, out=out
            )
        plan(network.weights, network.x, network.hx, network.cx, lengths=[5, 2, 4])
        graph.launch()
        network.assert_forward(out)


def test_a_training_step(handle: dnn.Handle, capture: Capture) -> None:
    network = network_of(handle)

    def step(out: Any, reserve: Any, gradients: Any, weights: Any) -> None:
        trained = dnn.rnn_forward(
            handle,
            network.spec,
            network.weights,
            network.x,
            network.hx,
            network.cx,
            lengths=network.lengths,
            training=True,
            out=out,
            reserve=reserve,
        )
        dnn.rnn_backward_data(
            handle, trained.reserve, network.dy, network.dhy, network.dcy, out=gradients
        )
        dnn.rnn_backward_weights(handle, trained.reserve, out=weights)

    trained = network.forward(training=True)
    gradients = dnn.rnn_backward_data(handle, trained.reserve, network.dy, network.dhy, network.dcy)
    weights = dnn.rnn_backward_weights(handle, trained.reserve)
    for array in (*trained[:3], *gradients, weights.array):
        fill(array, 0xFF)
    with capture() as graph:
        step(trained[:3], trained.reserve, gradients, weights)
    assert graph.calls == 3
    for _ in range(2):  # the second replaces what the first wrote, and adds nothing to it
        graph.launch()
    network.assert_forward(trained)
    network.assert_backward(gradients, weights)


def test_beta_counts_at_each_launch(handle: dnn.Handle, capture: Capture) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    y = problem.run()
    once = y.numpy()
    problem.run(out=y, beta=1.0)
    fill(y, 0)
    with capture() as graph:
        problem.run(out=y, beta=1.0)
    for _ in range(3):
        graph.launch()
    np.testing.assert_allclose(y.numpy(), 3 * once, rtol=1e-4, atol=1e-4)


def test_an_empty_graph(handle: dnn.Handle, capture: Capture) -> None:
    with capture() as graph:
        pass
    graph.launch()
    assert graph.calls == 0


def test_two_graphs_side_by_side(handle: dnn.Handle, capture: Capture) -> None:
    problems = [Problem(handle, X, W, padding=1, seed=seed, math_type="fma") for seed in (0, 1)]
    graphs, outs = [], []
    for problem in problems:
        y = problem.run()
        fill(y, 0xFF)
        with capture() as graph:
            problem.run(out=y)
        graphs.append(graph)
        outs.append(y)
    for graph in reversed(graphs):
        graph.launch()
    for problem, y in zip(problems, outs, strict=True):
        problem.assert_right(y, dnn.types.Engine(0))


# ---------------------------------------------------------------- what is refused


class Scene:
    """A convolution and a network on a handle, each called once, and a further stream."""

    def __init__(self, handle: dnn.Handle, capture: Capture) -> None:
        self.handle = handle
        self.problem = Problem(handle, X, W, padding=1, math_type="fma")
        self.y = self.problem.run()
        self.network = network_of(handle)
        self.network.forward()
        with capture() as self.graph:
            self.problem.run(out=self.y)
        before, handle.stream = handle.stream, handle.device.create_stream()
        self.elsewhere = handle.array(self.problem.x_host)
        handle.synchronize()
        handle.stream = before

    def convolve(self, x: Any = None, **options: Any) -> Any:
        x = self.problem.x if x is None else x
        return dnn.convolution_forward(self.handle, x, self.problem.w, self.problem.conv, **options)

    def recur(self, **options: Any) -> Any:
        n = self.network
        return dnn.rnn_forward(
            self.handle, n.spec, n.weights, n.x, n.hx, n.cx, lengths=n.lengths, **options
        )

    def outgrow(self) -> Any:
        needed = self.handle.workspace.size + 1
        return self.handle.workspace.reserve(needed, self.handle.stream)

    def nested(self) -> None:
        with dnn.capture(self.handle):
            pass

    def move(self) -> None:
        self.handle.stream = self.handle.device.create_stream()

    def tune(self) -> Any:
        p = self.problem
        return dnn.Tuner(self.handle, cache=":memory:").tune(
            dnn.convolution_forward.problem(p.x.spec, dnn.FilterSpec(p.w.shape), p.conv)
        )


REFUSED: dict[str, tuple[Callable[[Scene], Any], str]] = {
    "a new output": (
        lambda s: s.convolve(),
        r"cannot be allocated while a CUDA graph is recorded on .*pass out=",
    ),
    "a new output of a network": (lambda s: s.recur(), "pass out="),
    "a new reserve space": (lambda s: s.recur(training=True), "reserve="),
    "a larger workspace": (
        Scene.outgrow,
        r"make the call once before, or handle.workspace.reserve\(\d+, handle.stream\)",
    ),
    "a copy to the host": (
        lambda s: s.y.numpy(),
        "a copy to the host waits, and cannot .*: read results after a launch",
    ),
    "a copy from the host": (lambda s: s.handle.array([[1.0]]), "allocate them before the capture"),
    "waiting": (
        lambda s: s.handle.synchronize(),
        "nothing can be waited for .*: synchronize after a launch",
    ),
    "cudnnFind": (
        lambda s: dnn.convolution_forward.find(
            s.handle, s.problem.x, s.problem.w, s.problem.conv, out=s.y
        ),
        "a search waits, and cannot be made .*: search before the capture",
    ),
    "the search for networks": (
        lambda s: dnn.Tuner(s.handle, ":memory:").tune(
            dnn.rnn_forward.problem(s.network.spec, s.network.weights, s.network.x)
        ),
        "search before the capture",
    ),
    "tuning": (Scene.tune, "a search waits, and cannot be made .*: search before the capture"),
    "another capture": (Scene.nested, "no other can be .*: end that capture first"),
    "a launch": (
        lambda s: s.graph.launch(),
        "no graph can be launched .*: launch it after the capture",
    ),
    "another stream": (Scene.move, "stream cannot be changed while a CUDA graph is recorded"),
    "an operand of another stream": (
        lambda s: s.convolve(s.elsewhere, out=s.y),
        r"handle.view\(array\)",
    ),
    "a view of an array of another stream": (
        lambda s: s.handle.view(s.elsewhere),
        "before the capture",
    ),
}


@each_stream
@pytest.mark.parametrize("refusal", REFUSED)
def test_refused_by_name_and_nothing_is_left_broken(
    handle: dnn.Handle, capture: Capture, own_stream: bool, refusal: str
) -> None:
    put_on_stream(handle, own_stream)
    scene = Scene(handle, capture)
    action, words = REFUSED[refusal]
    with pytest.raises(dnn.errors.CaptureError, match=words), capture() as graph:
        action(scene)
    assert not capturing(handle)
    assert handle._graph is None
    with pytest.raises(dnn.errors.ClosedError, match="CapturedGraph"):
        graph.launch()
    # who catches the error in the block goes on recording
    fill(scene.y, 0xFF)
    with capture() as graph:
        with pytest.raises(dnn.errors.CaptureError):
            action(scene)
        scene.problem.run(out=scene.y)
    graph.launch()
    scene.problem.assert_right(scene.y, dnn.types.Engine(0))
    scene.convolve()


@each_stream
def test_no_other_handle_on_the_stream_is_used_meanwhile(
    handle: dnn.Handle, device: Any, capture: Capture, own_stream: bool
) -> None:
    """What it is asked for would run at once, beside a graph that its caller takes it to be in."""
    put_on_stream(handle, own_stream)
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    y = problem.run()
    with (
        dnn.Handle(device, stream=handle.stream) as second,
        dnn.convolution_forward.plan(second, problem.x, problem.w, problem.conv) as plan,
    ):
        y2 = plan(problem.x, problem.w)
        with capture() as graph:
            for refused in (
                lambda: plan(problem.x, problem.w, out=y2),
                lambda: dnn.convolution_forward(second, problem.x, problem.w, problem.conv, out=y2),
                lambda: second.array([1.0]),
                second.synchronize,
            ):
                with pytest.raises(
                    dnn.errors.CaptureError,
                    match=r"recorded on .* through another handle; call through that one",
                ):
                    refused()
            problem.run(out=y)
        assert graph.calls == 1
        second.stream = device.create_stream()
        with capture():
            x, w = second.array(problem.x_host), second.array(problem.w_host)
            problem.assert_right(
                dnn.convolution_forward(second, x, w, problem.conv), dnn.types.Engine(0)
            )  # at once


def test_raw_calls_of_another_handle_run_at_once(
    handle: dnn.Handle, device: Any, capture: Capture
) -> None:
    x = handle.array(np.ones((2, 3), np.float32))
    handle.synchronize()
    with dnn.Handle(device) as second, dnn.TensorDescriptor((2, 3)) as desc:
        with capture():
            second.api.cudnnSetTensor(
                second.ptr, desc.ptr, x.ptr, ctypes.byref(ctypes.c_float(5.0))
            )
        second.synchronize()
        assert (x.numpy() == 5).all()


def test_a_handle_that_records_is_used_by_one_thread_and_not_closed(device: Any) -> None:
    refusals: list[str] = []
    with dnn.Handle(device, check_same_thread=False) as handle:
        problem = Problem(handle, X, W, padding=1, math_type="fma")
        y = problem.run()

        def elsewhere() -> None:
            with pytest.raises(
                dnn.errors.CaptureError, match="through this handle on another thread"
            ):
                problem.run(out=y)
            refusals.append("refused")

        with dnn.capture(handle) as graph, graph:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            with pytest.raises(
                dnn.errors.CaptureError,
                match="cannot be closed while a CUDA graph is recorded through it",
            ):
                handle.close()
            problem.run(out=y)
        assert refusals == ["refused"]
        problem.check()


def test_the_error_can_be_caught_as_what_it_is(handle: dnn.Handle) -> None:
    assert issubclass(dnn.errors.CaptureError, (dnn.CudnnliteError,))
    assert issubclass(dnn.errors.CaptureError, RuntimeError)


def test_an_exception_in_the_block_ends_the_capture(handle: dnn.Handle, capture: Capture) -> None:
    problem = Problem(handle, X, W, padding=1)
    y = problem.run()
    with pytest.raises(ZeroDivisionError), capture() as graph:  # noqa: PT012
        problem.run(out=y)
        raise ZeroDivisionError
    assert graph.closed
    assert not capturing(handle)
    problem.check()
    with pytest.raises(dnn.ArgumentError), capture():
        dnn.convolution_forward(handle, problem.x, problem.x, problem.conv, out=y)
    problem.check()


def test_the_chooser_asks_nothing_of_the_device(handle: dnn.Handle, capture: Capture) -> None:
    """As ever, the heuristic chooses, with a warning; what was tuned before is used."""
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    y = problem.run()
    with (
        dnn.autotuned(handle, cache=":memory:") as tuner,
        capture() as graph,
        pytest.warns(
            dnn.errors.TuningWarning, match="cannot be tuned while a CUDA graph is recorded"
        ),
    ):
        problem.run(out=y)
    assert tuner.measured == 0
    fill(y, 0xFF)
    graph.launch()
    problem.assert_right(y, dnn.types.Engine(0))


# ---------------------------------------------------------------- lifetimes


def test_what_a_graph_needs_lives_as_long_as_it(handle: dnn.Handle, capture: Capture) -> None:
    put_on_stream(handle, True)
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    plan = dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv)
    y = plan(problem.x, problem.w)
    handle.workspace.reserve(1 << 16, handle.stream)
    with capture() as graph:
        plan(problem.x, problem.w, out=y)
    again = part_of(y, y.spec)
    y.close()
    fill(again, 0xFF)
    handle.workspace.reserve(1 << 18, handle.stream)  # the old buffer is the graph's now
    handle.workspace.release()
    for thing in (problem.x, problem.w, plan):
        thing.close()
    gc.collect()
    with pytest.raises(dnn.errors.ClosedError):
        plan(problem.x, problem.w)
    rubbish = [poisoned(handle, dnn.TensorSpec(X)) for _ in range(8)]
    graph.launch()
    problem.assert_right(again, dnn.types.Engine(0))
    del rubbish
    graph.close()  # and the fixture sees that nothing is left


def test_after_close(handle: dnn.Handle, capture: Capture) -> None:
    problem = Problem(handle, X, W, padding=1)
    y = problem.run()
    with capture() as graph:
        problem.run(out=y)
    with graph:
        graph.launch()
    assert graph.closed
    assert repr(graph).startswith("<closed")
    graph.close()
    with pytest.raises(dnn.errors.ClosedError, match=r"CapturedGraph .* was closed"):
        graph.launch()
    problem.check()


def test_a_graph_is_closed_with_its_handle(device: Any) -> None:
    with dnn.Handle(device) as handle:
        problem = Problem(handle, X, W, padding=1)
        y = problem.run()
        with dnn.capture(handle) as graph:
            problem.run(out=y)
    assert graph.closed
    with pytest.raises(dnn.errors.ClosedError):
        graph.launch()


def test_closed_in_the_block(handle: dnn.Handle, capture: Capture) -> None:
    problem = Problem(handle, X, W, padding=1)
    y = problem.run()
    with capture() as graph:
        problem.run(out=y)
        graph.close()
    with pytest.raises(dnn.errors.ClosedError):
        graph.launch()
    problem.check()


def test_what_is_dropped_in_the_block_is_freed(handle: dnn.Handle, capture: Capture) -> None:
    put_on_stream(handle, True)
    problem = Problem(handle, X, W, padding=1)
    y = problem.run()
    handle.synchronize()
    before = handle.device.memory_used()
    large = handle.empty((1 << 20,))
    assert handle.device.memory_used() >= before + large.nbytes
    with capture() as graph:
        problem.run(out=y)
        del large
        gc.collect()
    graph.launch()
    handle.synchronize()
    assert handle.device.memory_used() <= before


def test_graphs_leave_nothing_behind(handle: dnn.Handle, capture: Capture) -> None:
    problem = Problem(handle, X, W, padding=1)
    y = problem.run()
    handle.synchronize()
    before = handle.device.memory_used()
    for _ in range(50):
        with capture() as graph:
            problem.run(out=y)
        graph.launch()
        graph.close()
    handle.synchronize()
    assert handle.device.memory_used() <= before


# ---------------------------------------------------------------- threads


def test_a_graph_belongs_to_the_thread_of_its_handle(handle: dnn.Handle, capture: Capture) -> None:
    problem = Problem(handle, X, W, padding=1)
    y = problem.run()
    with capture() as graph:
        problem.run(out=y)
    raised: list[BaseException] = []

    def elsewhere() -> None:
        for work in (graph.launch, dnn.capture(handle).__enter__):
            try:
                work()
            except dnn.errors.ThreadError as error:
                raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(raised) == 2
    graph.launch()


@each_stream
def test_threads_capture_at_once(device: Any, own_stream: bool) -> None:
    """Each on a handle of its own; what one of them does is in no graph of another's."""
    barrier, failed = threading.Barrier(3), []

    def work(seed: int) -> None:
        try:
            with dnn.Handle(device) as handle:
                put_on_stream(handle, own_stream)
                problem = Problem(handle, X, W, padding=1, seed=seed, math_type="fma")
                y = problem.run()
                fill(y, 0xFF)
                barrier.wait(60)
                if seed == 2:  # one that records nothing, and waits for its own stream only
                    problem.run(out=y)
                    problem.assert_right(y, dnn.types.Engine(0))
                    barrier.wait(60)
                    return
                with dnn.capture(handle) as graph:
                    barrier.wait(60)
                    problem.run(out=y)
                assert graph.calls == 1
                with graph:
                    graph.launch()
                problem.assert_right(y, dnn.types.Engine(0))
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_another_thread_cannot_wait_for_the_device(handle: dnn.Handle, capture: Capture) -> None:
    """CUDA would end the recording.

    The tuner leaves the choice to the heuristic meanwhile, and warns.
    """
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    y = problem.run()
    messages: list[Any] = []

    def elsewhere() -> None:
        try:
            handle.device.synchronize()
        except dnn.errors.CaptureError as error:
            messages.append(str(error))
        with dnn.Handle(handle.device) as other, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            x, w = other.array(problem.x_host), other.array(problem.w_host)
            with dnn.autotuned(other, cache=":memory:") as tuner:
                messages.append(dnn.convolution_forward(other, x, w, problem.conv).numpy())
                messages.append(tuner.measured)
            messages.extend(
                str(warning.message)
                for warning in warned
                if warning.category is dnn.errors.TuningWarning
            )

    with capture() as graph:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        problem.run(out=y)
    fill(y, 0xFF)
    graph.launch()
    problem.assert_right(y, dnn.types.Engine(0))
    refused, result, measured, warning = messages
    assert "cannot be waited for while a CUDA graph is recorded" in refused
    problem.assert_right(result, dnn.types.Engine(0))
    assert measured == 0
    assert "was never tuned, and it cannot be tuned now" in warning


def test_a_graph_keeps_the_states_of_dropout(handle: dnn.Handle) -> None:
    x, state = handle.array(np.ones((4, 64), np.float32)), dnn.DropoutState(handle, 3)
    y, reserve = dnn.dropout_forward(handle, x, 0.5, dropout_state=state)
    with dnn.capture(handle) as graph:
        dnn.dropout_forward(handle, x, 0.5, dropout_state=state, out=y, reserve=reserve)
    state.close()
    with graph:
        graph.launch()
    assert set(np.unique(y.numpy())) == {0.0, 2.0}
