"""The grids of parameters that CuPy's tests of cuDNN call, through cudnnlite, with values compared.

The axes and sizes are those of CuPy's `tests/cupyx_tests/test_cudnn.py`; the code, the values and
the oracles are not.  There the arrays are zeros.  Here they are random, every output is poisoned,
and ONNX's reference implementation, SciPy and NumPy say what has to come out.

Two of CuPy's conventions stay: a deterministic algorithm is not asked for where no workspace is
allowed, which CuPy leaves out too; and `auto_tune` finds an algorithm once for a problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import pytest
from device.problems import FIRST, LAST, poisoned
from device.test_convolution_backward import BOUNDS, TF32_BOUND
from oracles import onnx_convolution, onnx_gradient_of_w, onnx_gradient_of_x
from scipy.special import expit
from tolerances import assert_close, bound

import cudnnlite as dnn

# A limit leaves out algorithms that cuDNN's heuristic prefers, which is the point of these grids.
pytestmark = pytest.mark.filterwarnings("ignore::cudnnlite.errors.WorkspaceLimitWarning")

Array = np.ndarray[Any, Any]
Case = dict[str, Any]
WIDE_DTYPES = ("float32", "float64")
# The grids of convolutions are those of float32; the other types take the same paths.
GRID_DTYPES = (
    "float32",
    *(pytest.param(dtype, marks=pytest.mark.exhaustive) for dtype in ("float16", "float64")),
)
# What CuPy's `tensor_core` stands for.
MATH_TYPES = {"always": "tensor_op", "auto": "default", "never": "fma"}
WORKSPACE_LIMITS = (0, 4 << 20)
BOTH = (False, True)
NAMES_SHOWN = 20
TINY = {"float32": 1e-5, "float64": 1e-12}  # errors of functions of single values
DROPOUT_BOUND = 1e-6  # a dropout descriptor holds the probability in float32, beside float64 too


def product_of(**axes: Iterable[Any]) -> list[Case]:
    """Return every combination, by the names of the axes."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def check_all(cases: list[Case], count: int, check: Callable[..., None]) -> None:
    """Check every case of a grid, and name all that fail."""
    assert len(cases) == count
    failures = []
    for case in cases:
        try:
            check(**case)
        except Exception as error:
            failures.append(f"{case}: {type(error).__name__}: {error}")
    first_failures = "\n".join(failures[:NAMES_SHOWN])
    assert not failures, f"{len(failures)} of {count} cases failed:\n{first_failures}"


class Geometry(NamedTuple):
    """Sizes of a convolution, and its steps."""

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    padding: int
    stride: int
    dilation: int
    groups: int

    @property
    def steps(self) -> tuple[Any, ...]:
        """Padding, stride and dilation of each axis, and the groups, as the oracles take them."""
        rank = len(self.x_shape) - 2
        return *((step,) * rank for step in (self.padding, self.stride, self.dilation)), self.groups

    def spec(self, math_type: str) -> dnn.ConvolutionSpec:
        """Return the convolution."""
        return dnn.ConvolutionSpec(
            padding=self.padding,
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
            math_type=math_type,
        )


def small_geometry(ndim: int, dilation: int, groups: int, channels: tuple[int, int]) -> Geometry:
    """Return a 3 x 3 filter, or a 3 x 3 x 3 one, on images of its size, with stride 2.

    `channels` are those that a group reads and writes.
    """
    read, written = channels
    return Geometry(
        x_shape=(2, read * groups, *(3,) * ndim),
        w_shape=(written * groups, read, *(3,) * ndim),
        padding=dilation,
        stride=2,
        dilation=dilation,
        groups=groups,
    )


@cache
def host_values(geometry: Geometry) -> Mapping[str, Array]:
    """Return random values of all operands, in float64.

    float16 holds each of them, as TF32 does, so one oracle serves all types.
    """
    y_shape = geometry.spec("default").output_shape(geometry.x_shape, geometry.w_shape)
    shapes = {
        "x": geometry.x_shape,
        "w": geometry.w_shape,
        "dy": y_shape,
        "old_y": y_shape,
        "bias": (1, y_shape[1], *(1,) * (len(y_shape) - 2)),
        "bias_of_x": (1, geometry.x_shape[1], *(1,) * (len(y_shape) - 2)),
    }
    rng = np.random.default_rng(0)
    rounded = {name: np.float16(rng.standard_normal(shape)) for name, shape in shapes.items()}
    return {name: values.astype(np.float64) for name, values in rounded.items()}


@cache
def expected_values(geometry: Geometry, written: str) -> Array:
    """Return y, dx or dw in float64."""
    hosts = host_values(geometry)
    if written == "y":
        return onnx_convolution(hosts["x"], hosts["w"], *geometry.steps)
    if written == "dx":
        return onnx_gradient_of_x(geometry.x_shape, hosts["w"], hosts["dy"], *geometry.steps)
    return onnx_gradient_of_w(hosts["x"], geometry.w_shape, hosts["dy"], *geometry.steps)


class Convolution:
    """A convolution or one of its gradients, on a device."""

    FUNCTIONS: Mapping[str, tuple[str, tuple[str, str]]] = {
        "y": ("convolution_forward", ("x", "w")),
        "dx": ("convolution_backward_data", ("w", "dy")),
        "dw": ("convolution_backward_filter", ("x", "dy")),
    }

    def __init__(
        self,
        handle: dnn.Handle,
        geometry: Geometry,
        written: str,
        dtype: str,
        layouts: Mapping[int, str] = FIRST,
    ) -> None:
        self.handle = handle
        self.geometry = geometry
        self.written = written
        self.dtype = dtype
        self.layout = layouts[len(geometry.x_shape)]
        self.function, self.reads = self.FUNCTIONS[written]
        self.expected = expected_values(geometry, written)
        self._choices: dict[Any, dnn.AlgorithmResult] = {}

    @cached_property
    def operands(self) -> tuple[dnn.DeviceArray, ...]:
        """What is read."""
        return tuple(self.upload(name) for name in self.reads)

    @property
    def out_spec(self) -> dnn.TensorSpec:
        """The spec of what is written."""
        return dnn.TensorSpec(self.expected.shape, self.dtype, self.layout)

    def upload(self, name: str) -> dnn.DeviceArray:
        """Return an operand on the device."""
        values = host_values(self.geometry)[name]
        return self.handle.array(values, dtype=self.dtype, layout=self.layout)

    def choose(
        self,
        math_type: str,
        workspace_limit: int,
        *,
        auto_tune: bool,
        deterministic: bool,
    ) -> dnn.AlgorithmResult | None:
        """Return the algorithm to call, or None to leave the choice to the call."""
        if not auto_tune and not deterministic:
            return None
        key = (math_type, workspace_limit, auto_tune, deterministic)
        if key not in self._choices:
            ranked = self._find(math_type, workspace_limit) if auto_tune else self._get(math_type)
            self._choices[key] = ranked.best(workspace_limit, deterministic=deterministic or None)
        return self._choices[key]

    def _find(self, math_type: str, workspace_limit: int) -> dnn.AlgorithmTable:
        conv = self.geometry.spec(math_type)
        table: dnn.AlgorithmTable = getattr(dnn, self.function).find(
            self.handle, *self.operands, conv, **self._like, workspace_limit=workspace_limit
        )
        return table

    def _get(self, math_type: str) -> dnn.AlgorithmTable:
        conv = self.geometry.spec(math_type)
        table: dnn.AlgorithmTable = getattr(dnn, self.function).heuristic(
            self.handle, *self.operands, conv, **self._like
        )
        return table

    @property
    def _like(self) -> dict[str, dnn.TensorSpec]:
        """What a gradient is shaped as, by the argument that says so."""
        return {"dx": {"x": self.out_spec}, "dw": {"w": self.out_spec}}.get(self.written, {})

    def run(self, math_type: str, workspace_limit: int, **options: Any) -> dnn.DeviceArray:
        """Call the function; into poisoned memory, unless there is an `out`."""
        if "out" not in options:
            options["out"] = poisoned(self.handle, self.out_spec)
        conv = self.geometry.spec(math_type)
        result: dnn.DeviceArray = getattr(dnn, self.function)(
            self.handle, *self.operands, conv, workspace_limit=workspace_limit, **options
        )
        return result

    def assert_right(
        self,
        result: dnn.DeviceArray,
        math_type: str,
        expected: Array | None = None,
    ) -> None:
        """Compare every value, with the convolution itself unless something else is `expected`."""
        expected = self.expected if expected is None else expected
        assert_close(result.numpy(), expected, self._bound(math_type))

    def _bound(self, math_type: str) -> float:
        if self.written == "y":
            # of what computes such strides, transforms are the least exact
            algorithm = dnn.enums.ConvolutionFwdAlgo.FFT
            kind = dnn.ConvolutionSpec(math_type=math_type).math_type
            return bound(self.dtype, kind, algorithm, self.geometry.w_shape)
        may_be_tf32 = self.dtype == "float32" and math_type != "fma"
        return TF32_BOUND if may_be_tf32 else BOUNDS[self.dtype]


class Convolutions:
    """The problems of a grid, each made once."""

    def __init__(self, handle: dnn.Handle, written: str, dtype: str) -> None:
        self._handle = handle
        self._written = written
        self._dtype = dtype
        self._convolutions: dict[Any, Convolution] = {}

    def get(self, geometry: Geometry, layouts: Mapping[int, str] = FIRST) -> Convolution:
        """Return a problem."""
        key = (geometry, layouts is LAST)
        if key not in self._convolutions:
            arguments = (self._handle, geometry, self._written, self._dtype, layouts)
            self._convolutions[key] = Convolution(*arguments)
        return self._convolutions[key]


@pytest.mark.parametrize("dtype", GRID_DTYPES)
def test_convolution_forward(handle: dnn.Handle, dtype: str) -> None:
    convolutions = Convolutions(handle, "y", dtype)

    def check(
        tensor_core: str,
        dilation: int,
        groups: int,
        workspace_limit: int,
        auto_tune: bool,
        bias: bool,
        layout: str,
    ) -> None:
        is_last = layout == "NHWC"
        channels = (4, 4) if is_last else (3, 2)
        geometry = small_geometry(2, dilation, groups, channels)
        problem = convolutions.get(geometry, LAST if is_last else FIRST)
        math_type = MATH_TYPES[tensor_core]
        algorithm = problem.choose(
            math_type,
            workspace_limit,
            auto_tune=auto_tune,
            deterministic=False,
        )
        added = {"bias": problem.upload("bias")} if bias else {}
        y = problem.run(math_type, workspace_limit, algorithm=algorithm, **added)
        expected = problem.expected + host_values(geometry)["bias"] if bias else problem.expected
        problem.assert_right(y, math_type, expected)

    cases = product_of(
        tensor_core=MATH_TYPES,
        dilation=(1, 2),
        groups=(1, 2),
        workspace_limit=WORKSPACE_LIMITS,
        auto_tune=BOTH,
        bias=BOTH,
        layout=("NCHW", "NHWC"),
    )
    check_all(cases, 192, check)


@pytest.mark.parametrize("dtype", GRID_DTYPES)
def test_convolution_forward_with_bias_and_scalars(handle: dnn.Handle, dtype: str) -> None:
    convolutions = Convolutions(handle, "y", dtype)

    def check(dilation: int, groups: int, workspace_limit: int, layout: str) -> None:
        geometry = small_geometry(2, dilation, groups, (4, 4))
        problem = convolutions.get(geometry, LAST if layout == "NHWC" else FIRST)
        y = problem.run(
            "fma",
            workspace_limit,
            bias=problem.upload("bias"),
            alpha=0.5,
            beta=-2.0,
            out=problem.upload("old_y"),
        )
        hosts = host_values(geometry)
        expected = 0.5 * problem.expected - 2.0 * hosts["old_y"] + hosts["bias"]
        problem.assert_right(y, "fma", expected)

    cases = product_of(
        dilation=(1, 2),
        groups=(1, 2),
        workspace_limit=WORKSPACE_LIMITS,
        layout=("NCHW", "NHWC"),
    )
    check_all(cases, 16, check)


def gradient_cases(**axes: Iterable[Any]) -> list[Case]:
    """Return the cases of a gradient, without those that CuPy leaves out as well."""
    cases = product_of(
        tensor_core=MATH_TYPES,
        dilation=(1, 2),
        groups=(1, 2),
        workspace_limit=WORKSPACE_LIMITS,
        auto_tune=BOTH,
        deterministic=BOTH,
        **axes,
    )
    return [case for case in cases if case["workspace_limit"] or not case["deterministic"]]


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("dtype", GRID_DTYPES)
def test_convolution_backward_filter(handle: dnn.Handle, dtype: str, ndim: int) -> None:
    convolutions = Convolutions(handle, "dw", dtype)

    def check(
        tensor_core: str,
        dilation: int,
        groups: int,
        workspace_limit: int,
        auto_tune: bool,
        deterministic: bool,
    ) -> None:
        problem = convolutions.get(small_geometry(ndim, dilation, groups, (3, 2)))
        math_type = MATH_TYPES[tensor_core]
        algorithm = problem.choose(
            math_type,
            workspace_limit,
            auto_tune=auto_tune,
            deterministic=deterministic,
        )
        dw = problem.run(math_type, workspace_limit, algorithm=algorithm)
        problem.assert_right(dw, math_type)

    check_all(gradient_cases(), 72, check)


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("dtype", GRID_DTYPES)
def test_convolution_backward_data(handle: dnn.Handle, dtype: str, ndim: int) -> None:
    """With a bias this is a transposed convolution, and CuPy adds the bias to its result."""
    convolutions = Convolutions(handle, "dx", dtype)

    def check(
        tensor_core: str,
        dilation: int,
        groups: int,
        workspace_limit: int,
        auto_tune: bool,
        deterministic: bool,
        bias: bool,
    ) -> None:
        geometry = small_geometry(ndim, dilation, groups, (3, 2))
        problem = convolutions.get(geometry)
        math_type = MATH_TYPES[tensor_core]
        algorithm = problem.choose(
            math_type,
            workspace_limit,
            auto_tune=auto_tune,
            deterministic=deterministic,
        )
        dx = problem.run(math_type, workspace_limit, algorithm=algorithm)
        expected = problem.expected
        if bias:
            dnn.add_tensor(handle, problem.upload("bias_of_x"), dx)
            expected = expected + host_values(geometry)["bias_of_x"]
        problem.assert_right(dx, math_type, expected)

    check_all(gradient_cases(bias=BOTH), 144, check)


@pytest.mark.parametrize("written", ["dx", "dw"])
@pytest.mark.parametrize("dtype", WIDE_DTYPES)
def test_gradients_in_nhwc_without_workspace(handle: dnn.Handle, dtype: str, written: str) -> None:
    """CuPy expects errors here, of cuDNN 7; engines compute these now."""
    convolutions = Convolutions(handle, written, dtype)

    def check(taps: int, stride: int) -> None:
        geometry = Geometry(
            x_shape=(2, 4, 8, 8),
            w_shape=(4, 4, taps, taps),
            padding=(taps - 1) // 2,
            stride=stride,
            dilation=1,
            groups=1,
        )
        problem = convolutions.get(geometry, LAST)
        problem.assert_right(problem.run("tensor_op", 0), "tensor_op")

    check_all(product_of(taps=(1, 3, 5), stride=(2, 4)), 6, check)


def expected_activation(mode: str, x: Array) -> tuple[Array, Array]:
    """Return the values of an activation, and its slopes, for a coefficient of 0.75."""
    coef = 0.75
    if mode == "sigmoid":
        y = expit(x)
        return y, y * (1 - y)
    if mode == "tanh":
        return np.tanh(x), 1 - np.tanh(x) ** 2
    if mode == "relu":
        return np.maximum(x, 0), (x > 0).astype(np.float64)
    if mode == "clipped_relu":
        return np.clip(x, 0, coef), ((x > 0) & (x < coef)).astype(np.float64)
    if mode == "elu":
        return np.where(x > 0, x, coef * np.expm1(x)), np.where(x > 0, 1.0, coef * np.exp(x))
    raise ValueError(mode)


def test_activation(handle: dnn.Handle) -> None:
    rng = np.random.default_rng(0)
    x_host, dy_host = (rng.standard_normal((3, 4)).astype(np.float32) for _ in range(2))

    def check(dtype: str, mode: str, backward: bool) -> None:
        coefficient = (0.75,) if mode in ("clipped_relu", "elu") else ()
        spec = dnn.ActivationSpec(mode, *coefficient)
        y, slopes = expected_activation(mode, x_host.astype(np.float64))
        x_array = handle.array(x_host, dtype=dtype)
        out = poisoned(handle, x_array.spec)
        if backward:
            y_array, dy_array = (handle.array(host, dtype=dtype) for host in (y, dy_host))
            dnn.activation_backward(handle, y_array, dy_array, x_array, spec, out=out)
            assert_close(out.numpy(), slopes * dy_host, TINY[dtype])
        else:
            dnn.activation_forward(handle, x_array, spec, out=out)
            assert_close(out.numpy(), y, TINY[dtype])

    modes = ("sigmoid", "relu", "tanh", "clipped_relu", "elu")
    check_all(product_of(dtype=WIDE_DTYPES, mode=modes, backward=BOTH), 20, check)


def run_dropout(
    handle: dnn.Handle,
    x: dnn.DeviceArray,
    ratio: float,
    state: dnn.DropoutState,
) -> tuple[dnn.DeviceArray, dnn.DeviceArray]:
    """Return the result, written into poisoned memory, and the reserve space."""
    out = poisoned(handle, x.spec)
    return dnn.dropout_forward(handle, x, ratio, dropout_state=state, out=out)


def test_dropout(handle: dnn.Handle) -> None:
    rng = np.random.default_rng(0)
    host = rng.uniform(1, 2, (3, 4))

    def check(dtype: str, ratio: float, seed: int, question: str) -> None:
        state = dnn.DropoutState(handle, seed)
        x, dy = (handle.array(host, dtype=dtype) for _ in range(2))
        y, reserve = run_dropout(handle, x, ratio, state)
        if question == "forward":
            scaled = x.numpy().astype(np.float64) / (1 - ratio)
            remains = y.numpy() != 0
            assert_close(y.numpy(), np.where(remains, scaled, 0), DROPOUT_BOUND)
            assert remains.all() or ratio > 0
            return
        dx = poisoned(handle, dy.spec)
        dnn.dropout_backward(handle, dy, ratio, reserve, dropout_state=state, out=dx)
        if question == "backward":
            # CuPy demands equal bits; x and dy have the same values there, and here
            np.testing.assert_array_equal(dx.numpy() / dy.numpy(), y.numpy() / x.numpy())
            return
        same_state = dnn.DropoutState(handle, seed)
        same_y, same_reserve = run_dropout(handle, x, ratio, same_state)
        same_dx = poisoned(handle, dy.spec)
        dnn.dropout_backward(handle, dy, ratio, same_reserve, dropout_state=same_state, out=same_dx)
        np.testing.assert_array_equal(same_y.numpy(), y.numpy())
        np.testing.assert_array_equal(same_dx.numpy(), dx.numpy())

    cases = product_of(
        dtype=WIDE_DTYPES,
        ratio=(0.0, 0.1, 0.2, 0.5),
        seed=(0, 100),
        question=("forward", "backward", "seed"),
    )
    check_all(cases, 48, check)
