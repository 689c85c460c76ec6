"""Convolution with bias, addition and activation; asymmetric padding; many calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.extents import each_pair
from oracles import onnx_convolution
from scipy.special import expit
from tolerances import assert_close

import cudnnlite as dnn
from cudnnlite.problems import convolution
from cudnnlite.problems.problem import problem_from_plain

from .problems import Problem, fill, memory_of, poisoned, random_values, upload, with_gaps
from .test_tuner import hurry

X, W = (2, 8, 9, 11), (6, 8, 3, 2)
FUNCTIONS: dict[str, Any] = {
    "relu": lambda v: np.maximum(v, 0),
    "identity": lambda v: v,
    "sigmoid": expit,
    "tanh": np.tanh,
    "clipped_relu": lambda v: np.clip(v, 0, 0.75),
    "elu": lambda v: np.where(v > 0, v, 0.5 * np.expm1(v)),
    "swish": lambda v: v * expit(1.5 * v),
}
COEFFICIENTS = {"clipped_relu": 0.75, "elu": 0.5, "swish": 1.5}
BOUNDS = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
KINDS = [
    ("float32", "NCHW"),
    ("float32", "NHWC"),
    ("float64", "NCHW"),
    ("float16", "NCHW"),
    ("float16", "NHWC"),
    ("bfloat16", "NHWC"),
]


class Fused:
    """A convolution with bias, and what may be added, with their result in float64."""

    def __init__(
        self,
        handle: dnn.Handle,
        dtype: str = "float32",
        layout: str = "NCHW",
        x: Any = X,
        w: Any = W,
        **options: Any,
    ) -> None:
        if dtype == "float32":
            options.setdefault("math_type", "fma")
        self.problem = Problem(handle, x, w, dtype, layout, **{"padding": 1, **options})
        self.handle, self.conv, rng = handle, self.problem.conv, np.random.default_rng(5)
        self.bias_host = random_values(rng, (1, w[0], *[1] * (len(x) - 2)), dtype)
        self.z_host = random_values(rng, self.problem.y_shape, dtype)
        self.bias = handle.array(self.bias_host, dtype=dtype)
        self.z = handle.array(self.z_host, dtype=dtype, layout=layout)
        self.operands = (self.problem.x, self.problem.w, self.bias)

    def expected(self, activation: str, alpha: float = 1.0, alpha2: float = 0.0) -> Any:
        """Return the result, in float64."""
        wide = (
            alpha * self.problem.sums
            + alpha2 * self.z_host.astype(np.float64)
            + self.bias_host.astype(np.float64)
        )
        return FUNCTIONS[activation](wide)

    def assert_right(self, y: Any, activation: str, **scalars: float) -> None:
        """Compare every value, relative to the largest one in sight."""
        expected = self.expected(activation, **scalars)
        largest = max(1.0, np.abs(self.expected("identity", **scalars)).max())
        error = np.abs(y.numpy().astype(np.float64) - expected).max() / largest
        assert error <= BOUNDS[self.problem.dtype], error  # a NaN that was not overwritten is none

    def out(self) -> Any:
        """Return poisoned memory for the result."""
        return poisoned(self.handle, self.problem.output_spec)


def spec_of(activation: str) -> dnn.ActivationSpec:
    return dnn.ActivationSpec(activation, COEFFICIENTS.get(activation))


# ---------------------------------------------------------------- activations


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize(("dtype", "layout"), KINDS)
def test_every_activation(handle: dnn.Handle, dtype: str, layout: str, activation: str) -> None:
    """Call in one line and by a plan, with and without an addition.

    Engines serve the call; if none does, the error says so.
    """
    fused, spec = Fused(handle, dtype, layout), spec_of(activation)
    served = activation != "swish" or layout == "NHWC"
    for addition, scalars in (
        ({}, {}),
        ({"z": fused.z}, {"alpha2": 1.0}),
        ({"z": fused.z}, {"alpha": 1.25, "alpha2": -0.5}),
    ):
        if not served or (activation == "swish" and scalars.get("alpha2") == -0.5):
            with pytest.raises(
                dnn.NotSupportedError, match="has no SWISH; allowed: RELU, IDENTITY"
            ) as error:
                dnn.convolution_bias_activation_forward(
                    handle, *fused.operands, fused.conv, spec, **addition, **scalars
                )
            assert "no engine serves" in str(error.value)
            assert error.value.function == "cudnnConvolutionBiasActivationForward"
            continue
        out = fused.out()
        y = dnn.convolution_bias_activation_forward(
            handle, *fused.operands, fused.conv, spec, **addition, **scalars, out=out
        )
        assert y is out
        fused.assert_right(y, activation, **scalars)
        with dnn.convolution_bias_activation_forward.plan(
            handle, *fused.operands, fused.conv, spec, **addition, **scalars
        ) as plan:
            assert isinstance(plan.choice.algorithm, dnn.types.Engine)
            fused.assert_right(
                plan(*fused.operands, *addition.values(), out=fused.out()), activation, **scalars
            )
            fused.assert_right(plan(*fused.operands, *addition.values()), activation, **scalars)


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize(("dtype", "layout"), KINDS)
def test_the_descriptor_call(handle: dnn.Handle, dtype: str, layout: str, activation: str) -> None:
    fused = Fused(handle, dtype, layout)
    for addition, scalars in (
        ({}, {"alpha": -1.5}),
        ({"z": fused.z}, {"alpha": 0.5, "alpha2": 2.0}),
    ):
        for options in ({"interface": "descriptor"}, {"algorithm": "IMPLICIT_PRECOMP_GEMM"}):
            with dnn.convolution_bias_activation_forward.plan(
                handle, *fused.operands, fused.conv, activation, **addition, **scalars, **options
            ) as plan:
                assert isinstance(plan.choice.algorithm, dnn.enums.ConvolutionFwdAlgo)
                if activation == "identity":
                    assert (
                        plan.choice.algorithm == dnn.enums.ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM
                    )
                fused.assert_right(
                    plan(*fused.operands, *addition.values(), out=fused.out()),
                    activation,
                    **scalars,
                )


def test_a_scalar_without_an_addition_goes_to_the_descriptor_call_and_says_so(
    handle: dnn.Handle,
) -> None:
    fused = Fused(handle)
    with dnn.convolution_bias_activation_forward.plan(
        handle, *fused.operands, fused.conv, alpha=0.5
    ) as plan:
        assert isinstance(plan.choice.algorithm, dnn.enums.ConvolutionFwdAlgo)
        assert plan.choice.remark.startswith("no engine serves: ")
        fused.assert_right(plan(*fused.operands), "relu", alpha=0.5)
    with pytest.raises(dnn.NotSupportedError, match="has no SIGMOID"):
        dnn.convolution_bias_activation_forward(
            handle, *fused.operands, fused.conv, "sigmoid", alpha=0.5
        )


@pytest.mark.parametrize("activation", [name for name in FUNCTIONS if name != "identity"])
@pytest.mark.parametrize(("dtype", "layout"), KINDS)
def test_large_values(handle: dnn.Handle, dtype: str, layout: str, activation: str) -> None:
    """cuDNN's engine for tanh behind a bias computes 0 from 44 on, and NaN a little later.

    In float64 it computes NaN from 355 on.
    """
    if activation == "swish" and layout == "NCHW":
        return
    sizes = np.array([0.01, 0.5, 1, 5, 20, 44, 45, 60, 88, 89, 400, 1e3, 3e4])
    x_host = np.resize(np.array([*sizes, *-sizes]), (2, 8, 5, 7)).astype(np.float16)
    w_host = np.eye(8).reshape(8, 8, 1, 1)
    x = handle.array(x_host, dtype=dtype, layout=layout)
    w = handle.array(w_host, dtype=dtype, layout=layout)
    bias = handle.array(np.zeros((1, 8, 1, 1)), dtype=dtype)
    conv = dnn.ConvolutionSpec(math_type="fma" if dtype == "float32" else "default")
    values = x.numpy().astype(np.float64)
    with np.errstate(over="ignore"):
        expected = FUNCTIONS[activation](values)
    for more in ({}, {"z": x, "alpha2": 1.0}):
        y = dnn.convolution_bias_activation_forward(
            handle, x, w, bias, conv, spec_of(activation), **more
        ).numpy()
        if more:
            with np.errstate(over="ignore"):
                expected = FUNCTIONS[activation](2 * values)
        rounded = expected.astype(y.dtype).astype(np.float64)
        finite = np.isfinite(rounded)
        error = np.abs(y.astype(np.float64)[finite] - rounded[finite])
        assert (error <= 2 * BOUNDS[dtype] * np.maximum(1, np.abs(rounded[finite]))).all()
        assert (y[~finite] == rounded[~finite]).all()


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_filter_in_another_layout_is_converted(handle: dnn.Handle, activation: str) -> None:
    """Conversions are made around what is one call, or two: tanh is computed by a second one."""
    fused = Fused(handle, layout="NCHW")
    x, w, bias = fused.operands
    w = handle.array(w.numpy(), layout="NHWC")
    y = dnn.convolution_bias_activation_forward(handle, x, w, bias, fused.conv, activation)
    fused.assert_right(y, activation)
    with dnn.convolution_bias_activation_forward.plan(
        handle, x, w, bias, fused.conv, activation
    ) as plan:
        assert plan.choice.conversions
        for _ in range(2):
            fused.assert_right(plan(x, w, bias, out=fused.out()), activation)


def test_what_the_descriptor_call_has_not_is_refused_by_name(handle: dnn.Handle) -> None:
    fused = Fused(handle)
    for activation, options, message in (
        (
            "identity",
            {"algorithm": "IMPLICIT_GEMM"},
            "has IDENTITY with IMPLICIT_PRECOMP_GEMM only",
        ),
        ("tanh", {"algorithm": "IMPLICIT_PRECOMP_GEMM"}, "has no TANH; allowed: RELU, IDENTITY"),
        ("elu", {"interface": "descriptor"}, "has no ELU; allowed: RELU, IDENTITY"),
    ):
        out = fused.out()
        before = memory_of(out).copy()
        with pytest.raises(dnn.NotSupportedError, match=message):
            dnn.convolution_bias_activation_forward(
                handle, *fused.operands, fused.conv, activation, out=out, **options
            )
        assert (memory_of(out) == before).all()


@pytest.mark.parametrize("interface", ["graph", "descriptor"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_nan_is_propagated_where_that_is_asked(
    handle: dnn.Handle, dtype: str, interface: str
) -> None:
    fused = Fused(handle, dtype, x=(1, 8, 4, 5), w=(8, 8, 1, 1), padding=0)
    host = fused.problem.x_host.copy()
    host[0, 0, 1, 2] = np.nan
    x = handle.array(host)
    y = dnn.convolution_bias_activation_forward(
        handle,
        x,
        *fused.operands[1:],
        fused.conv,
        dnn.ActivationSpec("relu", nan="propagate"),
        interface=interface,
    ).numpy()
    assert np.isnan(y[0, :, 1, 2]).all()
    assert np.isfinite(np.delete(y.reshape(8, -1), 1 * 5 + 2, axis=1)).all()


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("y_dtype", ["int8", "float32"])
def test_integers(handle: dnn.Handle, y_dtype: str, activation: str) -> None:
    """By the descriptor call; the bias in float32, the result rounded and saturated."""
    problem = Problem(handle, (2, 8, 9, 8), (8, 8, 3, 3), "int8", "NHWC", padding=1)
    bias_host = np.linspace(-40, 40, 8, dtype=np.float32).reshape(1, 8, 1, 1)
    bias, out = handle.array(bias_host), handle.empty(problem.y_shape, y_dtype, "NHWC")
    fill(out, 0xFF)
    expected = FUNCTIONS[activation](problem.sums + bias_host)
    if y_dtype == "int8":
        expected = np.clip(np.rint(expected), -128, 127)
    y = dnn.convolution_bias_activation_forward(
        handle, problem.x, problem.w, bias, problem.conv, activation, out=out
    ).numpy()
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=1e-6, atol=1e-5)


def test_strided_outputs(handle: dnn.Handle) -> None:
    fused = Fused(handle)
    spec = with_gaps(fused.problem.y_shape, "float32")
    for addition, scalars in (
        ({}, {}),
        ({"z": upload(handle, spec, fused.z_host)}, {"alpha2": 1.0}),
    ):
        out = upload(handle, spec, np.full(spec.shape, np.nan, np.float32))
        y = dnn.convolution_bias_activation_forward(
            handle, *fused.operands, fused.conv, **addition, **scalars, out=out
        )
        fused.assert_right(y, "relu", **scalars)


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize(("dtype", "layout"), KINDS)
def test_the_result_may_take_the_place_of_what_is_added(
    handle: dnn.Handle, dtype: str, layout: str, activation: str
) -> None:
    """As in a residual network: by an engine, and by the C function."""
    fused = Fused(handle, dtype, layout)
    for options in ({}, {"algorithm": "implicit_precomp_gemm"}):
        z = handle.array(fused.z_host, dtype=dtype, layout=layout)
        y = dnn.convolution_bias_activation_forward(
            handle, *fused.operands, fused.conv, activation, z=z, alpha2=0.5, out=z, **options
        )
        assert y is z
        fused.assert_right(y, activation, alpha2=0.5)
        z = handle.array(fused.z_host, dtype=dtype, layout=layout)
        with dnn.convolution_bias_activation_forward.plan(
            handle, *fused.operands, fused.conv, activation, z=z, alpha2=0.5, out=z, **options
        ) as plan:
            fused.assert_right(plan(*fused.operands, z, out=z), activation, alpha2=0.5)


@pytest.mark.parametrize(("dtype", "layout"), KINDS)
def test_a_bias_may_be_a_vector(handle: dnn.Handle, dtype: str, layout: str) -> None:
    """In a call, in a plan made of it, in a plan's call, and as another library's array."""
    fused = Fused(handle, dtype, layout)
    x, w, bias = fused.operands
    vector = bias.reshape(-1)
    assert vector.shape == (6,)
    function = dnn.convolution_bias_activation_forward
    out = fused.out()
    fused.assert_right(function(handle, x, w, vector, fused.conv, "relu", out=out), "relu")
    with function.plan(handle, x, w, vector, fused.conv, "relu") as plan:
        for operand in (vector, bias, vector, vector):
            out = fused.out()
            fused.assert_right(plan(x, w, operand, out=out), "relu")
        with pytest.raises(dnn.ArgumentError, match=r"bias is TensorSpec\(\(5,\)"):
            plan(x, w, vector[:5])
    with function.plan(handle, x.spec, w.spec, vector.spec, fused.conv, "relu") as plan:
        fused.assert_right(plan(x, w, vector), "relu")
    y = dnn.convolution_forward(handle, x, w, fused.conv, bias=vector)
    expected = dnn.convolution_forward(handle, x, w, fused.conv, bias=bias)
    np.testing.assert_array_equal(y.numpy(), expected.numpy())


def test_what_does_not_fit_is_refused_by_name(handle: dnn.Handle) -> None:
    fused = Fused(handle)
    x, w, bias = fused.operands
    other = handle.array(fused.z_host, layout="NHWC")
    memory = handle.empty((fused.out().size + 4,))
    out, shifted = (
        memory[start : start + fused.out().size].reshape(fused.problem.y_shape) for start in (0, 4)
    )
    fill(out, 0xFF)
    before = memory_of(out).copy()
    for operands, options, message in (
        (
            (x, w, handle.array(np.zeros((1, 5, 1, 1), np.float32))),
            {},
            "^bias has 5 values; needed: 6, one for each filter of w$",
        ),
        (
            (x, w, handle.array(np.zeros((6, 1, 1, 1), np.float32))),
            {},
            r"bias has shape \(6, 1, 1, 1\); needed: \(1, 6, 1, 1\)",
        ),
        (
            (x, w, handle.array(np.zeros(5, np.float32))),
            {},
            "^bias has 5 values; needed: 6, one for each filter of w$",
        ),
        ((x, w, handle.array(np.zeros((1, 6, 1, 1)))), {}, "bias is float64; needed: float32"),
        ((x, w, bias), {"z": x, "alpha2": 1.0}, r"z has shape .*; the result has"),
        (
            (x, w, bias),
            {"z": other, "alpha2": 1.0},
            "z is .*; needed: the layout of the result",
        ),
        ((x, w, bias), {"z": shifted, "alpha2": 1.0}, "out overlaps z in memory"),
        ((x, w, bias), {"alpha2": 1.0}, "alpha2=1.0 scales z, which is not given"),
        ((x, w, bias), {"z": fused.z, "alpha2": "much"}, "alpha2='much'"),
        ((x, w, bias), {"activation": "gelu"}, "activation='gelu'"),
    ):
        with pytest.raises(dnn.ArgumentError, match=message):
            dnn.convolution_bias_activation_forward(
                handle, *operands, fused.conv, **{"out": out, **options}
            )
    assert (memory_of(out) == before).all()


# ---------------------------------------------------------------- convolution_forward with a bias


@each_pair(
    layout=["NCHW", "NHWC"],
    dtype=["float32", "float64", "float16", "bfloat16"],
    alpha=[1.0, -2.0],
    beta=[0.0, 0.5],
    interface=[None, "graph"],
)
def test_a_bias_scalars_and_uneven_padding(
    handle: dnn.Handle, layout: str, dtype: str, alpha: float, beta: float, interface: str | None
) -> None:
    """No engine does all of it: one convolves, and cudnnAddTensor adds the bias."""
    rng = np.random.default_rng(0)
    uneven = ((0, 1), (2, 1))
    x_host, w_host, bias_host, y_host = (
        rng.integers(-4, 5, shape).astype(np.float32)
        for shape in ((2, 4, 6, 7), (8, 4, 3, 2), (1, 8, 1, 1), (2, 8, 5, 9))
    )
    convolved = onnx_convolution(x_host, w_host, uneven, (1, 1), (1, 1))
    expected = alpha * convolved + bias_host + beta * y_host
    x, w, bias = (
        handle.array(host, dtype=dtype, layout=layout) for host in (x_host, w_host, bias_host)
    )
    conv = dnn.ConvolutionSpec(padding=uneven, math_type="fma")
    is_apart = (alpha, beta) != (1.0, 0.0)
    with dnn.convolution_forward.plan(
        handle, x, w, conv, bias=bias, alpha=alpha, beta=beta, interface=interface
    ) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
        assert ("cudnnAddTensor adds the bias" in plan.choice.remark) == is_apart
        for call in (
            lambda out: plan(x, w, bias, out=out),
            lambda out: dnn.convolution_forward(
                handle, x, w, conv, bias=bias, alpha=alpha, beta=beta, out=out, interface=interface
            ),
        ):
            before = y_host if beta else np.full_like(y_host, np.nan)
            out = handle.array(before, dtype=dtype, layout=layout)
            result = call(out).numpy().astype(np.float64)
            assert np.abs(result - expected).max() <= BOUNDS[dtype] * np.abs(expected).max()


def test_what_is_computed_apart_in_another_layout(handle: dnn.Handle) -> None:
    """A tanh behind an engine, or a bias behind one, with conversions around both calls."""
    rng = np.random.default_rng(1)
    uneven = ((1, 0), (0, 0), (2, 1))
    x_host, w_host, bias_host = (
        rng.integers(-2, 3, shape).astype(np.float32)
        for shape in ((2, 8, 5, 3, 5), (8, 8, 2, 1, 2), (1, 8, 1, 1, 1))
    )
    x = handle.array(np.repeat(x_host, 2, axis=1), layout="NDHWC")[:, ::2]
    w = handle.array(w_host, layout="NDHWC")
    bias = handle.array(bias_host)
    for function, padding, options in (
        (dnn.convolution_bias_activation_forward, (1, 0, 1), {"activation": spec_of("tanh")}),
        (dnn.convolution_forward, uneven, {"alpha": 0.5}),
    ):
        conv = dnn.ConvolutionSpec(padding=padding)  # the operands are exact in TF32
        pads = tuple((p, p) if isinstance(p, int) else p for p in padding)
        sums = onnx_convolution(x_host, w_host, pads, (1, 1, 1), (1, 1, 1))
        expected = 0.5 * sums + bias_host
        if function is dnn.convolution_bias_activation_forward:
            expected = np.tanh(sums + bias_host)
        out = handle.array(np.full(sums.shape, np.nan, np.float32), layout="NCDHW")
        function(handle, x, w, bias=bias, conv=conv, **options, out=out)
        largest = max(1.0, np.abs(sums).max())
        assert np.abs(out.numpy() - expected).max() <= BOUNDS["float32"] * largest


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.WorkspaceLimitWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_bias_without_workspace(handle: dnn.Handle, dtype: str) -> None:
    """cudnnAddTensor adds the bias if every algorithm that adds it itself needs a workspace."""
    fused = Fused(handle, dtype, "NCHW")
    x, w, bias = fused.operands
    expected = 0.5 * fused.problem.sums + fused.bias_host.astype(np.float64)
    y = dnn.convolution_forward(
        handle, x, w, fused.conv, bias=bias, alpha=0.5, workspace_limit=0, out=fused.out()
    )
    assert (
        np.abs(y.numpy().astype(np.float64) - expected).max()
        <= BOUNDS[dtype] * np.abs(expected).max()
    )


def test_a_bias_and_beta_by_an_engine_is_refused_with_a_way_out(handle: dnn.Handle) -> None:
    fused = Fused(handle, "float32", "NCHW")
    x, w, bias = fused.operands
    with pytest.raises(dnn.NotSupportedError, match=r"beta=0.5\); interface='descriptor' does"):
        dnn.convolution_forward(
            handle, x, w, fused.conv, bias=bias, beta=0.5, out=fused.out(), interface="graph"
        )


def test_alpha_and_a_bias_by_an_engine_is_refused_with_a_way_out(handle: dnn.Handle) -> None:
    fused = Fused(handle)
    x, w, bias = fused.operands
    message = r"scales a convolution \(alpha=0.5\) and adds a bias; without interface='graph' the"
    with pytest.raises(dnn.NotSupportedError, match=message):
        dnn.convolution_forward(handle, x, w, fused.conv, bias=bias, alpha=0.5, interface="graph")
    uneven = dnn.ConvolutionSpec(padding=((1, 0), (0, 1)))
    for conv, needs in (
        (fused.conv, ""),
        (uneven, r"padding=\(\(1, 0\), \(0, 1\)\) needs an engine, and "),
    ):
        message = (
            needs + r"no engine scales a convolution \(alpha=0.5\) .*bias=bias, alpha=0.5\) does"
        )
        with pytest.raises(dnn.NotSupportedError, match=message):
            dnn.convolution_bias_activation_forward(
                handle, *fused.operands, conv, alpha=0.5, interface="graph"
            )
        y = dnn.convolution_forward(handle, x, w, conv, bias=bias, alpha=0.5)
        dnn.activation_forward(handle, y, "relu", out=y)


@pytest.mark.parametrize(("dtype", "layout"), KINDS)
def test_a_convolution_with_a_bias(handle: dnn.Handle, dtype: str, layout: str) -> None:
    """However it is added; the choice says how."""
    fused = Fused(handle, dtype, layout)
    x, w, bias = fused.operands
    added = "cudnnAddTensor adds the bias"
    for options, kind, remark in (
        ({}, dnn.types.Engine, ""),
        ({"interface": "descriptor"}, dnn.enums.ConvolutionFwdAlgo, ""),
        ({"beta": -0.5}, dnn.enums.ConvolutionFwdAlgo, "adds a bias and beta * out"),
        ({"alpha": 0.5}, dnn.enums.ConvolutionFwdAlgo, "no engine serves"),
        ({"algorithm": "IMPLICIT_GEMM"}, dnn.enums.ConvolutionFwdAlgo, added),
        (
            {"algorithm": "IMPLICIT_GEMM", "alpha": -2.0, "beta": 0.5},
            dnn.enums.ConvolutionFwdAlgo,
            added,
        ),
    ):
        beta, alpha = options.get("beta", 0.0), options.get("alpha", 1.0)
        fresh = lambda beta=beta: (  # noqa: E731
            handle.array(fused.problem.old_host, dtype=dtype, layout=layout)
            if beta
            else fused.out()
        )
        expected = alpha * fused.problem.sums + fused.bias_host.astype(np.float64)
        expected += beta * fused.problem.old_host.astype(np.float64) if beta else 0
        with dnn.convolution_forward.plan(handle, x, w, fused.conv, bias=bias, **options) as plan:
            assert isinstance(plan.choice.algorithm, kind)
            assert remark in plan.choice.remark if remark else not plan.choice.remark
            calls = (
                lambda out, plan=plan: plan(x, w, bias, out=out),
                lambda out, options=options: dnn.convolution_forward(
                    handle, x, w, fused.conv, bias=bias, out=out, **options
                ),
            )
            for call in calls:
                error = (
                    np.abs(call(fresh()).numpy().astype(np.float64) - expected).max()
                    / np.abs(expected).max()
                )
                assert error <= BOUNDS[dtype], (options, error)


def test_a_bias_beside_operands_that_are_not_aligned(handle: dnn.Handle) -> None:
    fused = Fused(handle)
    memory = handle.empty((fused.bias.nbytes + 64,), "uint8")
    moved = dnn.DeviceArray(fused.bias.spec, memory.device, memory.ptr + 4, memory, handle.stream)
    handle.device.copy_within(moved.ptr, fused.bias.ptr, fused.bias.nbytes, handle.stream)
    x, w, _ = fused.operands
    with pytest.warns(dnn.errors.AlignmentWarning, match="^bias begins at"):
        y = dnn.convolution_forward(handle, x, w, fused.conv, bias=moved)
    fused.assert_right(y, "identity")
    with pytest.warns(dnn.errors.AlignmentWarning, match="^bias begins at"):
        y = dnn.convolution_bias_activation_forward(handle, x, w, moved, fused.conv)
    fused.assert_right(y, "relu")


# ---------------------------------------------------------------- asymmetric padding


ASYMMETRIC = {
    "2-D": (X, W, {"padding": ((0, 2), (1, 0))}),
    "one axis": (X, W, {"padding": (1, (0, 1)), "stride": 2}),
    "dilated": (X, W, {"padding": ((3, 1), 2), "dilation": (2, 1)}),
    "groups": (X, (6, 4, 3, 2), {"padding": ((0, 1), (0, 1)), "groups": 2}),
    "rotated": (X, W, {"padding": ((2, 0), (0, 1)), "mode": "convolution"}),
    "1-D": ((2, 8, 17), (6, 8, 4), {"padding": ((1, 2),)}),
    "3-D": ((2, 4, 5, 6, 7), (6, 4, 2, 3, 2), {"padding": ((0, 1), 1, (1, 0))}),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", ASYMMETRIC)
def test_asymmetric_padding(handle: dnn.Handle, case: str, dtype: str) -> None:
    x, w, options = ASYMMETRIC[case]
    fused = Fused(handle, dtype, None, x, w, **options)
    problem = fused.problem
    expected = onnx_convolution(
        problem.x_host,
        problem.w_host,
        fused.conv.pads(len(x) - 2),
        *fused.conv.steps(len(x) - 2)[1:],
        fused.conv.groups,
        "mode" in options,
    )
    assert expected.shape == problem.y_shape
    for interface in (None, "graph"):
        y = problem.run(interface=interface)
        assert_close(y.numpy(), expected, 2 * BOUNDS[dtype])
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, fused.conv) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
        again = dnn.convolution_forward(
            handle, problem.x, problem.w, fused.conv, algorithm=plan.choice
        )
        assert (again.numpy() == plan(problem.x, problem.w).numpy()).all()
    y = dnn.convolution_bias_activation_forward(
        handle, *fused.operands, fused.conv, z=fused.z, alpha2=1.0, out=fused.out()
    )
    fused.assert_right(y, "relu", alpha2=1.0)
    fused.assert_right(
        dnn.convolution_forward(handle, problem.x, problem.w, fused.conv, bias=fused.bias),
        "identity",
    )


def test_asymmetric_problems_are_saved_recorded_and_tuned(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hurry(monkeypatch)
    problem = Problem(handle, X, (6, 8, 3, 3), padding=((0, 2), 1), math_type="fma")
    with dnn.record_problems() as problems:
        problem.run()
    problem_from_call = problems[0].problem
    assert problem_from_call.operation is convolution.FORWARD
    assert problem_from_call.conv.padding == ((0, 2), 1)
    assert (
        problem_from_plain(json.loads(json.dumps(problem_from_call.to_plain())))
        == problem_from_call
    )
    problems.save(tmp_path / "problems.json")
    assert dnn.ProblemList.load(tmp_path / "problems.json")[0].problem == problem_from_call
    with dnn.Tuner(handle, ":memory:") as tuner:
        table = tuner.tune(problem_from_call)
        assert {type(row.algorithm) for row in table} == {dnn.types.Engine}
        best = tuner.choose(problem_from_call)
    assert best.error is not None
    for row in (row for row in table if row.ok):
        problem.assert_right(problem.run(algorithm=row), row.algorithm)


# ------------------------------------------------- many calls, and operands that are not the plan's


@pytest.mark.parametrize("options", [{}, {"interface": "descriptor"}, {"z": True}])
def test_a_plan_that_replays_itself(handle: dnn.Handle, options: dict[str, Any]) -> None:
    """With the same buffers and with others, each gets its own values."""
    fused = Fused(handle)
    addition = {"z": fused.z, "alpha2": 0.5} if "z" in options else {}
    interface = options.get("interface")
    scalars = {"alpha2": 0.5} if addition else {}
    with dnn.convolution_bias_activation_forward.plan(
        handle, *fused.operands, fused.conv, **addition, interface=interface, replay=True
    ) as plan:
        operands = (*fused.operands, *([fused.z] if addition else []))
        outs = [fused.out() for _ in range(3)]
        for out in (*outs, *outs, outs[0], outs[0]):
            fill(out, 0xFF)
            plan(*operands, out=out)
            fused.assert_right(out, "relu", **scalars)
        assert plan.replay is not None
    x, w, bias = fused.operands
    with dnn.convolution_forward.plan(
        handle, x, w, fused.conv, bias=bias, algorithm="IMPLICIT_GEMM", replay=True
    ) as plan:
        for out in (outs[0], outs[0], outs[1], outs[0]):
            fill(out, 0xFF)
            fused.assert_right(plan(x, w, bias, out=out), "identity")


# ---------------------------------------------------------------- tuned


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("added", [False, True], ids=["plain", "with_z"])
def test_it_is_tuned(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, activation: str, added: bool
) -> None:
    """The measured error is within the bound, the choice is right, and one-line calls use it."""
    hurry(monkeypatch)
    fused, spec, scalars = (
        Fused(handle, layout="NHWC"),
        spec_of(activation),
        {"alpha2": 1.0} if added else {},
    )
    w, z = dnn.FilterSpec(fused.problem.w.shape, layout="NHWC"), fused.z if added else None
    problem = dnn.convolution_bias_activation_forward.problem(
        fused.problem.x.spec,
        w,
        fused.bias.spec,
        fused.conv,
        spec,
        z=None if z is None else z.spec,
        **scalars,
    )
    assert problem_from_plain(json.loads(json.dumps(problem.to_plain()))) == problem
    with (
        dnn.record_problems() as recorded_problems,
        dnn.autotuned(handle, cache=":memory:") as tuner,
    ):
        y = dnn.convolution_bias_activation_forward(
            handle, *fused.operands, fused.conv, spec, z=z, **scalars
        )
        table = tuner.tune(problem)
        assert tuner.measured == 1
    fused.assert_right(y, activation, **scalars)
    assert [entry.problem for entry in recorded_problems] == [problem]
    assert max(row.error for row in table if row.ok) < 1e-5
    for row in table:
        if row.ok:
            out = fused.out()
            options = {"z": z, "algorithm": row, "out": out, **scalars}
            dnn.convolution_bias_activation_forward(
                handle, *fused.operands, fused.conv, spec, **options
            )
            fused.assert_right(out, activation, **scalars)


def test_a_bias_alone_is_tuned(handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    fused = Fused(handle)
    x, w, bias = fused.operands
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        for _ in range(2):
            fused.assert_right(
                dnn.convolution_forward(handle, x, w, fused.conv, bias=bias), "identity"
            )
        with dnn.convolution_forward.plan(handle, x, w, fused.conv, bias=bias) as plan:
            fused.assert_right(plan(x, w, bias), "identity")
        assert tuner.measured == 1


def test_a_residual_is_added_whole_by_default(own_handle: dnn.Handle) -> None:
    x, w = (
        own_handle.array(np.ones((1, 2, 3, 3), np.float32)),
        own_handle.array(np.ones((4, 2, 1, 1), np.float32)),
    )
    bias, z = (
        own_handle.array(np.ones((1, 4, 1, 1), np.float32)),
        own_handle.array(np.ones((1, 4, 3, 3), np.float32)),
    )
    for scale, sum_ in (({}, 4), ({"alpha2": 0.5}, 3.5), ({"alpha2": 0.0}, 3)):
        y = dnn.convolution_bias_activation_forward(own_handle, x, w, bias, z=z, **scale)
        assert (y.numpy() == sum_).all()
