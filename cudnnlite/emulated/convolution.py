"""Emulated forward convolution: run it, size its workspace, search and rank its algorithms."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.kernels import ALGORITHMS, Algorithm
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.operation import Array, Call
from cudnnlite.emulated.precision import round_tf32, scale_add
from cudnnlite.emulated.registry import RefusalError, emulates
from cudnnlite.emulated.support import multiplies_in_tf32, refusal
from cudnnlite.enums import ConvolutionFwdAlgo, DataType, Determinism, Status
from cudnnlite.specs import ConvolutionSpec, TensorSpec

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


class _Call(Call):
    """A call about a forward convolution, and the NumPy kernel that answers for an algorithm."""

    def __init__(self, api: EmulatedApi, function: str, arguments: tuple[Any, ...]) -> None:
        super().__init__(api, "convolution_forward", function, arguments)
        self.x, self.w, self.y = (self.specs[name] for name in ("x", "w", "y"))
        self.conv: ConvolutionSpec = self.options["conv"]

    @property
    def compute(self) -> np.dtype[Any]:
        """The type that is accumulated in."""
        return compute_dtype(self.x, self.conv)

    def kernel(self, algorithm: int) -> Algorithm:
        """Return the NumPy kernel, or refuse as a GPU would."""
        why = refusal(ConvolutionFwdAlgo(algorithm), self.x, self.w, self.conv, self.y)
        if why is not None:
            raise RefusalError(Status.NOT_SUPPORTED, why)
        kernel = ALGORITHMS[_KERNELS[ConvolutionFwdAlgo(algorithm)]]
        # where cuDNN's algorithm goes further than ours of that name (Winograd of 5x5), the GEMM gives the numbers
        cannot = kernel.unsupported(self.x.shape, self.w.shape, self.conv, self.compute)
        return ALGORITHMS["im2col_gemm"] if cannot else kernel

    def workspace(self, kernel: Algorithm) -> int:
        """Return the bytes that a kernel wants."""
        return kernel.workspace(self.x.shape, self.w.shape, self.conv, self.compute)

    def run(self, algorithm: int, alpha: float, beta: float) -> None:
        """Compute y = alpha * conv(x, w) + beta * y."""
        kernel = self.kernel(algorithm)
        needed, given = self.workspace(kernel), self.given["workSpaceSizeInBytes"]
        if given < needed:
            raise RefusalError(Status.BAD_PARAM_SIZE_INSUFFICIENT, f"workspace of {given} bytes; {needed} are needed")
        workspace = self.given["workSpace"] or 0
        if needed and workspace % _WORKSPACE_ALIGNMENT:
            raise RefusalError(Status.BAD_PARAM_MISALIGNED_POINTER, f"workspace at {workspace:#x} is not aligned")
        images, filters, target = self.views().values()
        scratch = self.api.memory.view(workspace, needed)
        tf32 = multiplies_in_tf32(ConvolutionFwdAlgo(algorithm), self.x.dtype, self.conv)
        source, matrix = read_values(images, self.x), read_values(filters, self.w)
        for batch, result in convolved(kernel, self.conv, source, matrix, self.y.shape, self.compute, scratch, tf32):
            old = read_values(target, self.y)[batch] if beta != 0 else None
            rounded = scale_add(result, alpha, beta, old, numpy_dtype(self.y.dtype))
            write_values(target, self.y, batch, rounded)


def convolved(
    kernel: Algorithm, conv: ConvolutionSpec, x: Array, w: Array, shape: tuple[int, ...], compute: np.dtype[Any],
    scratch: Bytes, tf32: bool,
) -> Iterator[tuple[slice, Array]]:  # fmt: skip
    """Yield a convolution's results before scaling and rounding, some images at a time."""
    w = w.astype(compute, copy=False)
    if tf32:
        w = round_tf32(w)
    per_image = max(1, (math.prod(x.shape[1:]) + 2 * math.prod(shape[1:])) * compute.itemsize)
    step = max(1, _BATCH_BYTES // per_image)
    for start in range(0, shape[0], step):
        batch = slice(start, start + step)
        values = x[batch].astype(compute, copy=False)
        if tf32:
            values = round_tf32(values)
        result = np.empty((values.shape[0], *shape[1:]), compute)
        kernel.run(values, w, conv, out=result, scratch=scratch)
        yield batch, result


def compute_dtype(x: TensorSpec, conv: ConvolutionSpec) -> np.dtype[Any]:
    """Return the type that is accumulated in."""
    kind = conv.compute_type_for(x)
    return np.dtype({DataType.DOUBLE: "float64", DataType.INT32: "int32"}.get(kind, "float32"))


def _emulates(function: str) -> Callable[[Callable[[_Call], None]], Callable[[_Call], None]]:
    """Register the decorated function, which receives the call unmarshalled."""

    def register(implementation: Callable[[_Call], None]) -> Callable[[_Call], None]:
        emulates(function)(lambda api, *arguments: implementation(_Call(api, function, arguments)))
        return implementation

    return register


@_emulates("cudnnGetConvolutionForwardWorkspaceSize")
def workspace_size(call: _Call) -> None:
    """Tell how much workspace the kernel behind the algorithm wants."""
    call.given["sizeInBytes"][0] = call.workspace(call.kernel(call.given["algo"]))


@_emulates("cudnnConvolutionForward")
def forward(call: _Call) -> None:
    """Compute y = alpha * conv(x, w) + beta * y."""
    alpha, beta = call.scalars()
    call.run(call.given["algo"], alpha, beta)


@emulates("cudnnGetConvolutionForwardAlgorithmMaxCount")
def max_count(api: EmulatedApi, handle: Any, count: Any) -> None:
    """Tell how many results a search may give."""
    count[0] = len(_RANKING)


@_emulates("cudnnGetConvolutionForwardAlgorithm_v7")
def heuristic(call: _Call) -> None:
    """Rank the algorithms without running them; those that are refused come last."""
    rows = []
    for algorithm in _RANKING:
        try:
            rows.append((algorithm, Status.SUCCESS, -1.0, call.workspace(call.kernel(algorithm))))
        except RefusalError as refused:
            rows.append((algorithm, refused.status, -1.0, 0))
    rows.sort(key=lambda row: row[1] != Status.SUCCESS)
    _fill(call, rows)


@_emulates("cudnnFindConvolutionForwardAlgorithmEx")
def find(call: _Call) -> None:
    """Run and time every algorithm; y is overwritten, as cuDNN does."""
    rows: list[tuple[ConvolutionFwdAlgo, Status, float, int]] = []
    for algorithm in _RANKING:
        needed = 0
        try:
            needed = call.workspace(call.kernel(algorithm))
            start = time.perf_counter()
            call.run(algorithm, 1.0, 0.0)
            rows.append((algorithm, Status.SUCCESS, (time.perf_counter() - start) * 1e3, needed))
        except RefusalError as refused:
            too_small = refused.status == Status.BAD_PARAM_SIZE_INSUFFICIENT
            status = Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED if too_small else refused.status
            rows.append((algorithm, status, -1.0, needed))
    rows.sort(key=lambda row: (row[1] != Status.SUCCESS, row[2]))
    _fill(call, rows)


def _fill(call: _Call, rows: list[tuple[ConvolutionFwdAlgo, Status, float, int]]) -> None:
    if call.given["requestedAlgoCount"] < 1:
        raise RefusalError(Status.BAD_PARAM, f"requestedAlgoCount={call.given['requestedAlgoCount']}")
    rows = rows[: call.given["requestedAlgoCount"]]
    for result, (algorithm, status, milliseconds, memory) in zip(call.given["perfResults"], rows, strict=False):
        result.algo, result.status, result.time, result.memory = algorithm, status, milliseconds, memory
        result.determinism, result.mathType = Determinism.DETERMINISTIC, call.conv.math_type
    call.given["returnedAlgoCount"][0] = len(rows)
