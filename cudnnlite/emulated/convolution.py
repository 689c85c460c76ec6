"""Emulated forward convolution: run it, size its workspace, search and rank its algorithms."""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.descriptors import read_convolution_spec, read_filter_spec, read_tensor_spec
from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.kernels import ALGORITHMS, Algorithm, Problem
from cudnnlite.emulated.precision import round_tf32, scale_add
from cudnnlite.emulated.registry import RefusalError, emulates
from cudnnlite.emulated.support import multiplies_in_tf32, refusal
from cudnnlite.enums import ConvolutionFwdAlgo, ConvolutionMode, DataType, Determinism, Status
from cudnnlite.errors import ArgumentError
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec

_WORKSPACE_ALIGNMENT = 16
_BATCH_BYTES = 64 << 20  # converted inputs and accumulators held at once
# Which NumPy kernel answers for which algorithm.
_KERNELS = {
    ConvolutionFwdAlgo.IMPLICIT_GEMM: "direct_gemm",
    ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM: "im2col_gemm",
    ConvolutionFwdAlgo.GEMM: "im2col_gemm",
    ConvolutionFwdAlgo.FFT: "fft",
    ConvolutionFwdAlgo.FFT_TILING: "fft_tiled",
    ConvolutionFwdAlgo.WINOGRAD_NONFUSED: "winograd",
}
# The order in which the heuristic ranks what is supported; on two cores the explicit GEMM is nearly always first.
_RANKING = (
    ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM,
    ConvolutionFwdAlgo.GEMM,
    ConvolutionFwdAlgo.IMPLICIT_GEMM,
    ConvolutionFwdAlgo.WINOGRAD_NONFUSED,
    ConvolutionFwdAlgo.WINOGRAD,
    ConvolutionFwdAlgo.FFT_TILING,
    ConvolutionFwdAlgo.FFT,
    ConvolutionFwdAlgo.DIRECT,
)


class _Call(NamedTuple):
    """The descriptors of a call, read back from the real library."""

    x: TensorSpec
    w: FilterSpec
    conv: ConvolutionSpec
    y: TensorSpec

    @property
    def problem(self) -> Problem:
        padding, stride, dilation = self.conv.steps(self.x.rank - 2)
        return Problem(padding, stride, dilation, self.conv.groups, self.conv.mode == ConvolutionMode.CONVOLUTION)

    @property
    def compute(self) -> np.dtype[Any]:
        kind = self.conv.compute_type_for(self.x)
        return np.dtype({DataType.DOUBLE: "float64", DataType.INT32: "int32"}.get(kind, "float32"))

    def kernel(self, algorithm: int) -> Algorithm:
        """Return the NumPy kernel, or refuse as a GPU would."""
        why = refusal(ConvolutionFwdAlgo(algorithm), self.x, self.w, self.conv, self.y)
        if why is not None:
            raise RefusalError(Status.NOT_SUPPORTED, why)
        kernel = ALGORITHMS[_KERNELS[ConvolutionFwdAlgo(algorithm)]]
        # where cuDNN's algorithm goes further than ours of that name (Winograd of 5x5), the GEMM gives the numbers
        cannot = kernel.unsupported(self.x.shape, self.w.shape, self.problem, self.compute)
        return ALGORITHMS["im2col_gemm"] if cannot else kernel

    def workspace(self, kernel: Algorithm) -> int:
        return kernel.workspace(self.x.shape, self.w.shape, self.problem, self.compute)


def _read(api: EmulatedApi, x: Any, w: Any, conv: Any, y: Any) -> _Call:
    call = _Call(
        read_tensor_spec(api.real, x), read_filter_spec(api.real, w),
        read_convolution_spec(api.real, conv), read_tensor_spec(api.real, y),
    )  # fmt: skip
    try:
        shape = call.conv.output_shape(call.x.shape, call.w.shape)
    except ArgumentError as error:
        raise RefusalError(Status.BAD_PARAM, str(error)) from error
    if shape != call.y.shape:
        raise RefusalError(Status.BAD_PARAM, f"y has shape {call.y.shape}, the convolution gives {shape}")
    if call.x.dtype != call.w.dtype:
        raise RefusalError(Status.BAD_PARAM, f"x is {call.x.dtype}, w is {call.w.dtype}")
    return call


@emulates("cudnnGetConvolutionForwardWorkspaceSize")
def workspace_size(api: EmulatedApi, handle: Any, x: Any, w: Any, conv: Any, y: Any, algorithm: int, size: Any) -> None:
    """Tell how much workspace the kernel behind the algorithm wants."""
    call = _read(api, x, w, conv, y)
    size[0] = call.workspace(call.kernel(algorithm))


@emulates("cudnnConvolutionForward")
def forward(
    api: EmulatedApi, handle: Any, alpha: int, x_desc: Any, x: int, w_desc: Any, w: int, conv_desc: Any, algorithm: int,
    workspace: int, workspace_bytes: int, beta: int, y_desc: Any, y: int,
) -> None:  # fmt: skip
    """Compute y = alpha * conv(x, w) + beta * y."""
    call = _read(api, x_desc, w_desc, conv_desc, y_desc)
    scalar = ctypes.c_double if call.compute == np.float64 else ctypes.c_float
    if not (alpha and beta):
        raise RefusalError(Status.BAD_PARAM_NULL_POINTER, "alpha or beta is a null pointer")
    a, b = scalar.from_address(alpha).value, scalar.from_address(beta).value
    _run(api, call, algorithm, a, b, x, w, y, workspace, workspace_bytes)


def _run(
    api: EmulatedApi, call: _Call, algorithm: int, alpha: float, beta: float, x: int, w: int, y: int,
    workspace: int, workspace_bytes: int,
) -> None:  # fmt: skip
    kernel = call.kernel(algorithm)
    needed = call.workspace(kernel)
    if workspace_bytes < needed:
        raise RefusalError(
            Status.BAD_PARAM_SIZE_INSUFFICIENT, f"workspace of {workspace_bytes} bytes; {needed} are needed"
        )
    sizes = (numpy_dtype(spec.dtype).itemsize for spec in (call.x, call.w, call.y))
    for name, address, size in zip(("x", "w", "y"), (x, w, y), sizes, strict=True):
        if (address or 0) % size:
            raise RefusalError(
                Status.BAD_PARAM_MISALIGNED_POINTER, f"{name} at {address:#x} is not aligned to {size} bytes"
            )
    if needed and (workspace or 0) % _WORKSPACE_ALIGNMENT:
        raise RefusalError(Status.BAD_PARAM_MISALIGNED_POINTER, f"workspace at {workspace:#x} is not aligned")
    scratch = api.memory.view(workspace or 0, needed)
    images = api.memory.view(x or 0, call.x.nbytes)
    filters = read_values(api.memory.view(w or 0, call.w.nbytes), call.w).astype(call.compute, copy=False)
    target = api.memory.view(y or 0, call.y.nbytes)
    tf32 = multiplies_in_tf32(ConvolutionFwdAlgo(algorithm), call.x.dtype, call.conv)
    if tf32:
        filters = round_tf32(filters)
    source = read_values(images, call.x)
    dtype = numpy_dtype(call.y.dtype)
    per_image = max(1, (math.prod(call.x.shape[1:]) + 2 * math.prod(call.y.shape[1:])) * call.compute.itemsize)
    step = max(1, _BATCH_BYTES // per_image)
    for start in range(0, call.x.shape[0], step):
        batch = slice(start, start + step)
        values = source[batch].astype(call.compute, copy=False)
        if tf32:
            values = round_tf32(values)
        result = np.empty((values.shape[0], *call.y.shape[1:]), call.compute)
        kernel.run(values, filters, call.problem, out=result, scratch=scratch)
        old = read_values(target, call.y)[batch] if beta != 0 else None
        write_values(target, call.y, batch, scale_add(result, alpha, beta, old, dtype))


@emulates("cudnnGetConvolutionForwardAlgorithmMaxCount")
def max_count(api: EmulatedApi, handle: Any, count: Any) -> None:
    """Tell how many results a search may give."""
    count[0] = len(_RANKING)


@emulates("cudnnGetConvolutionForwardAlgorithm_v7")
def heuristic(
    api: EmulatedApi, handle: Any, x: Any, w: Any, conv: Any, y: Any, requested: int, returned: Any, results: Any
) -> None:
    """Rank the algorithms without running them; those that are refused come last."""
    call = _read(api, x, w, conv, y)
    rows = []
    for algorithm in _RANKING:
        try:
            rows.append((algorithm, Status.SUCCESS, call.workspace(call.kernel(algorithm))))
        except RefusalError as refused:
            rows.append((algorithm, refused.status, 0))
    rows.sort(key=lambda row: row[1] != Status.SUCCESS)
    _fill(results, returned, call, [(a, s, -1.0, m) for a, s, m in rows[:requested]])


@emulates("cudnnFindConvolutionForwardAlgorithmEx")
def find(
    api: EmulatedApi, handle: Any, x_desc: Any, x: int, w_desc: Any, w: int, conv_desc: Any, y_desc: Any, y: int,
    requested: int, returned: Any, results: Any, workspace: int, workspace_bytes: int,
) -> None:  # fmt: skip
    """Run and time every algorithm; y is overwritten, as cuDNN does."""
    call = _read(api, x_desc, w_desc, conv_desc, y_desc)
    rows: list[tuple[ConvolutionFwdAlgo, Status, float, int]] = []
    for algorithm in _RANKING:
        needed = 0
        try:
            needed = call.workspace(call.kernel(algorithm))
            start = time.perf_counter()
            _run(api, call, algorithm, 1.0, 0.0, x, w, y, workspace, workspace_bytes)
            rows.append((algorithm, Status.SUCCESS, (time.perf_counter() - start) * 1e3, needed))
        except RefusalError as refused:
            too_small = refused.status == Status.BAD_PARAM_SIZE_INSUFFICIENT
            status = Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED if too_small else refused.status
            rows.append((algorithm, status, -1.0, needed))
    rows.sort(key=lambda row: (row[1] != Status.SUCCESS, row[2]))
    _fill(results, returned, call, rows[:requested])


def _fill(results: Any, returned: Any, call: _Call, rows: list[tuple[ConvolutionFwdAlgo, Status, float, int]]) -> None:
    for row, (algorithm, status, milliseconds, memory) in enumerate(rows):
        result = results[row]
        result.algo, result.status, result.time, result.memory = algorithm, status, milliseconds, memory
        result.determinism, result.mathType = Determinism.DETERMINISTIC, call.conv.math_type
    returned[0] = len(rows)
