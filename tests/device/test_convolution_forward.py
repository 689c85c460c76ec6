"""`convolution_forward` gives the right numbers.

The tests vary the type, the layout, the geometry, the arithmetic and the algorithm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.extents import each_pair
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tolerances import assert_close

import cudnnlite as dnn

from .problems import (
    ALGORITHMS,
    FIRST,
    FLOATS,
    LAST,
    PATTERN,
    UNSUPPORTED,
    Problem,
    gap_mask,
    memory_of,
    poisoned,
    upload,
    with_gaps,
)

EXAMPLES = json.loads((Path(__file__).parents[1] / "data" / "worked_examples.json").read_text())
MATH_TYPES = ("DEFAULT", "FMA", "TENSOR_OP", "TENSOR_OP_ALLOW_CONVERSION")

# No two axes of one array are alike, so that a swap shows.
GEOMETRIES = {
    "2d": ((2, 4, 9, 11), (6, 4, 3, 2), {}),
    "2d_padding": ((2, 4, 9, 11), (6, 4, 3, 2), {"padding": (1, 3)}),
    "2d_stride": ((2, 4, 9, 11), (6, 4, 3, 2), {"stride": (2, 3)}),
    "2d_dilation": ((2, 4, 9, 11), (6, 4, 3, 2), {"dilation": (2, 3)}),
    "2d_groups": ((2, 4, 9, 11), (6, 2, 3, 2), {"groups": 2}),
    "2d_depthwise": ((2, 6, 9, 11), (6, 1, 3, 2), {"groups": 6, "padding": 1}),
    "2d_depthwise_twice": ((2, 6, 9, 11), (12, 1, 3, 2), {"groups": 6, "stride": 2}),
    "2d_convolution": ((2, 4, 9, 11), (6, 4, 3, 2), {"mode": "convolution", "padding": (0, 1)}),
    "2d_everything": (
        (3, 8, 13, 11),
        (6, 4, 2, 3),
        {
            "padding": (2, 1),
            "stride": (1, 2),
            "dilation": (3, 2),
            "groups": 2,
            "mode": "convolution",
        },
    ),
    "1x1": ((2, 4, 9, 11), (6, 4, 1, 1), {}),
    "one_channel": ((2, 1, 9, 11), (6, 1, 3, 2), {"padding": 1}),
    "one_filter": ((2, 4, 9, 11), (1, 4, 3, 2), {"padding": 1}),
    "one_pixel_out": ((2, 4, 5, 3), (6, 4, 5, 3), {}),
    "one_pixel_in": ((2, 4, 1, 1), (6, 4, 3, 3), {"padding": 1}),
    "1d": ((2, 4, 17), (6, 4, 3), {"padding": 1}),
    "1d_everything": (
        (3, 8, 29),
        (6, 4, 4),
        {"padding": 2, "stride": 3, "dilation": 2, "groups": 2, "mode": "convolution"},
    ),
    "3d": ((2, 4, 5, 6, 7), (6, 4, 3, 2, 3), {"padding": (1, 0, 1)}),
    "3d_everything": (
        (2, 8, 9, 8, 7),
        (6, 4, 3, 2, 3),
        {
            "padding": (1, 0, 2),
            "stride": (2, 1, 1),
            "dilation": (1, 2, 2),
            "groups": 2,
            "mode": "convolution",
        },
    ),
}


def layout_of(shape: tuple[int, ...], channels: str) -> str:
    return (FIRST if channels == "first" else LAST)[len(shape)]


def may_be_refused(geometry: str, dtype: str, channels: str) -> bool:
    """Tell where an H200 was seen to support nothing, or nobody has looked."""
    return channels == "last" and (
        (geometry.startswith("3d") and dtype == "float64") or geometry.endswith("everything")
    )


@each_pair(geometry=GEOMETRIES, dtype=FLOATS, channels=["first", "last"])
def test_geometry(handle: dnn.Handle, geometry: str, dtype: str, channels: str) -> None:
    x_shape, w_shape, options = GEOMETRIES[geometry]
    problem = Problem(handle, x_shape, w_shape, dtype, layout_of(x_shape, channels), **options)
    try:
        y = dnn.convolution_forward(handle, problem.x, problem.w, problem.conv)
    except UNSUPPORTED:
        assert may_be_refused(geometry, dtype, channels)
        return
    assert y.spec.dtype == problem.x.spec.dtype
    assert y.spec.fits(problem.x.layout)
    problem.assert_right(y, problem.choice())


@pytest.mark.parametrize("channels", ["first", "last"])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_a_single_channel_keeps_one_layout(handle: dnn.Handle, rank: int, channels: str) -> None:
    """With one channel both layouts fit.

    x, w and y must be read in the same one, because cuDNN refuses different ones.
    """
    x_shape, w_shape = (2, 1, 7, 8, 9)[:rank], (6, 1, 3, 2, 3)[:rank]
    problem = Problem(handle, x_shape, w_shape, "float32", layout_of(x_shape, channels))
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
        assert (plan.w.layout, plan.y.layout) == (problem.x.layout, problem.x.layout)


@pytest.mark.parametrize("channels", ["first", "last"])
@pytest.mark.parametrize("math_type", MATH_TYPES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "shapes",
    [((2, 8, 12, 14), (16, 8, 3, 3)), ((2, 64, 9, 11), (32, 64, 1, 1))],
    ids=["3x3", "1x1"],
)
def test_math_type(
    handle: dnn.Handle, shapes: Any, dtype: str, math_type: str, channels: str
) -> None:
    layout = layout_of(shapes[0], channels)
    problem = Problem(handle, *shapes, dtype, layout, math_type=math_type, padding=1)
    problem.check()


VARIANTS = {
    "float32": ("float32", "first", "DEFAULT"),
    "float32_fma": ("float32", "first", "FMA"),
    "float32_fma_last": ("float32", "last", "FMA"),
    "float64": ("float64", "first", "DEFAULT"),
    "float16": ("float16", "first", "DEFAULT"),
    "float16_last": ("float16", "last", "DEFAULT"),
    "bfloat16": ("bfloat16", "first", "DEFAULT"),
}
FORCED = {
    "3x3": ((2, 8, 12, 14), (6, 8, 3, 3), {"padding": 1}),
    "5x5": ((2, 8, 12, 14), (6, 8, 5, 5), {"padding": 2, "mode": "convolution"}),
    "7x7_stride2": ((2, 3, 19, 22), (8, 3, 7, 7), {"padding": 3, "stride": 2}),
    "1x3": ((2, 8, 12, 14), (6, 8, 1, 3), {"padding": (0, 1)}),
    "groups": ((2, 8, 12, 14), (6, 4, 3, 3), {"padding": 1, "groups": 2}),
    "1d": ((2, 8, 33), (6, 8, 3), {"padding": 1}),
    "3d": ((2, 8, 6, 7, 9), (6, 8, 3, 3, 3), {"padding": 1}),
}


@each_pair(case=FORCED, variant=VARIANTS, algorithm=ALGORITHMS)
def test_forced_algorithm_is_right_or_refused(
    handle: dnn.Handle, case: str, variant: str, algorithm: Any
) -> None:
    x_shape, w_shape, options = FORCED[case]
    dtype, channels, math_type = VARIANTS[variant]
    problem = Problem(
        handle,
        x_shape,
        w_shape,
        dtype,
        layout_of(x_shape, channels),
        math_type=math_type,
        **options,
    )
    try:
        y = problem.run(algorithm=algorithm)
    except dnn.NotSupportedError:
        assert (
            algorithm.name != "IMPLICIT_PRECOMP_GEMM"
        )  # which can do all of these, so that not everything may be refused
        return
    problem.assert_right(y, algorithm)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("algorithm", ["IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM"])
def test_the_gemms_support_the_plainest_case(
    handle: dnn.Handle, dtype: str, algorithm: str
) -> None:
    problem = Problem(handle, (2, 8, 12, 14), (6, 8, 3, 3), dtype, padding=1)
    problem.assert_right(problem.run(algorithm=algorithm), dnn.enums.ConvolutionFwdAlgo[algorithm])


def test_an_algorithm_has_three_spellings(handle: dnn.Handle) -> None:
    problem = Problem(handle, (2, 8, 12, 14), (6, 8, 3, 3), padding=1, math_type="fma")
    member = dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM
    result = dnn.AlgorithmResult(member, dnn.MathType.FMA)
    for spelling in (member, "IMPLICIT_GEMM", "implicit_gemm", result):
        problem.assert_right(problem.run(algorithm=spelling), member)


def test_a_result_brings_its_math_type(handle: dnn.Handle) -> None:
    problem = Problem(handle, (2, 64, 12, 14), (32, 64, 3, 3), layout="NHWC", padding=1)
    precise = dnn.AlgorithmResult(
        dnn.enums.ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM, dnn.MathType.FMA
    )
    problem.assert_right(
        problem.run(algorithm=precise), precise.algorithm, math_type=dnn.MathType.FMA
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("alpha", "beta"), [(1.0, 0.0), (-1.75, 0.0), (0.6, 1.0), (1.0, -0.3), (0.0, 0.7), (0.0, 0.0)]
)
def test_alpha_and_beta(handle: dnn.Handle, dtype: str, alpha: float, beta: float) -> None:
    problem = Problem(handle, (2, 4, 9, 11), (6, 4, 3, 2), dtype, padding=1, math_type="fma")
    out = handle.array(problem.old_host) if beta else poisoned(handle, problem.output_spec)
    y = problem.run(alpha=alpha, beta=beta, out=out)
    assert y is out
    if alpha == beta == 0:
        assert not y.numpy().astype(float).any()
    else:
        problem.assert_right(y, problem.choice(), alpha=alpha, beta=beta)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_beta_0_does_not_read_the_output(handle: dnn.Handle, algorithm: Any) -> None:
    problem = Problem(handle, (2, 8, 12, 14), (6, 8, 3, 3), padding=1, math_type="fma")
    for alpha in (1.0, 0.5):
        out = poisoned(handle, problem.output_spec)
        assert np.isnan(out.numpy()).all()
        try:
            problem.run(out=out, alpha=alpha, algorithm=algorithm)
        except dnn.NotSupportedError:
            return
        problem.assert_right(out, algorithm, alpha=alpha)


def test_scalars_of_float64_are_doubles(handle: dnn.Handle) -> None:
    """1/3 in float32 would be off by 3e-8; the sums of small integers are exact."""
    rng = np.random.default_rng(0)
    x, w = (
        rng.integers(1, 9, (2, 4, 9, 11)).astype(float),
        rng.integers(1, 9, (6, 4, 3, 2)).astype(float),
    )
    alpha, beta = 1 / 3, 1 / 7
    device_x, device_w = handle.array(x), handle.array(w)
    sums = dnn.convolution_forward(handle, device_x, device_w, algorithm="IMPLICIT_GEMM").numpy()
    np.testing.assert_array_equal(sums, np.rint(sums))
    y = dnn.convolution_forward(handle, device_x, device_w, alpha=alpha, algorithm="IMPLICIT_GEMM")
    np.testing.assert_allclose(y.numpy(), alpha * sums, rtol=1e-15, atol=0)
    old = rng.integers(1, 9, sums.shape).astype(float)
    out = handle.array(old)
    dnn.convolution_forward(
        handle, device_x, device_w, alpha=alpha, beta=beta, out=out, algorithm="IMPLICIT_GEMM"
    )
    np.testing.assert_allclose(out.numpy(), alpha * sums + beta * old, rtol=1e-15, atol=0)


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("y_layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("x_layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_out_of_any_layout(
    handle: dnn.Handle, dtype: str, x_layout: str, y_layout: str, beta: float
) -> None:
    problem = Problem(handle, (2, 8, 9, 11), (6, 8, 3, 2), dtype, x_layout, padding=1)
    spec = dnn.TensorSpec(problem.y_shape, dtype, y_layout)
    out = handle.array(problem.old_host, layout=y_layout) if beta else poisoned(handle, spec)
    problem.check(out=out, beta=beta)
    assert out.layout == y_layout


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rank", [4, 5])
def test_out_with_gaps_keeps_them(
    handle: dnn.Handle, rank: int, dtype: str, last: bool, beta: float
) -> None:
    x_shape, w_shape = (2, 4, 5, 7, 6)[:rank], (6, 4, 3, 2, 3)[:rank]
    problem = Problem(handle, x_shape, w_shape, dtype, padding=1)
    spec = with_gaps(problem.y_shape, dtype, last=last)
    out = upload(handle, spec, problem.old_host) if beta else handle.empty(spec)
    if not beta:
        nan = np.full(problem.y_shape, np.nan).astype(out.dtype)
        out = upload(handle, spec, nan)
    try:
        problem.check(out=out, beta=beta)
    except UNSUPPORTED:
        assert last or rank == 5
    gaps = gap_mask(spec)
    assert gaps.any()
    assert (memory_of(out)[gaps] == PATTERN).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_input_with_gaps(handle: dnn.Handle, dtype: str) -> None:
    """What lies in the gaps is NaN and must not be read."""
    problem = Problem(handle, (2, 4, 9, 11), (6, 4, 3, 2), dtype, padding=1)
    problem.x = upload(handle, with_gaps((2, 4, 9, 11), dtype), problem.x_host, gaps=0xFF)
    y = problem.run()
    assert y.layout == "NCHW"
    problem.assert_right(y, problem.choice(out=y))


def test_part_of_a_batch(handle: dnn.Handle) -> None:
    """Every second image of a larger array, in and out."""
    problem = Problem(handle, (3, 4, 9, 11), (6, 4, 3, 2), padding=1)
    x_spec = dnn.TensorSpec((3, 4, 9, 11), strides=(2 * 4 * 9 * 11, 9 * 11, 11, 1))
    _, k, p, q = problem.y_shape
    y_spec = dnn.TensorSpec(problem.y_shape, strides=(2 * k * p * q, p * q, q, 1))
    problem.x = upload(handle, x_spec, problem.x_host, gaps=0xFF)
    out = upload(handle, y_spec, np.full(problem.y_shape, np.nan, np.float32))
    problem.check(out=out)
    assert (memory_of(out)[gap_mask(y_spec)] == PATTERN).all()


# int8 is computed bit for bit, or refused. An H200 supports IMPLICIT_GEMM and IMPLICIT_PRECOMP_GEMM
# on these.
INTEGER = {
    "int8_to_int8": ("int8", "NHWC", "int8", "NHWC"),
    "int8_to_float32": ("int8", "NHWC", "float32", "NHWC"),
    "int8x4_to_int8x4": ("int8x4", None, "int8x4", None),
    "int8x4_to_float32": ("int8x4", None, "float32", "NCHW"),
    "int8x32_to_int8x32": ("int8x32", None, "int8x32", None),
    "int8x32_to_float32": ("int8x32", None, "float32", "NCHW"),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
@pytest.mark.parametrize("case", INTEGER)
def test_integers_are_exact_or_refused(handle: dnn.Handle, case: str, algorithm: Any) -> None:
    dtype, layout, y_dtype, y_layout = INTEGER[case]
    problem = Problem(handle, (2, 64, 7, 9), (32, 64, 3, 3), dtype, layout, padding=1)
    out = poisoned(handle, dnn.TensorSpec(problem.y_shape, y_dtype, y_layout))
    try:
        y = problem.run(out=out, algorithm=algorithm)
    except dnn.NotSupportedError:
        assert (
            "GEMM" not in algorithm.name or algorithm.name == "GEMM" or case == "int8x32_to_float32"
        )
        return
    if y_dtype != "float32":
        assert (np.abs(problem.sums) > 127).any()  # saturation is seen
    problem.assert_right(y, algorithm)


@pytest.mark.parametrize("dtype", ["int8", "int8x4"])
def test_integers_without_out_give_integers(handle: dnn.Handle, dtype: str) -> None:
    problem = Problem(
        handle, (2, 8, 7, 9), (12, 8, 3, 2), dtype, "NHWC" if dtype == "int8" else None
    )
    y = dnn.convolution_forward(
        handle, problem.x, problem.w, problem.conv, algorithm="IMPLICIT_PRECOMP_GEMM"
    )
    assert y.spec.dtype == problem.x.spec.dtype
    problem.assert_right(y, dnn.enums.ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM)


def test_integers_scaled_to_float32(handle: dnn.Handle) -> None:
    problem = Problem(handle, (2, 8, 7, 9), (12, 8, 3, 2), "int8", "NHWC")
    old = np.random.default_rng(1).standard_normal(problem.y_shape).astype(np.float32)
    out = handle.array(old, layout="NHWC")
    y = problem.run(alpha=0.3, beta=0.7, out=out, algorithm="IMPLICIT_PRECOMP_GEMM")
    problem.assert_right(
        y, dnn.enums.ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM, alpha=0.3, beta=0.7, old=old
    )


# Worked examples with published answers.


def run(handle: dnn.Handle, x: Any, w: Any, **options: Any) -> Any:
    device_x, device_w = handle.array(np.float32(x)), handle.array(np.float32(w))
    conv = dnn.ConvolutionSpec(math_type="fma", **options)
    return dnn.convolution_forward(handle, device_x, device_w, conv).numpy()


def test_example_of_a_single_value(handle: dnn.Handle) -> None:
    example = EXAMPLES["convolution_single_value"]
    y = run(handle, [[example["patch"]]], [[example["kernel"]]])
    np.testing.assert_allclose(y, [[[[example["result"]]]]], atol=1e-4)


@pytest.mark.parametrize("c", [1.0, -2.5])
def test_example_of_the_edge_kernel_on_a_constant_image(handle: dnn.Handle, c: float) -> None:
    example = EXAMPLES["edge_kernel"]
    rule = {
        where: float(text.removesuffix("c")) * c
        for where, text in example["constant_image_c"].items()
    }
    expected = np.full((2, 3, 7, 9), rule["interior"])
    expected[..., [0, -1], :] = expected[..., [0, -1]] = rule["edge"]
    expected[..., [0, 0, -1, -1], [0, -1, 0, -1]] = rule["corner"]
    y = run(
        handle,
        np.full((2, 3, 7, 9), c),
        np.broadcast_to(np.float32(example["kernel"]), (3, 3, 3, 3)),
        padding=1,
    )
    np.testing.assert_allclose(y, expected, atol=1e-4)


def test_example_of_the_edge_kernel_on_a_square(handle: dnn.Handle) -> None:
    example = EXAMPLES["edge_kernel"]
    image = np.zeros((1, 3, 6, 6))
    image[..., 2:4, 2:4] = 1
    y = run(handle, image, np.broadcast_to(np.float32(example["kernel"]), (3, 3, 3, 3)), padding=1)
    for channel in range(3):
        np.testing.assert_allclose(y[0, channel], example["check"]["y_channel0"], atol=1e-4)


TEXTBOOK = {case["name"]: case for case in EXAMPLES["convolution_textbook"]["cases"]}


@pytest.mark.parametrize("name", ["corr2d", "multi_in", "multi_in_out", "edge"])
def test_example_of_the_textbook(handle: dnn.Handle, name: str) -> None:
    case = TEXTBOOK[name]
    y = run(handle, case["x"], case["w"])
    np.testing.assert_allclose(y, case["y"], atol=1e-4)
    if not isinstance(case["published"], str):
        np.testing.assert_allclose(y.squeeze(), np.squeeze(case["published"]), atol=1e-4)


# name: (x shape, w shape, ConvolutionSpec options)
SAME = {
    "odd filter": ((2, 8, 9, 12), (8, 8, 3, 3), {}),
    "even filter": ((2, 8, 9, 12), (8, 8, 4, 2), {}),
    "stride": ((2, 8, 9, 12), (8, 8, 3, 2), {"stride": (2, 3)}),
    "stride beyond the filter": ((2, 8, 9, 12), (8, 8, 1, 1), {"stride": 2}),
    "dilated groups": ((2, 8, 9, 12), (8, 4, 2, 3), {"dilation": (3, 2), "groups": 2}),
    "1-D": ((2, 8, 17), (8, 8, 4), {"stride": 3}),
}


@pytest.mark.parametrize("name", SAME)
def test_same_padding_is_onnx_s(handle: dnn.Handle, name: str) -> None:
    """SAME_UPPER, forward and in both gradients, whose shapes it says."""
    x_shape, w_shape, options = SAME[name]
    rng = np.random.default_rng(0)
    x_host, w_host = (rng.standard_normal(shape, np.float32) for shape in (x_shape, w_shape))
    conv = dnn.ConvolutionSpec("same", math_type="fma", **options)
    spatial = len(x_shape) - 2
    plain = conv.replace(padding=0).steps(spatial)
    attributes = {"strides": plain[1], "dilations": plain[2], "group": conv.groups}
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", **attributes)
    value = {
        name: helper.make_tensor_value_info(name, TensorProto.DOUBLE, None)
        for name in ("x", "w", "y")
    }
    graph = helper.make_graph([node], "conv", [value["x"], value["w"]], [value["y"]])
    hosts = {"x": x_host.astype(np.float64), "w": w_host.astype(np.float64)}
    (expected,) = ReferenceEvaluator(helper.make_model(graph)).run(None, hosts)
    x, w = handle.array(x_host), handle.array(w_host)
    y = dnn.convolution_forward(handle, x, w, conv)
    assert_close(y.numpy(), expected, 2e-6)
    numbers = conv.for_shapes(x_shape, w_shape)
    assert numbers.padding != "same"
    problem = dnn.convolution_forward.problem(x, w, conv)
    assert problem == dnn.convolution_forward.problem(x, w, numbers)
    dx = dnn.convolution_backward_data(handle, w, y, conv, x=x)
    same_dx = dnn.convolution_backward_data(handle, w, y, numbers, x=x)
    assert_close(dx.numpy(), same_dx.numpy().astype(np.float64), 2e-6)
    dw = dnn.convolution_backward_filter(handle, x, y, conv, w=w)
    same_dw = dnn.convolution_backward_filter(handle, x, y, numbers, w=w)
    assert_close(dw.numpy(), same_dw.numpy().astype(np.float64), 2e-6)
    if max(plain[1]) == 1:
        assert dnn.convolution_backward_data.problem(w, y, conv).dx == x.spec
    result = dnn.convolution_transpose(handle, y, w, conv)
    assert result.shape == (
        *x_shape[:2],
        *(size * step for size, step in zip(y.shape[2:], plain[1], strict=True)),
    )
