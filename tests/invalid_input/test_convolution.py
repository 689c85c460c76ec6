"""Convolutions at the edge of what is valid, and with host arrays of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from device.problems import UNSUPPORTED, Problem
from helpers.refusals import ARRAY, refuses

import cudnnlite as dnn

from .convolution import Bench, W, X, Y


def test_out_right_behind_x_is_no_overlap(handle: dnn.Handle) -> None:
    bench = Bench(handle)
    memory = handle.empty((1 << 16,))
    x = bench.over(memory, X)
    handle.device.copy_in(x.ptr, bench.problem.x_host, handle.stream)
    y = bench.call(x=x, out=bench.over(memory, Y, x.nbytes))
    bench.problem.assert_right(y, bench.problem.choice())


@pytest.mark.parametrize(("x_layout", "w_layout"), [("NHWC", "NCHW"), ("NCHW", "NHWC")])
@pytest.mark.parametrize("algorithm", [None, "IMPLICIT_GEMM"])
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
            y, problem.choice() if algorithm is None else dnn.enums.ConvolutionFwdAlgo[algorithm]
        )


@pytest.mark.parametrize("argument", ["x", "out"])
def test_torch_tensor_on_the_host(handle: dnn.Handle, argument: str) -> None:
    torch = pytest.importorskip("torch")
    bench = Bench(handle)
    tensor = torch.zeros({"x": X, "out": Y}[argument])
    refuses(ARRAY, rf"\b{argument}\b.*host array", lambda: bench.call(**{argument: tensor}))
    bench.assert_untouched()
