"""The layout as a part of the choice: conversions that are tuned, implied, or made once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.ndimage import correlate
from tolerances import assert_close

import cudnnlite as dnn

from .problems import LAST, Problem, fill, memory_of, poisoned
from .test_convolution_backward import Case as Gradient
from .test_fused_convolution import Fused

X, W = (2, 8, 9, 11), (6, 8, 3, 2)
MIXED = [("NCHW", "NHWC"), ("NHWC", "NCHW")]
# The images have 4 MiB in float32: from there on an untuned call converts.
DEPTHWISE = ((1, 16, 256, 257), (16, 1, 5, 5), {"padding": 2, "groups": 16})


def tuned(handle: dnn.Handle, problem: Any, **policy: Any) -> dnn.AlgorithmTable:
    """Return the candidates for a problem, those with conversions among them."""
    conditions = {"layouts": ("NCHW", "NHWC"), "objective": "device", **policy}
    with dnn.Tuner(handle, ":memory:", dnn.TuningPolicy(**conditions)) as tuner:
        return tuner.tune(problem)


# ---------------------------------------------------------------- tuned


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_engines_in_the_other_layout(handle: dnn.Handle, dtype: str, layout: str) -> None:
    problem = Problem(handle, X, W, dtype, layout, padding=1, math_type="fma")
    w = dnn.FilterSpec(W, dtype, layout)
    table = tuned(
        handle,
        dnn.convolution_forward.problem(problem.x.spec, w, problem.conv),
        interface="graph",
    )
    converted = [row for row in table if row.ok and row.layout]
    assert converted
    for row in converted:
        assert isinstance(row.algorithm, dnn.types.Engine)
        assert row.workspace >= problem.x.nbytes + problem.w.nbytes
        problem.assert_right(problem.run(algorithm=row), row.algorithm, math_type=row.math_type)
        options: Any = {"algorithm": row, "workspace_limit": row.workspace - 1}
        with pytest.raises(dnn.WorkspaceLimitError, match="converted operands included"):
            problem.run(**options)


@pytest.mark.parametrize("rank", [3, 5])
def test_engines_of_other_ranks(handle: dnn.Handle, rank: int) -> None:
    image, taps = (2, 4, 5, 6, 7)[:rank], (6, 4, 3, 3, 3)[:rank]
    problem = Problem(handle, image, taps, "float16", padding=1)
    table = tuned(
        handle,
        dnn.convolution_forward.problem(
            problem.x.spec, dnn.FilterSpec(taps, "float16"), problem.conv
        ),
    )
    converted = [row for row in table if row.ok and row.layout == LAST[rank]]
    assert converted
    for row in converted:
        problem.assert_right(problem.run(algorithm=row), row.algorithm, math_type=row.math_type)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_fused_convolutions(handle: dnn.Handle, layout: str) -> None:
    """The bias fits every layout; z, which is added, is converted, and may be `out`."""
    fused = Fused(handle, "float16", layout)
    for addition, scalars in (({}, {}), ({"z": fused.z}, {"alpha2": -0.5})):
        problem = dnn.convolution_bias_activation_forward.problem(
            *fused.operands, fused.conv, "relu", **addition, **scalars
        )
        converted = [row for row in tuned(handle, problem) if row.ok and row.layout]
        assert converted
        for row in converted:
            options: Any = {**addition, **scalars, "algorithm": row}
            y = dnn.convolution_bias_activation_forward(
                handle, *fused.operands, fused.conv, "relu", out=fused.out(), **options
            )
            fused.assert_right(y, "relu", **scalars)
            if addition:
                out = handle.array(fused.z_host, layout=layout)
                options["z"] = out
                y = dnn.convolution_bias_activation_forward(
                    handle, *fused.operands, fused.conv, "relu", out=out, **options
                )
                fused.assert_right(y, "relu", **scalars)


def test_a_bias_and_the_old_values(handle: dnn.Handle) -> None:
    """The conversion back adds beta * out: C takes the old values under two names."""
    fused = Fused(handle)
    problem = fused.problem
    choices = {"interface": "descriptor", "bias": fused.bias, "beta": -0.5}
    row = dnn.AlgorithmResult(
        dnn.enums.ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM, dnn.MathType.FMA, layout="NHWC"
    )
    out = handle.array(problem.old_host)
    y = problem.run(algorithm=row, out=out, **choices)
    expected = problem.expected(beta=-0.5) + fused.bias_host.astype(np.float64)
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-4)


def test_a_limit_of_0_converts_nothing(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1)
    table = tuned(
        handle,
        dnn.convolution_forward.problem(problem.x.spec, dnn.FilterSpec(W), problem.conv),
        workspace_limit=0,
    )
    converted = [row for row in table if row.layout and row.algorithm == dnn.types.Engine(0)]
    assert all("the limit is 0 B" in row.why_not for row in converted)
    assert not any(row.ok for row in table if row.layout)


def test_the_default_tries_layouts_where_the_bandwidth_is_known(handle: dnn.Handle) -> None:
    problem = dnn.convolution_forward.problem(
        dnn.TensorSpec((4, 64, 28, 28)), dnn.FilterSpec((64, 64, 3, 3)), dnn.ConvolutionSpec(1)
    )
    layouts = {row.layout for row in tuned(handle, problem, layouts=None)}
    assert layouts == ({"", "NHWC"} if handle.device.kind == "cuda" else {""})
    assert {row.layout for row in tuned(handle, problem, layouts=())} == {""}


# ---------------------------------------------------------------- a filter in another layout


@pytest.mark.parametrize(("images", "filter_"), MIXED)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_filter_whose_layout_is_not_that_of_the_images(
    handle: dnn.Handle, dtype: str, images: str, filter_: str
) -> None:
    problem = Problem(handle, X, W, dtype, images, w_layout=filter_, padding=1, math_type="fma")
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
        y = plan(problem.x, problem.w, out=poisoned(handle, problem.output_spec))
        problem.assert_right(y, plan.choice.algorithm)
        if images == "NCHW":  # the others are served without a conversion
            assert plan.choice.layout == filter_
            assert plan.choice.conversions == ("x", "y")
            assert "\n  in NHWC: converts x, y" in str(plan.choice)
            assert plan.workspace >= problem.x.nbytes + y.nbytes
        with dnn.trace() as trace:
            plan(problem.x, problem.w)
        functions = [call.function for call in trace.calls]
        assert functions.count("cudnnTransformTensor") == len(plan.choice.conversions)
    out = handle.array(problem.old_host)
    problem.assert_right(problem.run(beta=0.5, out=out), dnn.types.Engine(0), beta=0.5)
    with dnn.autotuned(handle, cache=":memory:"):
        problem.assert_right(problem.run(), plan.choice.algorithm)


@pytest.mark.parametrize("kind", ["data", "filter"])
def test_gradients_with_a_filter_in_another_layout(handle: dnn.Handle, kind: str) -> None:
    case = Gradient(handle, kind, (X, W, {"padding": 1}))
    if kind == "data":
        case.arrays[0] = handle.array(case.arrays[0].numpy(), layout="NHWC")
        case.check(case.call())
        return
    case.spec = dnn.TensorSpec(W, "float32", "NHWC")
    case.check(case.call(out=case.fresh()))
    case.check(case.call(out=case.fresh(beta=2.0), beta=2.0), beta=2.0)


def test_misaligned_operands_with_a_filter_in_another_layout(handle: dnn.Handle) -> None:
    """An engine reads the filter where it lies, so that it has to be aligned, or is copied."""
    problem = Problem(handle, X, W, "float16", w_layout="NHWC", padding=1)
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
        for operands in (
            (shifted(handle, problem.x), problem.w),
            (problem.x, shifted(handle, problem.w)),
        ):
            y = plan(*operands, out=poisoned(handle, problem.output_spec))
            problem.assert_right(y, plan.choice.algorithm)


def shifted(handle: dnn.Handle, array: dnn.DeviceArray) -> dnn.DeviceArray:
    """Return a copy that begins two bytes behind an aligned address."""
    memory = handle.empty((array.nbytes + 2,), "uint8")
    copy = dnn.DeviceArray(array.spec, memory.device, memory.ptr + 2, memory, handle.stream)
    handle.device.copy_in(copy.ptr, memory_of(array), handle.stream)
    handle.device.synchronize()
    return copy


def test_integers_with_beta_are_not_converted(handle: dnn.Handle) -> None:
    """They would be rounded before the old values are added."""
    problem = Problem(handle, X, (8, 8, 3, 3), "int8", w_layout="NHWC", padding=1)
    with pytest.raises(dnn.NotSupportedError, match="int8 runs with the channels last"):
        problem.run(beta=0.5, out=handle.array(problem.old_host))


def test_an_algorithm_that_is_named_gets_the_operands_as_they_are(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, w_layout="NHWC", padding=1)
    with pytest.raises(dnn.NotSupportedError, match="give both in one layout"):
        problem.run(algorithm="IMPLICIT_GEMM")


# ---------------------------------------------------------------- untuned depthwise convolutions


@pytest.mark.parametrize("kind", ["forward", "data"])
def test_an_untuned_depthwise_convolution_is_converted(handle: dnn.Handle, kind: str) -> None:
    images, taps, conv = depthwise_operands(handle)
    function: Any = dnn.convolution_forward
    operands = (images, taps)
    correlates_with = taps.numpy().astype(np.float64)
    if kind == "data":
        function, operands = dnn.convolution_backward_data, (taps, images)
        correlates_with = correlates_with[..., ::-1, ::-1]
    expected = [
        correlate(plane, weights, mode="constant")
        for plane, weights in zip(
            images.numpy()[0].astype(np.float64), correlates_with[:, 0], strict=True
        )
    ]
    with function.plan(handle, *operands, conv) as plan:
        assert plan.choice.layout == "NHWC"
        assert plan.workspace >= 2 * images.nbytes
        y = plan(*operands, out=poisoned(handle, images.spec))
        assert_close(y.numpy()[0], np.stack(expected), 1e-5)
    limit = 2 * images.nbytes - 1
    with function.plan(handle, *operands, conv, workspace_limit=limit) as plan:
        assert plan.choice.layout == ""
        assert plan.workspace <= limit
    for interface in ("graph", "descriptor"):
        with function.plan(handle, *operands, conv, interface=interface) as plan:
            assert plan.choice.layout == ""
        assert plan.choice.conversions == ()


def depthwise_operands(handle: dnn.Handle) -> tuple[dnn.DeviceArray, dnn.DeviceArray, Any]:
    """Return images, a filter and options for which an untuned call converts."""
    x_shape, w_shape, options = DEPTHWISE
    rng = np.random.default_rng(0)
    images = handle.array(rng.standard_normal(x_shape).astype(np.float32))
    taps = handle.array(rng.standard_normal(w_shape).astype(np.float32))
    return images, taps, dnn.ConvolutionSpec(math_type="fma", **options)


@pytest.mark.parametrize(
    "change", ["stride", "dilation", "taps", "size", "float16", "NHWC", "multiplier", "beta"]
)
def test_other_untuned_convolutions_are_not_converted(handle: dnn.Handle, change: str) -> None:
    x_shape, w_shape, options = DEPTHWISE
    scalars = {"beta": 1.0} if change == "beta" else {}
    dtype = "float16" if change == "float16" else "float32"
    if change in ("stride", "dilation"):
        options = {**options, change: 2}
    shapes = {"taps": (x_shape, (16, 1, 3, 3)), "size": ((1, 16, 128, 128), w_shape)}
    shapes["multiplier"] = (x_shape, (32, 1, 5, 5))
    x_shape, w_shape = shapes.get(change, (x_shape, w_shape))
    layout = "NHWC" if change == "NHWC" else "NCHW"
    x = dnn.TensorSpec(x_shape, dtype, layout)
    w = dnn.FilterSpec(w_shape, dtype, layout)
    conv = dnn.ConvolutionSpec(**options)
    with dnn.convolution_forward.plan(handle, x, w, conv, **scalars) as plan:
        assert plan.choice.layout == ""


# ---------------------------------------------------------------- a filter that is converted once


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_filter_is_converted_once(handle: dnn.Handle, dtype: str) -> None:
    """Tensor cores read it with the channels last; changes of the original are not seen."""
    problem = Problem(handle, X, W, dtype, padding=1)
    w = dnn.convolution_forward.convert_filter(handle, problem.x, problem.w, problem.conv)
    assert w.spec == dnn.TensorSpec(W, dtype, "NHWC")
    np.testing.assert_array_equal(w.numpy(), problem.w_host)
    fill(problem.w, 0)
    y = dnn.convolution_forward(handle, problem.x, w, problem.conv)
    problem.assert_right(y, dnn.types.Engine(0), math_type=dnn.MathType.DEFAULT)
    assert dnn.convolution_forward.convert_filter(handle, problem.x.spec, w, problem.conv) is w
    gradient = dnn.convolution_backward_data.convert_filter(handle, w, y, problem.conv)
    assert gradient is w


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
def test_a_tuner_that_measures_nothing_does_not_choose_the_layout(handle: dnn.Handle) -> None:
    """What a policy allows has no times to compare."""
    problem = Problem(handle, X, W, "float16", padding=1)
    policy = dnn.TuningPolicy(workspace_limit="1 GiB")
    with dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False):
        w = dnn.convolution_forward.convert_filter(handle, problem.x, problem.w, problem.conv)
    assert w.spec.layout == "NHWC"


def test_a_filter_for_other_arithmetic_stays(handle: dnn.Handle) -> None:
    """True float32 and groups have no engines for tensor cores, and integers have one layout."""
    for dtype, options in (
        ("float32", {"math_type": "fma"}),
        ("float16", {"groups": 2}),
        ("float64", {}),
    ):
        w_shape = (6, 8 // options.get("groups", 1), 3, 2)
        problem = Problem(handle, X, w_shape, dtype, **options)
        w = dnn.convolution_forward.convert_filter(handle, problem.x, problem.w, problem.conv)
        assert w is problem.w


def test_a_tuner_measures_both_layouts_of_a_filter(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        w = dnn.convolution_forward.convert_filter(handle, problem.x, problem.w, problem.conv)
        assert tuner.measured == 2
        y = dnn.convolution_forward(handle, problem.x, w, problem.conv)
        assert tuner.measured == 2
    problem.assert_right(y, dnn.types.Engine(0))
