"""Emulated convolutions and their gradients: run them, size their workspace, search and rank their algorithms."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.kernels import KERNELS, WITHOUT_SCRATCH, Algorithm
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.operation import Array, Call, computes
from cudnnlite.emulated.precision import round_tf32, scale_add, to_output
from cudnnlite.emulated.registry import (
    RefusalError,
    Work,
    bad,
    check_aligned,
    emulates,
    unsupported,
)
from cudnnlite.emulated.support import is_deterministic, rounds_to_tf32, why_refused
from cudnnlite.emulated.workspaces import needs_workspace
from cudnnlite.enums import ActivationMode, DataType, Determinism, NanPropagation, Status
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.specs import ConvolutionSpec, TensorSpec

_WORKSPACE_ALIGNMENT = 16
BATCH_BYTES = 64 << 20  # converted inputs and accumulators held at once
# By what is written: the algorithms in the order in which the heuristic ranks what is supported.
_RANKINGS = {
    "y": "IMPLICIT_PRECOMP_GEMM GEMM IMPLICIT_GEMM WINOGRAD_NONFUSED WINOGRAD FFT_TILING FFT DIRECT",
    "dx": "ALGO_1 ALGO_0 WINOGRAD_NONFUSED FFT_TILING FFT WINOGRAD",
    "dw": "ALGO_1 ALGO_0 ALGO_3 WINOGRAD_NONFUSED FFT_TILING FFT WINOGRAD",
}


class ConvolutionCall(Call):
    """A call about a convolution or a gradient of it, and the NumPy kernel that answers for an algorithm."""

    def __init__(self, given: SimpleNamespace, operation: str) -> None:
        super().__init__(given, operation)
        (self.written,) = self.operation.writes
        self.x, self.w, self.y = (
            self.specs.get(name) or self.specs[f"d{name}"] for name in ("x", "w", "y")
        )
        self.conv: ConvolutionSpec = self.options["conv"]
        assert self.operation.algorithms is not None
        self.algorithms = self.operation.algorithms.kind

    @property
    def accumulator(self) -> np.dtype[Any]:
        """The type that is accumulated in."""
        return compute_dtype(self.x, self.conv)

    @property
    def algorithm(self) -> Any:
        """The algorithm that the call names."""
        return self.algorithms(self.given["algo"])

    @property
    def ranking(self) -> list[Any]:
        """All algorithms, the preferred first."""
        return [self.algorithms[name] for name in _RANKINGS[self.written].split()]

    def kernel(self, algorithm: Any) -> Algorithm:
        """Return the NumPy kernel, a matrix product for Winograd's and FFT too, or refuse as a GPU would."""
        if why := why_refused(algorithm, self.x, self.w, self.conv, self.y):
            raise unsupported(why)
        kernels = (
            KERNELS if needs_workspace(algorithm, self.x, self.w, self.conv) else WITHOUT_SCRATCH
        )
        return kernels[self.written]

    def workspace(self, kernel: Algorithm) -> int:
        """Return the bytes that a kernel wants."""
        return kernel.size(self.x.shape, self.w.shape, self.conv, self.accumulator)

    def run(self, algorithm: Any, alpha: float, beta: float) -> Work:
        """Check a call, and return what computes alpha * result + beta * what was there."""
        kind = numpy_dtype(self.specs[self.written].dtype)

        def finished(result: Array, of: Callable[[str], Array]) -> Array:
            return scale_add(result, alpha, beta, of(self.written) if beta != 0 else None, kind)

        return self.convolve(algorithm, finished)

    def convolve(
        self, algorithm: Any, finished: Callable[[Array, Callable[[str], Array]], Array]
    ) -> Work:
        """Check a call, and return what convolves and, some images at a time, writes the finished result.

        `finished` receives a result, and what returns the values of an operand beside it.
        """
        kernel, workspace = self.kernel(algorithm), self.given["workSpace"] or 0
        needed = self.workspace(kernel)
        if needed:
            check_aligned("workspace", workspace, _WORKSPACE_ALIGNMENT)
        self.check_workspace(needed)
        self.views()

        def work() -> None:
            views, scratch = self.views(), self.api.memory.view(workspace, needed)
            tf32 = rounds_to_tf32(algorithm, self.x.dtype, self.conv)
            self.api.ran.add((kernel, tf32))
            values = {name: read_values(views[name], spec) for name, spec in self.specs.items()}
            read = {
                name: values[name] for name in self.operation.reads if name not in ("bias", "z")
            }
            spec = self.specs[self.written]
            for batch, result in convolved(
                kernel, self.conv, read, spec.shape, self.accumulator, scratch, tf32
            ):

                def of(name: str, batch: slice = batch) -> Array:
                    return values[name] if len(values[name]) == 1 else values[name][batch]

                write_values(views[self.written], spec, batch, finished(result, of))

        return work


def convolved(
    kernel: Algorithm,
    conv: ConvolutionSpec,
    operands: Mapping[str, Array],
    shape: tuple[int, ...],
    compute: np.dtype[Any],
    scratch: Bytes,
    tf32: bool,
) -> Iterator[tuple[slice, Array]]:
    """Yield the results before scaling and rounding, some images at a time; the gradient of a filter once, summed over all.

    `operands` are what is read, by name; those that are not "w" are images.
    """

    def ready(values: Array) -> Array:
        values = values.astype(compute, order="C", copy=False)
        return round_tf32(values) if tf32 else values

    images = [values for name, values in operands.items() if name != "w"]
    sums = np.zeros(shape, compute) if "w" not in operands else None
    sizes = sum(math.prod(values.shape[1:]) for values in images) + (
        2 * math.prod(shape[1:]) if sums is None else 0
    )
    step = max(1, BATCH_BYTES // max(1, sizes * compute.itemsize))
    filters = ready(operands["w"]) if sums is None else None
    for start in range(0, len(images[0]), step):
        batch = slice(start, start + step)
        read = [
            ready(values[batch]) if name != "w" else filters for name, values in operands.items()
        ]
        result = np.empty((len(images[0][batch]), *shape[1:]), compute) if sums is None else sums
        kernel.run(*read, conv, result, scratch)
        if sums is None:
            yield batch, result
    if sums is not None:
        yield slice(None), sums


def compute_dtype(x: TensorSpec, conv: ConvolutionSpec) -> np.dtype[Any]:
    """Return the type that is accumulated in."""
    kind = conv.compute_type_for(x)
    return np.dtype({DataType.DOUBLE: "float64", DataType.INT32: "int32"}.get(kind, "float32"))


def _workspace_size(call: ConvolutionCall) -> None:
    """Tell how much workspace the kernel behind the algorithm wants."""
    call.given["sizeInBytes"][0] = call.workspace(call.kernel(call.algorithm))


def _run(call: ConvolutionCall) -> Work:
    """Compute what the call is for."""
    alpha, beta = call.scalars()
    return call.run(call.algorithm, alpha, beta)


def _rank(call: ConvolutionCall, *, timed: bool) -> None:
    """Rank the algorithms, those that are refused last: without running them, or by the time that they take.

    A kernel is run once for all algorithms that it answers for; the output is overwritten, as cuDNN does.
    """
    most, rows, taken = call.given["requestedAlgoCount"], [], dict[Algorithm, float]()
    for algorithm in call.ranking:
        status, milliseconds, needed = Status.SUCCESS, -1.0, 0
        try:
            needed = call.workspace(kernel := call.kernel(algorithm))
            if timed:
                # refused for want of workspace, it is still told how much is needed
                run = call.run(algorithm, 1.0, 0.0)
                if kernel not in taken:
                    start = time.perf_counter()
                    run()
                    taken[kernel] = (time.perf_counter() - start) * 1e3
                milliseconds = taken[kernel]
        except RefusalError as refused:
            too_small = refused.status == Status.BAD_PARAM_SIZE_INSUFFICIENT
            status = Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED if too_small else refused.status
        rows.append((algorithm, status, milliseconds, needed))
    rows.sort(key=lambda row: (row[1] != Status.SUCCESS, row[2]))
    if most < 1:
        raise bad(f"requestedAlgoCount={most}")
    for result, (algorithm, status, milliseconds, needed) in zip(
        call.given["perfResults"], rows[:most], strict=False
    ):
        result.algo, result.status, result.time, result.memory = (
            algorithm,
            status,
            milliseconds,
            needed,
        )
        result.determinism = (
            Determinism.DETERMINISTIC
            if is_deterministic(algorithm)
            else Determinism.NON_DETERMINISTIC
        )
        result.mathType = call.conv.math_type
    call.given["returnedAlgoCount"][0] = len(rows[:most])


def _emulate(name: str) -> None:
    """Register what is done for the C functions of an operation."""
    operation = OPERATIONS[name]
    algorithms = operation.algorithms
    assert algorithms is not None

    def answered(answer: Callable[[ConvolutionCall], Any], given: SimpleNamespace) -> Any:
        return answer(ConvolutionCall(given, name))

    def max_count(given: SimpleNamespace) -> None:
        given.count[0] = len(_RANKINGS[operation.writes[0]].split())

    emulates(operation.function)(partial(answered, _run))
    emulates(algorithms.workspace)(partial(answered, _workspace_size))
    emulates(algorithms.heuristic)(partial(answered, partial(_rank, timed=False)))
    emulates(algorithms.find)(partial(answered, partial(_rank, timed=True)))
    emulates(algorithms.count)(max_count)


for _way in ("forward", "backward_data", "backward_filter"):
    _emulate(f"convolution_{_way}")


@emulates("cudnnConvolutionBiasActivationForward")
def fused_forward(given: SimpleNamespace) -> Work:
    """Compute y = activation(alpha1 * conv(x, w) + alpha2 * z + bias); z may be y."""
    in_place = given.z == given.y  # then z is the old y
    operation = (
        "convolution_bias_activation_forward"
        if in_place
        else "convolution_bias_addition_activation_forward"
    )
    call = ConvolutionCall(given, operation)
    activation = call.options["activation"]
    if activation.mode not in (ActivationMode.IDENTITY, ActivationMode.RELU):
        raise unsupported(f"activation {activation.mode.name}")
    kind = call.compute
    alpha, alpha2 = kind.type(call.number("alpha")), kind.type(call.number("alpha2"))

    def finished(result: Array, of: Callable[[str], Array]) -> Array:
        values = result.astype(kind) * alpha
        if alpha2:
            values += alpha2 * of("y" if in_place else "z").astype(kind)
        values += of("bias").astype(kind)
        if activation.mode == ActivationMode.RELU:
            values = (np.maximum if activation.nan == NanPropagation.PROPAGATE else np.fmax)(
                values, 0
            )
        return to_output(values, numpy_dtype(call.y.dtype))

    return call.convolve(call.algorithm, finished)


@computes("convolution_backward_bias")
def gradient_of_bias(dy: Array) -> Array:
    """Return the sums over images and positions."""
    return np.asarray(dy.sum((0, *range(2, dy.ndim)), keepdims=True))
