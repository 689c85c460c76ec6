"""An invalid argument of a convolution is refused by name, before anything is written."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.refusals import ARGUMENT, ARRAY, refuses

import cudnnlite as dnn
from cudnnlite.devices.device_choice import get_device

from .problems import PATTERN, UNSUPPORTED, Problem, fill, memory_of, random_values, with_gaps

X, W, Y = (2, 4, 9, 11), (6, 4, 3, 2), (2, 6, 9, 12)
HAS_TORCH = importlib.util.find_spec("torch") is not None


class Bench:
    """A good call, and an output with a known pattern in it."""

    def __init__(self, handle: dnn.Handle) -> None:
        self.handle = handle
        self.problem = Problem(handle, X, W, padding=1, math_type="fma")
        self.x, self.w, self.conv = self.problem.x, self.problem.w, self.problem.conv
        self.out = handle.empty(Y)
        fill(self.out, PATTERN)

    def call(
        self, x: Any = None, w: Any = None, conv: Any = None, out: Any = None, **options: Any
    ) -> Any:
        """Call `convolution_forward` with some arguments replaced."""
        return dnn.convolution_forward(
            self.handle,
            self.x if x is None else x,
            self.w if w is None else w,
            self.conv if conv is None else conv,
            out=self.out if out is None else out,
            **options,
        )

    def over(
        self, array: dnn.DeviceArray, spec: dnn.TensorSpec, offset: int = 0, **options: Any
    ) -> dnn.DeviceArray:
        """Return an array over another one's memory."""
        return dnn.DeviceArray(
            spec, array.device, array.ptr + offset, array, self.handle.stream, **options
        )


@pytest.fixture
def bench(handle: dnn.Handle) -> Any:
    """A bench that is compared before and after the test."""
    bench = Bench(handle)
    bench.call()
    bench.problem.assert_right(bench.out, bench.problem.choice())
    fill(bench.out, PATTERN)
    gc.collect()
    handle.synchronize()
    before = handle.device.memory_used()
    yield bench
    try:
        handle.synchronize()
        assert (memory_of(bench.out) == PATTERN).all(), "out was written"
        gc.collect()
        assert handle.device.memory_used() <= before  # less: an earlier failure's traceback is gone
        bench.call()
        bench.problem.assert_right(bench.out, bench.problem.choice())
    finally:
        vars(bench).clear()  # pytest keeps the bench for longer than the handle's fixture allows


# id: (exception, what the message must match, the call)
Case = tuple[Any, str, Callable[[Bench], Any]]
SHAPES: dict[str, Case] = {
    "w_rank_2": (
        ARGUMENT,
        r"^w has rank 2; needed: 3 to 5, \(K, C / groups, \*taps\)$",
        lambda b: b.call(w=b.handle.empty((6, 4))),
    ),
    "w_rank_6": (
        ARGUMENT,
        r"^w has rank 6; needed: 3 to 5",
        lambda b: b.call(w=b.handle.empty((6, 4, 1, 1, 1, 1))),
    ),
    "w_rank_5": (ARGUMENT, r"\bw\b.*rank 5", lambda b: b.call(w=b.handle.empty((6, 4, 3, 2, 1)))),
    "w_with_gaps": (
        ARGUMENT,
        r"\bw\b.*packed",
        lambda b: b.call(w=b.handle.empty(with_gaps(W, "float32"))),
    ),
    "channels": (ARGUMENT, r"\bw\b.*\bx\b", lambda b: b.call(w=b.handle.empty((6, 5, 3, 2)))),
    "groups_do_not_divide": (
        ARGUMENT,
        r"groups=3",
        lambda b: b.call(conv=dnn.ConvolutionSpec(1, groups=3)),
    ),
    "groups_do_not_match": (
        ARGUMENT,
        r"groups=2",
        lambda b: b.call(conv=dnn.ConvolutionSpec(1, groups=2)),
    ),
    "filter_larger_than_image": (
        ARGUMENT,
        r"filter",
        lambda b: b.call(w=b.handle.empty((6, 4, 12, 2))),
    ),
    "spec_of_3_axes": (
        ARGUMENT,
        r"3 spatial axes",
        lambda b: b.call(conv=dnn.ConvolutionSpec((1, 1, 1))),
    ),
    "find_out_shape": (
        ARGUMENT,
        r"\bout\b",
        lambda b: dnn.convolution_forward.find(
            b.handle, b.x, b.w, b.conv, out=b.handle.empty((2, 6, 9, 11))
        ),
    ),
    "too_many_elements_x": (
        ARGUMENT,
        r"^x=.*4,294,967,296 values.*end at 2,147,483,647; split the batch$",
        lambda b: dnn.convolution_forward.plan(
            b.handle,
            dnn.TensorSpec((2, 1 << 15, 1 << 8, 1 << 8)),
            dnn.FilterSpec((1, 1 << 15, 1, 1)),
            interface="descriptor",
        ),
    ),
    "too_many_elements_out": (
        ARGUMENT,
        r"^(y|out)=.*4,294,967,296 values.*end at 2,147,483,647; split the batch$",
        lambda b: dnn.convolution_forward.plan(
            b.handle,
            dnn.TensorSpec((2, 1, 1 << 15, 1 << 10)),
            dnn.FilterSpec((64, 1, 1, 1)),
            interface="descriptor",
        ),
    ),
}

TYPES: dict[str, Case] = {
    "dtypes_differ": (ARGUMENT, r"\bx\b.*\bw\b", lambda b: b.call(w=b.handle.empty(W, "float16"))),
    "algorithm_unknown": (
        ARGUMENT,
        r"algorithm.*IMPLICIT_GEMM",
        lambda b: b.call(algorithm="NOPE"),
    ),
    "algorithm_number": (ARGUMENT, r"algorithm", lambda b: b.call(algorithm=99)),
    "algorithm_list": (ARGUMENT, r"algorithm", lambda b: b.call(algorithm=["GEMM"])),
    "algorithm_of_other_enum": (
        ARGUMENT,
        r"algorithm",
        lambda b: b.call(algorithm=dnn.MathType.FMA),
    ),
    "limit_text": (ARGUMENT, r"workspace_limit", lambda b: b.call(workspace_limit="much")),
    "limit_negative": (ARGUMENT, r"workspace_limit", lambda b: b.call(workspace_limit=-1)),
    "limit_above_100_percent": (
        ARGUMENT,
        r"workspace_limit",
        lambda b: b.call(workspace_limit="101%"),
    ),
    "limit_list": (ARGUMENT, r"workspace_limit", lambda b: b.call(workspace_limit=[1])),
}

PLACES: dict[str, Case] = {
    "find_x_numpy": (
        ARRAY,
        r"\bx\b",
        lambda b: dnn.convolution_forward.find(b.handle, b.problem.x_host, b.w),
    ),
    "find_w_numpy": (
        ARRAY,
        r"\bw\b",
        lambda b: dnn.convolution_forward.find(b.handle, b.x, b.problem.w_host),
    ),
    "plan_x_numpy": (
        ARRAY,
        r"\bx\b",
        lambda b: dnn.convolution_forward.plan(b.handle, b.problem.x_host, b.w),
    ),
    "plan_x_none": (
        ARRAY,
        r"\bx\b",
        lambda b: dnn.convolution_forward.plan(b.handle, None, b.w),
    ),
    "get_w_number": (
        ARRAY,
        r"\bw\b",
        lambda b: dnn.convolution_forward.heuristic(b.handle, b.x, 5),
    ),
    "workspace_numpy": (
        ARRAY,
        r"workspace",
        lambda b: b.call(workspace=np.zeros(1 << 20, np.uint8)),
    ),
    "read_only_out_of_find": (
        ARRAY,
        r"\bout\b.*read-only",
        lambda b: dnn.convolution_forward.find(
            b.handle, b.x, b.w, b.conv, out=b.over(b.out, b.out.spec, readonly=True)
        ),
    ),
}


def same(bench: Bench) -> dnn.DeviceArray:
    """Make a filter whose output is as large as x, and give the bench a spec for it."""
    bench.conv = dnn.ConvolutionSpec(padding=(1, 0))
    return bench.handle.array(random_values(np.random.default_rng(0), (4, 4, 3, 1), "float32"))


CASES = SHAPES | TYPES | PLACES


@pytest.mark.parametrize("case", CASES)
def test_is_refused(bench: Bench, case: str) -> None:
    error, match, call = CASES[case]
    refuses(error, match, lambda: call(bench))


def test_a_search_may_not_write_over_its_input(bench: Bench) -> None:
    w, conv = same(bench), bench.conv
    bench.conv = bench.problem.conv
    refuses(
        ARGUMENT,
        r"\bout\b.*\bx\b",
        lambda: dnn.convolution_forward.find(bench.handle, bench.x, w, conv, out=bench.x),
    )


def test_out_right_behind_x_is_no_overlap(bench: Bench) -> None:
    memory = bench.handle.empty((1 << 16,))
    x, w = bench.over(memory, dnn.TensorSpec(X)), bench.w
    bench.handle.device.copy_in(x.ptr, bench.problem.x_host, bench.handle.stream)
    y = dnn.convolution_forward(
        bench.handle, x, w, bench.conv, out=bench.over(memory, dnn.TensorSpec(Y), x.nbytes)
    )
    bench.problem.assert_right(y, bench.problem.choice())


def test_a_read_only_workspace(bench: Bench) -> None:
    """It would be written to."""
    workspace = bench.handle.empty((1 << 20,), "uint8")
    locked = bench.over(workspace, workspace.spec, readonly=True)
    out = bench.handle.empty(Y)
    refuses(ARRAY, r"workspace.*read-only", lambda: bench.call(out=out, workspace=locked))


@pytest.mark.parametrize(("x_layout", "w_layout"), [("NHWC", "NCHW"), ("NCHW", "NHWC")])
@pytest.mark.parametrize("algorithm", [None, "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM"])
def test_layouts_that_differ_are_right_or_refused(
    handle: dnn.Handle, x_layout: str, w_layout: str, algorithm: Any
) -> None:
    problem = Problem(handle, X, W, "float32", x_layout, w_layout=w_layout, padding=1)
    refusal = ""
    try:
        y = problem.run(algorithm=algorithm)
    except UNSUPPORTED as error:
        refusal = str(error)
    if refusal:
        assert ("channels come last" in refusal) == (w_layout == "NHWC")
    else:
        problem.assert_right(
            y, problem.choice() if algorithm is None else dnn.ConvolutionFwdAlgo[algorithm]
        )


def test_what_lies_on_another_device_is_not_taken_over(bench: Bench) -> None:
    other = get_device("emulated:1" if bench.handle.device.kind == "emulated" else "emulated")
    with dnn.Handle(other) as other_handle:
        array = other_handle.empty(X)
        refuses(ARRAY, str(other), lambda: bench.handle.array(array))
        refuses(ARRAY, str(other), lambda: bench.handle.view(array))


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("argument", ["x", "w", "out"])
def test_torch_tensor_on_the_host(bench: Bench, argument: str) -> None:
    import torch

    tensor = torch.zeros({"x": X, "w": W, "out": Y}[argument])
    refuses(ARRAY, rf"\b{argument}\b.*host array", lambda: bench.call(**{argument: tensor}))


def test_bad_stream(bench: Bench) -> None:
    before = bench.handle.stream
    refuses(ARGUMENT, r"stream", lambda: setattr(bench.handle, "stream", "fast"))
    assert bench.handle.stream is before


def test_pickling(bench: Bench) -> None:
    import pickle

    with dnn.convolution_forward.plan(bench.handle, bench.x, bench.w, bench.conv) as plan:
        for thing in (bench.handle, bench.x, plan):
            with pytest.raises(TypeError, match="pickle"):
                pickle.dumps(thing)


def test_more_memory_than_there_is(bench: Bench) -> None:
    total = bench.handle.device.memory_info()[1]
    # This is far more than there is: a driver that searches for a little more takes all memory for
    # a moment, and other tests then have none.
    refuses(
        dnn.DeviceMemoryError,
        r"free",
        lambda: bench.handle.empty((1 << 16, (total >> 16) * 64), "int8"),
    )
