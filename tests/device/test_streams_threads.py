"""Results stay right when a handle changes its stream, and when each thread has a handle."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn

from .calls import CALLS
from .problems import Problem, busy, fill_scratch, poisoned
from .test_keys_of_plans import SUMS_IN_ANY_ORDER, assert_near, assert_same_bits

X, W = (2, 8, 12, 14), (6, 8, 3, 3)
THREADS = 2


def test_on_a_stream_of_its_own(device: Any) -> None:
    stream = device.create_stream()
    with dnn.Handle(device, stream=stream) as handle:
        assert handle.stream is stream
        problem = Problem(handle, X, W, padding=1, math_type="fma")
        with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
            y = plan(problem.x, problem.w)
            problem.assert_right(y, plan.choice.algorithm)
        problem.check()


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if not call.in_place])
def test_all_work_of_a_call_is_on_the_stream(handle: dnn.Handle, name: str) -> None:
    """Work on another stream would not wait for what is enqueued on this one, and come too early."""
    call = CALLS[name]
    with dnn.Handle(handle.device) as default:
        arrays = call.run(default, call.place(default))
        expected = [array.numpy() for array in arrays]
        specs = [array.spec for array in arrays]
    with dnn.Handle(handle.device, stream=handle.device.create_stream()) as own:
        call.run(own, call.place(own))  # makes the plan, which waits
        operands, out = call.place(own), call.outputs(own, specs)
        work = busy(own)
        fill_scratch(own, 0x3F)
        results = [array.numpy() for array in call.run(own, operands, out)]
        del work
    is_exact = handle.device.kind == "emulated" or name not in SUMS_IN_ANY_ORDER
    (assert_same_bits if is_exact else assert_near)(results, expected, name)


def test_cudnn_is_told_the_stream(handle: dnn.Handle) -> None:
    from cudnnlite._raw.types import cudaStream_t

    def told() -> int:
        stream = cudaStream_t()
        handle.api.cudnnGetStream(handle.ptr, stream)
        return stream.value or 0

    default, other = handle.stream, handle.device.create_stream()
    assert told() == int(default.handle)
    handle.stream = other
    assert told() == int(other.handle)
    handle.stream = int(other.handle)
    assert told() == int(other.handle)
    handle.stream = None
    assert told() == int(default.handle)


def test_the_stream_changes_between_calls(handle: dnn.Handle) -> None:
    """An array of one stream is used on another after a wait; each stream has its own workspace."""
    problem = Problem(handle, X, W, "float16", padding=1)
    rows = dnn.convolution_forward.heuristic(handle, problem.x, problem.w, problem.conv)
    algorithm = max((row for row in rows if row.ok), key=lambda row: row.workspace)
    assert algorithm.workspace > 0
    streams = [handle.stream, handle.device.create_stream(), handle.device.create_stream()]
    handle.synchronize()
    results, sizes = [], []
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, algorithm=algorithm
    ) as plan:
        for stream in streams * 2:
            handle.stream = stream
            results.append(plan(problem.x, problem.w))
            results.append(
                dnn.convolution_forward(
                    handle, problem.x, problem.w, problem.conv, algorithm=algorithm
                )
            )
            sizes.append(handle.workspace.size)
        for y in results:
            problem.assert_right(y, algorithm.algorithm)
    assert sizes == [sizes[0], 2 * sizes[0], 3 * sizes[0], *[3 * sizes[0]] * 3]
    for stream in streams:
        stream.sync()


def test_out_of_another_stream_is_read_when_it_is_written(handle: dnn.Handle) -> None:
    """`out.numpy()` waits for the call that wrote it, on whichever stream that was."""
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    out = poisoned(handle, problem.output_spec)
    handle.synchronize()
    handle.stream = stream = handle.device.create_stream()
    held = busy(handle)
    dnn.convolution_forward(
        handle, problem.x, problem.w, problem.conv, out=out, algorithm="IMPLICIT_GEMM"
    )
    try:
        problem.assert_right(out, dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM)
    finally:
        stream.sync()
        del held


def test_input_of_another_stream_is_waited_for(handle: dnn.Handle) -> None:
    """A result made on a busy stream is the input of a call on another one."""
    first = Problem(handle, X, (8, 8, 1, 1), padding=0, math_type="fma")
    second = Problem(handle, X, W, padding=1, math_type="fma")
    handle.synchronize()
    default, other = handle.stream, handle.device.create_stream()
    handle.stream = other
    held = busy(handle)
    algorithm = dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM
    middle = dnn.convolution_forward(handle, first.x, first.w, first.conv, algorithm=algorithm)
    handle.stream = default
    y = dnn.convolution_forward(handle, middle, second.w, second.conv, algorithm=algorithm)
    result = y.numpy()
    other.sync()
    del held
    second.x_host = middle.numpy()
    second.assert_right(result, algorithm)


def test_arrays_of_a_busy_stream_keep_their_memory(handle: dnn.Handle) -> None:
    """What is dropped while its stream is still at work is not given to somebody else."""
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    handle.synchronize()
    held = busy(handle)
    x = handle.array(problem.x_host)
    y = dnn.convolution_forward(handle, x, problem.w, problem.conv, algorithm="IMPLICIT_GEMM")
    del x
    blockers = [handle.array(np.full(X, np.nan, np.float32)) for _ in range(20)]
    problem.assert_right(y, dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM)
    del held, blockers


@pytest.mark.parametrize("own_stream", [False, True])
def test_a_handle_for_each_thread(device: Any, own_stream: bool) -> None:
    barrier = threading.Barrier(THREADS)

    def work(seed: int) -> int:
        stream = device.create_stream() if own_stream else None
        right = 0
        with dnn.Handle(device, stream=stream) as handle:
            problem = Problem(handle, X, W, seed=seed, padding=1, math_type="fma")
            algorithm = problem.choice()
            with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
                barrier.wait(timeout=1000)
                for _ in range(20):
                    results = [problem.run(), plan(problem.x, problem.w)]
                    for y in results:
                        problem.assert_right(y, algorithm)
                        right += 1
        return right

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == [40] * THREADS


def test_errors_of_threads_do_not_mix(device: Any) -> None:
    """cuDNN's last-error string is the thread's own: each sees what it did wrong itself."""
    barrier = threading.Barrier(THREADS)

    def work(number: int) -> set[str]:
        messages = set()
        with dnn.Handle(device) as handle:
            x, w = handle.empty((1, 4, 6 + number, 7)), handle.empty((4, 4, 3, 3))
            barrier.wait(timeout=1000)
            for _ in range(20):
                with pytest.raises(dnn.NotSupportedError) as caught:
                    dnn.convolution_forward(handle, x, w, algorithm="DIRECT")
                messages.add(str(caught.value))
        return messages

    with ThreadPoolExecutor(THREADS) as pool:
        first, second = pool.map(work, range(THREADS))
    assert all("(1, 4, 6, 7)" in message for message in first)
    assert all("(1, 4, 7, 7)" in message for message in second)


def test_a_shared_handle_is_an_error_unless_it_is_allowed(device: Any) -> None:
    with dnn.Handle(device) as handle:
        problem = Problem(handle, X, W, padding=1, math_type="fma")
        with (
            ThreadPoolExecutor(1, thread_name_prefix="other") as pool,
            pytest.raises(dnn.errors.ThreadError, match="other"),
        ):
            pool.submit(problem.run, algorithm="IMPLICIT_GEMM").result()
    with dnn.Handle(device, check_same_thread=False) as handle:
        problem = Problem(handle, X, W, padding=1, math_type="fma")
        with ThreadPoolExecutor(1) as pool:
            y = pool.submit(problem.run, algorithm="IMPLICIT_GEMM").result()
        problem.assert_right(y, dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM)
