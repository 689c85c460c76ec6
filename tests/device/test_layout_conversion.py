"""A search result with a layout.

Operands are converted, convolved and converted back, all in the workspace.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.extents import each_pair

import cudnnlite as dnn

from .problems import (
    ALGORITHMS,
    FIRST,
    FLOATS,
    LAST,
    PATTERN,
    Problem,
    fill,
    gap_mask,
    memory_of,
    poisoned,
    upload,
    with_gaps,
)
from .test_plan import count_calls

X, W = (2, 8, 9, 11), (6, 8, 3, 2)
PRECOMP = dnn.enums.ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM
TRANSFORM, CONVOLVE = "cudnnTransformTensor", "cudnnConvolutionForward"

# No two axes of one array are alike, so that a swap shows.
GEOMETRIES = {
    "2d": ((2, 8, 9, 11), (6, 8, 3, 2), {"padding": (1, 3), "stride": (2, 1)}),
    "2d_dilation": ((2, 4, 9, 11), (6, 4, 3, 2), {"dilation": (2, 3)}),
    "2d_groups": ((2, 4, 9, 11), (6, 2, 3, 2), {"groups": 2, "padding": 1}),
    "2d_depthwise": ((2, 6, 9, 11), (12, 1, 3, 2), {"groups": 6}),
    "2d_convolution": ((2, 4, 9, 11), (6, 4, 3, 2), {"mode": "convolution"}),
    "1x1": ((2, 4, 9, 11), (6, 4, 1, 1), {}),
    "one_channel": ((2, 1, 9, 11), (6, 1, 3, 2), {"padding": 1}),
    "one_filter": ((2, 4, 9, 11), (1, 4, 3, 2), {"padding": 1}),
    "1d": ((3, 8, 17), (6, 4, 4), {"padding": 2, "stride": 3, "groups": 2}),
    "3d": ((2, 4, 5, 6, 7), (6, 4, 3, 2, 3), {"padding": (1, 0, 2)}),
}


def result(layout: str, algorithm: Any = PRECOMP, math_type: str = "FMA") -> dnn.AlgorithmResult:
    """Return what a search would."""
    kind = dnn.enums.ConvolutionFwdAlgo[algorithm] if isinstance(algorithm, str) else algorithm
    return dnn.AlgorithmResult(kind, dnn.MathType[math_type], layout=layout)


def aligned(nbytes: int) -> int:
    return (nbytes + 255) // 256 * 256


@each_pair(geometry=GEOMETRIES, dtype=FLOATS, channels=["first", "last"])
def test_geometry(handle: dnn.Handle, geometry: str, dtype: str, channels: str) -> None:
    x_shape, w_shape, options = GEOMETRIES[geometry]
    lies, inner_layout = (
        names[len(x_shape)] for names in ((FIRST, LAST) if channels == "first" else (LAST, FIRST))
    )
    problem = Problem(handle, x_shape, w_shape, dtype, lies, math_type="fma", **options)
    row = result(inner_layout)
    out = poisoned(handle, dnn.TensorSpec(problem.y_shape, dtype, lies))
    if (dtype, inner_layout) == ("float64", "NDHWC"):  # which an H200 refuses
        with pytest.raises(dnn.NotSupportedError, match="layout = NDHWC"):
            problem.run(algorithm=row, out=out)
        return
    y = problem.run(algorithm=row, out=out)
    assert y is out
    problem.assert_right(y, row.algorithm)
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, algorithm=row
    ) as plan:
        assert plan.choice == replace(row, workspace=plan.workspace)
        y = plan(problem.x, problem.w)
        assert y.layout == lies
        problem.assert_right(y, row.algorithm)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_algorithms_that_have_no_NHWC_form(handle: dnn.Handle, algorithm: Any, dtype: str) -> None:
    """Through NCHW the algorithms run on NHWC operands.

    Their workspace lies behind the converted ones.
    """
    problem = Problem(
        handle, (2, 8, 12, 14), (6, 8, 3, 3), dtype, "NHWC", padding=1, math_type="fma"
    )
    try:
        y = problem.run(algorithm=result("NCHW", algorithm))
    except dnn.NotSupportedError:
        assert "GEMM" not in algorithm.name
        return
    problem.assert_right(y, algorithm)
    if "GEMM" not in algorithm.name:
        with pytest.raises(dnn.NotSupportedError):
            problem.run(algorithm=result("NHWC", algorithm))


def test_the_math_type_comes_with_the_layout(handle: dnn.Handle) -> None:
    problem = Problem(handle, (2, 64, 12, 14), (32, 64, 3, 3), padding=1)
    y = problem.run(algorithm=result("NHWC"))
    problem.assert_right(y, PRECOMP, math_type=dnn.MathType.FMA)
    exact = Problem(handle, X, W, math_type="fma")
    with pytest.raises(dnn.ArgumentError, match="FMA"):
        exact.run(algorithm=result("NHWC", math_type="DEFAULT"))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("alpha", "beta"), [(-1.75, 0.0), (0.6, 1.0), (1.0, -0.3), (0.0, 0.7), (0.0, 0.0)]
)
def test_alpha_and_beta(handle: dnn.Handle, dtype: str, alpha: float, beta: float) -> None:
    problem = Problem(handle, X, W, dtype, padding=1, math_type="fma")
    for layout in ("NCHW", "NHWC"):  # the second: alpha and beta are the convolution's
        spec = dnn.TensorSpec(problem.y_shape, dtype, layout)
        out = handle.array(problem.old_host, layout=layout) if beta else poisoned(handle, spec)
        y = problem.run(alpha=alpha, beta=beta, out=out, algorithm=result("NHWC"))
        assert y is out
        if alpha == beta == 0:
            assert not y.numpy().astype(float).any()
        else:
            problem.assert_right(y, PRECOMP, alpha=alpha, beta=beta)


def test_scalars_of_float64_are_doubles(handle: dnn.Handle) -> None:
    """1/3 in float32 would be off by 3e-8; the sums of small integers are exact."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(1, 9, X).astype(float), rng.integers(1, 9, W).astype(float)
    device_x, device_w = handle.array(x), handle.array(w)
    row = result("NHWC", "IMPLICIT_GEMM")
    sums = dnn.convolution_forward(handle, device_x, device_w, algorithm=row).numpy()
    np.testing.assert_array_equal(sums, np.rint(sums))
    old = rng.integers(1, 9, sums.shape).astype(float)
    out = handle.array(old)
    dnn.convolution_forward(
        handle, device_x, device_w, alpha=1 / 3, beta=1 / 7, out=out, algorithm=row
    )
    np.testing.assert_allclose(out.numpy(), sums / 3 + old / 7, rtol=1e-15, atol=0)


@each_pair(rank=[3, 4, 5], dtype=FLOATS, last=[False, True], beta=[0.0, 0.5])
def test_gaps(handle: dnn.Handle, rank: int, dtype: str, last: bool, beta: float) -> None:
    """Those of x hold NaN, which must not be read; those of out keep what they hold."""
    x_shape, w_shape = (2, 4, 5, 7, 6)[:rank], (6, 4, 3, 2, 3)[:rank]
    problem = Problem(handle, x_shape, w_shape, dtype, padding=1, math_type="fma")
    problem.x = upload(handle, with_gaps(x_shape, dtype, last=not last), problem.x_host, gaps=0xFF)
    spec = with_gaps(problem.y_shape, dtype, last=last)
    nan = np.full(problem.y_shape, np.nan).astype(problem.old_host.dtype)
    out = upload(handle, spec, problem.old_host if beta else nan)
    inner_layout = (FIRST if last or (rank, dtype) == (5, "float64") else LAST)[rank]
    problem.run(algorithm=result(inner_layout), out=out, beta=beta)
    problem.assert_right(out, PRECOMP, beta=beta)
    gaps = gap_mask(spec)
    assert gaps.any()
    assert (memory_of(out)[gaps] == PATTERN).all()


def test_a_filter_in_the_other_layout(handle: dnn.Handle) -> None:
    for x_layout, w_layout in (("NCHW", "NHWC"), ("NHWC", "NCHW")):
        problem = Problem(handle, X, W, layout=x_layout, w_layout=w_layout, math_type="fma")
        for inner_layout in ("NCHW", "NHWC"):
            problem.assert_right(problem.run(algorithm=result(inner_layout)), PRECOMP)


# Case: (x shape, w shape, x layout, out's layout, inner layout), the number of conversions.
CONVERTED = {
    "all": (X, W, "NCHW", "NCHW", "NHWC", 3),
    "all_from_last": (X, W, "NHWC", "NHWC", "NCHW", 3),
    "out_is_there": (X, W, "NCHW", "NHWC", "NHWC", 2),
    "only_out": (X, W, "NHWC", "NCHW", "NHWC", 1),
    "one_tap": (X, (6, 8, 1, 1), "NCHW", "NCHW", "NHWC", 2),
    "one_channel": ((2, 1, 9, 11), (6, 1, 3, 2), "NCHW", "NCHW", "NHWC", 1),
    "nothing": (X, W, "NHWC", "NHWC", "NHWC", 0),
    "nothing_first": (X, W, "NCHW", "NCHW", "NCHW", 0),
    "no_layout": (X, W, "NCHW", "NCHW", "", 0),
    "lower_case": (X, W, "NCHW", "NCHW", "nhwc", 3),
}


@pytest.mark.parametrize("case", CONVERTED)
def test_what_fits_is_not_converted(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """And `plan.workspace` is what the rest takes."""
    x_shape, w_shape, lies, y_layout, inner_layout, number = CONVERTED[case]
    problem = Problem(handle, x_shape, w_shape, layout=lies, math_type="fma")
    spec = dnn.TensorSpec(problem.y_shape, "float32", y_layout)
    out = poisoned(handle, spec)
    calls = count_calls(monkeypatch, handle.api, TRANSFORM, CONVOLVE)
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, out=spec, algorithm=result(inner_layout)
    ) as plan:
        assert calls == []
        plan(problem.x, problem.w, out=out)
    assert sorted(calls) == [CONVOLVE] + [TRANSFORM] * number
    problem.assert_right(out, PRECOMP)

    inside = inner_layout.upper() or lies
    specs = {
        name: kind(shape, "float32", inside)
        for name, kind, shape in (
            ("x", dnn.TensorSpec, x_shape),
            ("w", dnn.FilterSpec, w_shape),
            ("out", dnn.TensorSpec, problem.y_shape),
        )
    }
    with dnn.convolution_forward.plan(
        handle, specs["x"], specs["w"], problem.conv, out=specs["out"], algorithm=PRECOMP
    ) as plain:
        needed = plain.workspace
    moved = [
        array.nbytes
        for array in (problem.x, problem.w, out)
        if inner_layout
        and not array.spec.fits(inside)  # of one tap or one channel, an array fits both
    ]
    assert len(moved) == number
    assert plan.workspace == sum(map(aligned, moved)) + needed


def test_the_workspace_limit_is_for_all_of_it(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    row = result("NHWC", "IMPLICIT_GEMM")
    operands = handle, problem.x, problem.w, problem.conv
    with dnn.convolution_forward.plan(*operands, algorithm=row) as plan:
        needed = plan.workspace
    assert needed >= problem.x.nbytes + problem.w.nbytes
    limited = dnn.convolution_forward(*operands, algorithm=row, workspace_limit=needed)
    problem.assert_right(limited, row.algorithm)
    out = poisoned(handle, problem.output_spec)
    for options in (
        {"workspace_limit": needed - 1},
        {"workspace": handle.empty((needed - 1,), "uint8")},
    ):
        with pytest.raises(
            dnn.WorkspaceLimitError, match="IMPLICIT_GEMM in NHWC, converted operands included"
        ):
            dnn.convolution_forward(*operands, algorithm=row, out=out, **options)
    handle.workspace.limit = needed - 1
    with pytest.raises(dnn.WorkspaceLimitError, match="limit"):
        dnn.convolution_forward.plan(*operands, algorithm=row)
    assert np.isnan(out.numpy()).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_workspace_of_ones_own(handle: dnn.Handle, dtype: str) -> None:
    """The call stays inside the workspace, whatever it held.

    A workspace that is too small, in use or misaligned is an error.
    """
    problem = Problem(handle, X, W, dtype, padding=1, math_type="fma")
    row = result("NHWC")
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, algorithm=row, alpha=0.5, beta=0.25
    ) as plan:
        memory = handle.empty((plan.workspace + 512,), "uint8")
        exact = dnn.DeviceArray(
            dnn.TensorSpec((plan.workspace,), "uint8"),
            memory.device,
            memory.ptr,
            memory,
            handle.stream,
        )
        for workspace in (memory, exact):
            out = handle.array(problem.old_host)
            fill(memory, 0xFF)
            assert plan(problem.x, problem.w, out=out, workspace=workspace) is out
            problem.assert_right(out, row.algorithm, alpha=0.5, beta=0.25)
            assert (memory_of(memory)[plan.workspace :] == 0xFF).all()
        assert handle.workspace.size == 0
        before = memory_of(out)

        def part(start: int, nbytes: int) -> dnn.DeviceArray:
            return dnn.DeviceArray(
                dnn.TensorSpec((nbytes,), "uint8"),
                memory.device,
                memory.ptr + start,
                memory,
                handle.stream,
            )

        for bad, words in (
            (part(0, plan.workspace - 1), "workspace has"),
            (part(1, plan.workspace), "15 of them before the first address that is aligned"),
            (part(128, plan.workspace), "aligned to 256 bytes"),
            (
                dnn.DeviceArray(memory.spec, memory.device, out.ptr, out, handle.stream),
                r"workspace overlaps (x|w|out)\b",
            ),
        ):
            with pytest.raises(dnn.ArgumentError, match=words):
                plan(problem.x, problem.w, out=out, workspace=bad)
        np.testing.assert_array_equal(memory_of(out), before)
        plan(
            problem.x,
            problem.w,
            out=handle.array(problem.old_host),
            workspace=part(256, plan.workspace),
        )
    one_line = problem.run(algorithm=row, workspace=memory)
    problem.assert_right(one_line, row.algorithm)
    assert handle.workspace.size == 0


def test_a_workspace_that_moves(handle: dnn.Handle) -> None:
    """Grown by a larger call, released, and on another stream: the addresses are told again."""
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    larger = Problem(handle, (4, 16, 30, 31), (6, 16, 3, 2), math_type="fma")
    row = result("NHWC")
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, algorithm=row
    ) as plan:
        results = [plan(problem.x, problem.w)]
        larger.assert_right(larger.run(algorithm=row), row.algorithm)
        results.append(plan(problem.x, problem.w))
        handle.workspace.release()
        results.append(plan(problem.x, problem.w))
        handle.synchronize()
        handle.stream = handle.device.create_stream()
        results.append(plan(problem.x, problem.w))
    for y in results:
        problem.assert_right(y, row.algorithm)
    handle.synchronize()


def test_recorded_into_a_graph(device: Any) -> None:
    """The graph is replayed with other values in the same arrays.

    The emulated device has no graphs and runs the calls again.
    """
    with dnn.Handle(device, stream=device.create_stream()) as handle:
        problem, other = (
            Problem(handle, X, W, "float16", seed=seed, padding=1, math_type="fma")
            for seed in range(2)
        )
        row = result("NHWC")
        out = poisoned(handle, problem.output_spec)
        with dnn.convolution_forward.plan(
            handle, problem.x, problem.w, problem.conv, algorithm=row
        ) as plan:

            def work() -> None:
                plan(problem.x, problem.w, out=out)

            work()
            problem.assert_right(out, row.algorithm)
            launch = device.capture(work, handle.stream)
            assert (launch is None) == (device.kind == "emulated")
            for target, source in ((problem.x, other.x), (problem.w, other.w)):
                device.copy_within(target.ptr, source.ptr, source.nbytes, handle.stream)
            handle.synchronize()
            fill(out, 0xFF)
            (launch or work)()
            other.assert_right(out, row.algorithm)


@pytest.mark.parametrize("way", ["limit", "refused", "layout"])
def test_a_plan_that_fails_leaves_nothing(handle: dnn.Handle, way: str) -> None:
    """The fixture looks for descriptors that are still open."""
    problem = Problem(handle, X, W)
    row = {"limit": result("NHWC"), "refused": result("NHWC", "FFT"), "layout": result("NDHWC")}[
        way
    ]
    with pytest.raises((dnn.WorkspaceLimitError, dnn.NotSupportedError, dnn.ArgumentError)):
        dnn.convolution_forward.plan(
            handle,
            problem.x,
            problem.w,
            problem.conv,
            algorithm=row,
            workspace_limit=0 if way == "limit" else None,
        )


@pytest.mark.parametrize("geometry", ["1d", "3d"])
def test_nhwc_goes_with_every_rank(handle: dnn.Handle, geometry: str) -> None:
    x_shape, w_shape, options = GEOMETRIES[geometry]
    problem = Problem(handle, x_shape, w_shape, **options)
    converted = problem.run(algorithm=result(LAST[len(x_shape)]))
    y = problem.run(algorithm=result("NHWC"))
    problem.assert_right(y, PRECOMP)
    np.testing.assert_array_equal(y.numpy(), converted.numpy())


def test_vectors_stay_as_they_are(handle: dnn.Handle) -> None:
    problem = Problem(handle, (2, 64, 7, 9), (32, 64, 3, 3), "int8x4", padding=1)
    for out in (handle.empty(problem.y_shape, "int8x4"), handle.empty(problem.y_shape)):
        problem.run(algorithm=result("NCHW_VECT_C", math_type="DEFAULT"), out=out)
        problem.assert_right(out, PRECOMP)


def test_int8(handle: dnn.Handle) -> None:
    """cuDNN convolves int8 in NHWC only; beta would be added to a rounded and saturated result."""
    problem = Problem(handle, (2, 64, 7, 9), (32, 64, 3, 3), "int8", padding=1)
    assert (np.abs(problem.sums) > 127).any()  # saturation is seen
    row = result("NHWC", math_type="DEFAULT")
    with pytest.raises(dnn.NotSupportedError):
        problem.run(algorithm=result("", math_type="DEFAULT"))
    problem.assert_right(problem.run(algorithm=row), row.algorithm)
    out = handle.array(problem.old_host)
    with pytest.raises(dnn.ArgumentError, match=r"beta=0\.5 with algorithm\.layout='NHWC'"):
        problem.run(algorithm=row, out=out, beta=0.5)
    np.testing.assert_array_equal(out.numpy(), problem.old_host)
    old = np.random.default_rng(1).standard_normal(problem.y_shape).astype(np.float32)
    y = problem.run(algorithm=row, out=handle.array(old), beta=0.5)
    problem.assert_right(y, row.algorithm, beta=0.5, old=old)
