"""Exceptions of signal handlers at any moment of a call.

None is lost, and no result is returned that was not written.  CUDNNLITE_INTERRUPTS says how many
times each kind of call is interrupted in the exhaustive tests.
"""

import gc
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.extents import ALL, SAMPLE, each_extent
from helpers.harness import run_python
from helpers.tuning_entries import entry

import cudnnlite as dnn
from cudnnlite._raw.types import cudaStream_t
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.problems import call_watch

ROUNDS = {SAMPLE: 15, ALL: int(os.environ.get("CUDNNLITE_INTERRUPTS", "60"))}
POISON = -77.0
rng = np.random.default_rng(0)
IMAGE, FILTER = (
    rng.standard_normal((1, 2, 6, 5), np.float32),
    rng.standard_normal((3, 2, 3, 3), np.float32),
)
CONV = dnn.ConvolutionSpec(padding=1)
LSTM = dnn.RNNSpec("lstm", input_size=2, hidden_size=3)


def convolution(handle):
    x, w = handle.array(IMAGE), handle.array(FILTER)
    expected = dnn.convolution_forward(handle, x, w, CONV, algorithm="gemm").numpy()
    poison, out = np.full_like(expected, POISON), handle.empty(expected.shape)

    def work():
        handle.device.copy_in(out.ptr, poison, handle.stream)
        dnn.convolution_forward(handle, x, w, CONV, out=out, algorithm="gemm")
        assert (
            out.numpy().tobytes() == expected.tobytes()
        )  # array_equal would swallow a TimeoutError

    return work


def first_convolution(handle):
    """With descriptors, a heuristic and a plan to be made."""
    x, w = handle.array(IMAGE), handle.array(FILTER)

    def work():
        with dnn.convolution_forward.plan(handle, x, w, CONV) as plan:
            assert plan(x, w).shape == (1, 3, 6, 5)

    return work


def search(handle):
    x, w = handle.array(IMAGE), handle.array(FILTER)
    return lambda: dnn.convolution_forward.find(handle, x, w, CONV)


def recurrent(handle):
    weights, x = (
        dnn.RNNWeights(handle, LSTM),
        handle.array(rng.standard_normal((2, 2, 2), np.float32)),
    )

    def work():
        y, _, _, reserve = dnn.rnn_forward(handle, LSTM, weights, x, training=True)
        dnn.rnn_backward_data(handle, reserve, y)
        dnn.rnn_backward_weights(handle, reserve)

    return work


def tuning(handle):
    problem = dnn.convolution_forward.problem(
        dnn.TensorSpec(IMAGE.shape), dnn.FilterSpec(FILTER.shape), CONV
    )
    tuner = dnn.Tuner(handle, cache=None)
    return lambda: tuner.tune(problem)


def leaks(handle):
    """Objects that go without `close()`: what they own is given back all the same."""
    x = handle.array(IMAGE)
    y = dnn.activation_forward(handle, x, "relu")

    def work():
        with dnn.capture(handle) as graph:
            dnn.activation_forward(handle, x, "relu", out=y)
        graph.launch()
        del graph
        TensorDescriptor((1, 2, 3, 4))

    return work


def raw_calls(handle):
    """Conversion of arguments, which a GPU's path has too."""
    with TensorDescriptor((1, 2, 3, 4)) as descriptor:
        return [descriptor.nbytes for _ in range(20)]


def store(handle):
    """Tuning that is remembered in files, and a list of problems in one."""
    problem = dnn.convolution_forward.problem(
        dnn.TensorSpec(IMAGE.shape), dnn.FilterSpec(FILTER.shape), CONV
    )
    folder = Path.cwd()  # the test's own

    def work():
        dnn.ProblemList([problem]).save(folder / "list.json")
        assert len(dnn.ProblemList.load(folder / "list.json")) == 1
        with dnn.TuningCache(folder / "cache") as cache:
            cache.put(entry())
            assert len(cache.entries()) == 1

    return work


def capture(handle):
    x = handle.array(IMAGE)
    y, stream = dnn.activation_forward(handle, x, "relu"), cudaStream_t()

    def work():
        handle.api.cudnnGetStream(handle.ptr, stream)
        assert stream.value == handle.stream.handle  # and not the last recording's
        assert not call_watch.active
        with dnn.capture(handle) as graph:
            dnn.activation_forward(handle, x, "relu", out=y)
        graph.launch()
        graph.close()

    return work


def trace(handle):
    def work():
        with dnn.trace() as recording:
            dnn.activation_forward(handle, handle.array(IMAGE), "relu").numpy()
        assert len(recording.checksums) == 1

    return work


CALLS: dict[str, Callable] = {
    "convolution": convolution,
    "first convolution": first_convolution,
    "search": search,
    "RNN": recurrent,
    "tuning": tuning,
    "store": store,
    "capture": capture,
    "trace": trace,
    "leaks": leaks,
    "raw calls": lambda handle: lambda: raw_calls(handle),
}


@pytest.fixture
def _no_callbacks():
    """Remove callbacks of the garbage collector.

    Hypothesis has one in Python, which would lose an exception raised in it.
    """
    gc.collect()  # what earlier tests left may have such callbacks too
    gc.freeze()
    before = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = before


@pytest.mark.usefixtures("_no_callbacks")
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning"
)  # an object whose constructor was interrupted is collected
@pytest.mark.timeout(3600, method="thread")  # SIGALRM is ours
@each_extent
@pytest.mark.parametrize("call", CALLS)
def test_what_a_signal_handler_raises_comes_out_as_itself(call, extent, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    lost = []
    monkeypatch.setattr(
        "sys.unraisablehook", lambda report: lost.append((report.object, report.exc_value))
    )
    pause = random.Random(call).random
    raised: list[BaseException] = []

    def handler(number, frame):
        error = (SystemExit(7), TimeoutError("late"), KeyboardInterrupt())[len(raised) % 3]
        raised.append(error)
        raise error

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with dnn.Handle(device="emulated") as handle:
            work = CALLS[call](handle)
            start = time.perf_counter()
            work()
            length = time.perf_counter() - start
            for number in range(ROUNDS[extent]):
                # Collect what the last interrupt left in a cycle: Python loses what a handler
                # raises in a finalizer.
                gc.collect()
                came_out = None
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 + pause() * min(1.5 * length, 0.1))
                    while len(raised) == number:
                        work()
                except (SystemExit, TimeoutError, KeyboardInterrupt) as error:
                    came_out = error
                    error.__traceback__ = error.__context__ = (
                        None  # keeps what was not left yet, where that was interrupted
                    )
                except BaseException:  # which a late signal would hide
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    raise
                assert came_out is raised[number], lost
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    gc.collect()
    assert lost == []


@pytest.mark.processes
def test_importing_changes_no_signal_handler_and_no_hook():
    """Whoever imports this package keeps his KeyboardInterrupt, whatever his program is called."""
    process = run_python("""
        import signal, sys
        before = signal.getsignal(signal.SIGINT), sys.excepthook
        sys.argv = ["/usr/bin/cudnnlite", "info"]
        import cudnnlite.cli
        print((signal.getsignal(signal.SIGINT), sys.excepthook) == before)
    """)
    assert process.stdout == "True\n"
