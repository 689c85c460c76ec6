"""Convolutions to test with: host arrays, their device arrays, and what has to come out."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracles import onnx_convolution
from tolerances import SCALED_INTEGER, TWICE_ROUNDED, assert_close, bound

import cudnnlite as dnn
from cudnnlite.cached_property import cached_property
from cudnnlite.dtypes import numpy_dtype, parse_dtype
from cudnnlite.workbench.tuning.accuracy import Errors, relative_errors
from cudnnlite.workbench.tuning.convolution_reference import ConvolutionReference

Array = np.ndarray[Any, Any]
FIRST = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
LAST = {3: "NWC", 4: "NHWC", 5: "NDHWC"}
FLOATS = ("float32", "float64", "float16", "bfloat16")
ALGORITHMS = tuple(
    algorithm
    for algorithm in dnn.enums.ConvolutionFwdAlgo
    if algorithm != dnn.enums.ConvolutionFwdAlgo.COUNT
)
# What a call may end with where cuDNN does not support a combination and no algorithm was named.
UNSUPPORTED = (dnn.NotSupportedError, dnn.NoAlgorithmError)
PATTERN = 0x5A


def errors_of(reference: ConvolutionReference, out: dnn.DeviceArray) -> Errors:
    """Return the errors of a result at the places of a reference."""
    return relative_errors(reference.sample_of(out), reference.expected)


def random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return random values of the storage dtype: normal, or small integers.

    A vector dtype has values of its plain dtype.
    """
    plain = numpy_dtype(parse_dtype(dtype))
    if plain.kind in "iu":
        return rng.integers(-4 if plain.kind == "i" else 0, 5, shape).astype(plain)
    return rng.standard_normal(shape).astype(plain)


def moderate_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return random floats between 0.25 and 2, of either sign.

    No product of two of them falls where float16 has few values.
    """
    return (rng.uniform(0.25, 2, shape) * rng.choice((-1, 1), shape)).astype(
        numpy_dtype(parse_dtype(dtype))
    )


def fill(array: dnn.DeviceArray, byte: int) -> None:
    """Fill an array's memory, the gaps between its strides too, with one byte."""
    array.device.synchronize()
    if array.nbytes:
        array.device.copy_in(
            array.ptr, np.full(array.nbytes, byte, np.uint8), array.device.default_stream
        )
        array.device.synchronize()


def busy(handle: dnn.Handle) -> Any:
    """Keep the handle's stream at work for some milliseconds; return memory to hold meanwhile."""
    if handle.device.kind == "emulated":
        return None  # its streams are always idle
    x, w = handle.empty((32, 256, 56, 56)), handle.empty((256, 256, 3, 3))
    y = handle.empty((32, 256, 54, 54))
    for _ in range(10):
        dnn.convolution_forward(
            handle, x, w, dnn.ConvolutionSpec(math_type="fma"), out=y, algorithm="IMPLICIT_GEMM"
        )
    return x, w, y


def fill_scratch(handle: dnn.Handle, byte: int, nbytes: int = 1 << 20) -> None:
    """Fill a handle's workspace with one byte, in stream order."""
    address = handle.workspace.reserve(nbytes, handle.stream)
    handle.device.fill(address, nbytes, byte, handle.stream)


def memory_of(array: dnn.DeviceArray) -> Array:
    """Return an array's memory, gaps and all, as bytes."""
    memory = np.empty(array.nbytes, np.uint8)
    array.device.synchronize()
    if array.nbytes:
        array.device.copy_out(memory, array.ptr, array.device.default_stream)
    return memory


def poisoned(handle: dnn.Handle, spec: dnn.TensorSpec) -> dnn.DeviceArray:
    """Return an array full of NaN (127 in integers), on any device."""
    array = handle.empty(spec)
    fill(array, 0xFF if array.dtype.kind not in "iu" else 0x7F)
    return array


def steps_of(spec: dnn.TensorSpec) -> tuple[int, ...]:
    """Return a plain spec's strides in bytes."""
    return tuple(stride * numpy_dtype(spec.dtype).itemsize for stride in spec.strides)


def upload(
    handle: dnn.Handle, spec: dnn.TensorSpec, values: Array, gaps: int = PATTERN
) -> dnn.DeviceArray:
    """Return an array with any strides that holds the values, its gaps filled with one byte."""
    array = handle.empty(spec)
    memory = np.full(spec.nbytes, gaps, np.uint8)
    np.ndarray(spec.shape, values.dtype, memory, strides=steps_of(spec))[...] = values
    handle.device.copy_in(array.ptr, memory, handle.stream)
    handle.device.synchronize()
    return array


def gap_mask(spec: dnn.TensorSpec) -> Array:
    """Return, for each byte of an array's memory, whether it lies in a gap."""
    mask = np.ones(spec.nbytes, np.uint8)
    dtype = np.dtype((np.void, numpy_dtype(spec.dtype).itemsize))
    np.lib.stride_tricks.as_strided(mask.view(dtype), spec.shape, steps_of(spec))[...] = np.zeros(
        (), dtype
    )
    return mask.astype(bool)


def with_gaps(shape: tuple[int, ...], dtype: Any, *, last: bool = False) -> dnn.TensorSpec:
    """Return a spec with a gap behind every axis, channels first or last in memory."""
    order = (1, *reversed(range(2, len(shape))), 0) if last else tuple(reversed(range(len(shape))))
    strides, step = [0] * len(shape), 2
    for axis in order:
        strides[axis] = step
        step *= shape[axis] + 1
    return dnn.TensorSpec(shape, dtype, strides=strides)


class Problem:
    """One convolution on one handle.

    Parameters
    ----------
    handle : Handle
    x_shape, w_shape : tuple of int
    dtype : str
        A vector dtype packs the channels.
    layout : str, optional
        Of x and w.
    w_layout : str, optional
        Of w, where it is another.
    values : callable
        Makes the random values.
    options
        Of the ConvolutionSpec.
    """

    def __init__(
        self,
        handle: dnn.Handle,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        dtype: str = "float32",
        layout: str | None = None,
        *,
        w_layout: str | None = None,
        seed: int = 0,
        values: Any = random_values,
        **options: Any,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.handle = handle
        self.conv = dnn.ConvolutionSpec(**options)
        self.w_shape = w_shape
        self.x_host = values(rng, x_shape, dtype)
        self.w_host = values(rng, w_shape, dtype)
        self.x = handle.array(self.x_host, dtype=dtype, layout=layout)
        self.w = handle.array(self.w_host, dtype=dtype, layout=w_layout or layout)
        self.y_shape = self.conv.output_shape(x_shape, w_shape)
        self.dtype = self.x_host.dtype.name  # of one value
        self.old_host = values(rng, self.y_shape, dtype)  # for `out` where beta is not 0

    @cached_property
    def sums(self) -> Array:
        """The convolution, in float64."""
        return self._oracle(self.x_host, self.w_host)

    @cached_property
    def magnitude(self) -> Array:
        """What the sums would be about if no terms cancelled."""
        return np.sqrt(
            self._oracle(self.x_host.astype(np.float64) ** 2, self.w_host.astype(np.float64) ** 2)
        )

    def _oracle(self, x: Array, w: Array) -> Array:
        flip = self.conv.mode == dnn.enums.ConvolutionMode.CONVOLUTION
        return onnx_convolution(
            x,
            w,
            self.conv.pads(x.ndim - 2),
            *self.conv.steps(x.ndim - 2)[1:],
            self.conv.groups,
            flip,
        )

    def expected(
        self, alpha: float = 1.0, beta: float = 0.0, old: Any = None, dtype: Any = None
    ) -> Array:
        """Return alpha * conv(x, w) + beta * old in float64, rounded and saturated for integers."""
        result = alpha * self.sums
        if beta:
            result = result + beta * np.asarray(self.old_host if old is None else old).astype(
                np.float64
            )
        kind = np.dtype(self.x_host.dtype if dtype is None else dtype)
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            result = np.clip(np.rint(result), limits.min, limits.max)
        return result

    def assert_right(
        self,
        y: Any,
        algorithm: Any,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        old: Any = None,
        math_type: Any = None,
        cancelling: bool = False,
    ) -> None:
        """Compare every value of `y`, a device or host array, with the algorithm's bound."""
        result = y.numpy() if isinstance(y, dnn.DeviceArray) else y
        allowed = bound(
            self.dtype,
            self.conv.math_type if math_type is None else math_type,
            algorithm,
            self.w_shape,
        )
        if allowed == 0 and result.dtype.kind == "f" and (alpha, beta) != (1, 0):
            allowed = SCALED_INTEGER
        if beta and self.handle.device.kind == "cuda":
            allowed = max(allowed, TWICE_ROUNDED.get(self.dtype, 0))
        magnitude = None
        if cancelling:
            magnitude = np.hypot(alpha * self.magnitude, beta * self.old_host.astype(np.float64))
        assert_close(result, self.expected(alpha, beta, old, result.dtype), allowed, magnitude)

    def choice(self, **options: Any) -> dnn.enums.ConvolutionFwdAlgo | dnn.types.Engine:
        """Return the heuristic's first algorithm, or an engine where only the graph API serves."""
        table = dnn.convolution_forward.heuristic(self.handle, self.x, self.w, self.conv, **options)
        return table.best().algorithm if any(row.ok for row in table) else dnn.types.Engine(0)

    def run(self, **options: Any) -> dnn.DeviceArray:
        """Call `convolution_forward`, into poisoned memory unless there is an `out`."""
        if "out" not in options:
            options["out"] = poisoned(self.handle, self.output_spec)
        return dnn.convolution_forward(self.handle, self.x, self.w, self.conv, **options)

    def check(self, **options: Any) -> None:
        """Run it with the algorithm that the heuristic chooses, and compare."""
        y = self.run(**options)
        out = {"out": options["out"]} if "out" in options else {}
        scalars = {name: options[name] for name in ("alpha", "beta") if name in options}
        self.assert_right(y, self.choice(**out), **scalars)

    @property
    def output_spec(self) -> dnn.TensorSpec:
        """The spec of the output that a call makes by itself."""
        layout = self.x.layout if self.x.layout != "strided" else FIRST[len(self.y_shape)]
        return dnn.TensorSpec(self.y_shape, self.x.spec.dtype, layout)
