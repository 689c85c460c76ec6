"""Emulated calls about convolutions: run them, size their workspace, and rank their algorithms.

The C functions of forward convolutions, of gradients and of fused convolutions have this in common.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.kernels import KERNELS, KERNELS_WITHOUT_SCRATCH, Kernel
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.operation_call import Array, Call
from cudnnlite.emulated.precision import round_tf32, scale_add
from cudnnlite.emulated.registry import (
    RefusalError,
    Work,
    bad_parameter,
    check_aligned,
    unsupported,
)
from cudnnlite.emulated.support import is_deterministic, rounds_to_tf32, why_refused
from cudnnlite.emulated.workspaces import needs_workspace
from cudnnlite.enums import DataType, Determinism, Status
from cudnnlite.problems.operation import Operation
from cudnnlite.specs import ConvolutionSpec, TensorSpec

_WORKSPACE_ALIGNMENT = 16
BATCH_BYTES = 64 << 20  # of converted inputs and accumulators that are in memory at once
# By the operand that is written: the order in which the heuristic ranks supported algorithms.
_RANKINGS = {
    "y": (
        "IMPLICIT_PRECOMP_GEMM",
        "GEMM",
        "IMPLICIT_GEMM",
        "WINOGRAD_NONFUSED",
        "WINOGRAD",
        "FFT_TILING",
        "FFT",
        "DIRECT",
    ),
    "dx": ("ALGO_1", "ALGO_0", "WINOGRAD_NONFUSED", "FFT_TILING", "FFT", "WINOGRAD"),
    "dw": ("ALGO_1", "ALGO_0", "ALGO_3", "WINOGRAD_NONFUSED", "FFT_TILING", "FFT", "WINOGRAD"),
}
ReadOperand = Callable[[str], Array]  # (name) -> the values that belong to a result
FinishResult = Callable[[Array, ReadOperand], Array]  # what the C function does behind the sums


class ConvolutionCall(Call):
    """A call about a convolution or a gradient of it, and the NumPy kernel of an algorithm."""

    def __init__(self, c_call: SimpleNamespace, operation: Operation) -> None:
        super().__init__(c_call, operation)
        (self.output_name,) = self.operation.writes
        self.x = self._operand_or_gradient("x")
        self.w = self._operand_or_gradient("w")
        self.y = self._operand_or_gradient("y")
        self.conv: ConvolutionSpec = self.options["conv"]
        assert self.operation.algorithms is not None
        self.algorithms = self.operation.algorithms.kind

    def _operand_or_gradient(self, name: str) -> Any:
        return self.specs[name] if name in self.specs else self.specs[f"d{name}"]

    @property
    def accumulator(self) -> np.dtype[Any]:
        """The type of the sums."""
        return accumulator_dtype(self.x, self.conv)

    @property
    def algorithm(self) -> Any:
        """The algorithm that the call names."""
        return self.algorithms(self.arguments["algo"])

    @property
    def ranking(self) -> list[Any]:
        """All algorithms, the preferred first."""
        return [self.algorithms[name] for name in _RANKINGS[self.output_name]]

    def kernel(self, algorithm: Any) -> Kernel:
        """Return the NumPy kernel of an algorithm, or refuse as a GPU would.

        The kernel is a matrix product for Winograd's algorithm and for FFT too.
        """
        reason = why_refused(algorithm, self.x, self.w, self.conv, self.y)
        if reason is not None:
            raise unsupported(reason)
        if needs_workspace(algorithm, self.x, self.w, self.conv):
            return KERNELS[self.output_name]
        return KERNELS_WITHOUT_SCRATCH[self.output_name]

    def workspace(self, kernel: Kernel) -> int:
        """Return the bytes of workspace that a kernel needs."""
        return kernel.scratch_bytes(self.x.shape, self.w.shape, self.conv, self.accumulator)

    def scaled_work(self, algorithm: Any, alpha: float, beta: float) -> Work:
        """Check the call, and return the work for alpha * result + beta * old values."""
        dtype = numpy_dtype(self.specs[self.output_name].dtype)

        def finish_result(result: Array, read_operand: ReadOperand) -> Array:
            old_values = read_operand(self.output_name) if beta != 0 else None
            return scale_add(result, alpha, beta, old_values, dtype)

        return self.convolution_work(algorithm, finish_result)

    def convolution_work(self, algorithm: Any, finish_result: FinishResult) -> Work:
        """Check the call, and return the work: it writes finished results, some images at a time.

        `finish_result` receives the sums, and a function that returns the values of an operand for
        the same images.
        """
        kernel = self.kernel(algorithm)
        workspace = self.arguments["workSpace"] or 0
        workspace_bytes = self.workspace(kernel)
        if workspace_bytes:
            check_aligned("workspace", workspace, _WORKSPACE_ALIGNMENT)
        self.check_workspace(workspace_bytes)
        self.views()

        def work() -> None:
            views = self.views()
            scratch = self.api.memory.view(workspace, workspace_bytes)
            is_tf32 = rounds_to_tf32(algorithm, self.x.dtype, self.conv)
            self.api.kernels_run.add((kernel, is_tf32))
            values = {name: read_values(views[name], spec) for name, spec in self.specs.items()}
            factors = {
                name: values[name] for name in self.operation.reads if name not in ("bias", "z")
            }
            spec = self.specs[self.output_name]
            batches = convolve_batches(
                kernel, self.conv, factors, spec.shape, self.accumulator, scratch, is_tf32
            )
            for batch, result in batches:

                def read_operand(name: str, batch: slice = batch) -> Array:
                    has_one_image = len(values[name]) == 1
                    return values[name] if has_one_image else values[name][batch]

                output = finish_result(result, read_operand)
                write_values(views[self.output_name], spec, batch, output)

        return work


def convolve_batches(
    kernel: Kernel,
    conv: ConvolutionSpec,
    factors: Mapping[str, Array],
    shape: tuple[int, ...],
    accumulator: np.dtype[Any],
    scratch: Bytes,
    is_tf32: bool,
) -> Iterator[tuple[slice, Array]]:
    """Yield the sums before scaling and rounding, some images at a time.

    The gradient of a filter is yielded once, summed over all images.  `factors` are the operands
    that are multiplied, by name, in the order of the C function; those that are not "w" are images.
    """

    def convert(values: Array) -> Array:
        values = values.astype(accumulator, order="C", copy=False)
        return round_tf32(values) if is_tf32 else values

    images = [values for name, values in factors.items() if name != "w"]
    count = len(images[0])
    values_per_image = sum(math.prod(values.shape[1:]) for values in images)
    if "w" in factors:
        values_per_image += 2 * math.prod(shape[1:])
    step = max(1, BATCH_BYTES // max(1, values_per_image * accumulator.itemsize))
    batches = [slice(start, start + step) for start in range(0, count, step)]
    if "w" not in factors:
        sums = np.zeros(shape, accumulator)
        for batch in batches:
            kernel.run(*(convert(values[batch]) for values in images), conv, sums, scratch)
        yield slice(None), sums
        return
    filters = convert(factors["w"])
    for batch in batches:
        operands = [
            filters if name == "w" else convert(values[batch]) for name, values in factors.items()
        ]
        result = np.empty((len(images[0][batch]), *shape[1:]), accumulator)
        kernel.run(*operands, conv, result, scratch)
        yield batch, result


def accumulator_dtype(x: TensorSpec, conv: ConvolutionSpec) -> np.dtype[Any]:
    """Return the type of the sums."""
    dtype = conv.compute_type_for(x)
    return np.dtype({DataType.DOUBLE: "float64", DataType.INT32: "int32"}.get(dtype, "float32"))


def run_convolution(c_call: SimpleNamespace, operation: Operation) -> Work:
    """Answer the C function that convolves."""
    call = ConvolutionCall(c_call, operation)
    alpha, beta = call.scalars_of(operation.writes[0])
    return call.scaled_work(call.algorithm, alpha, beta)


def write_workspace_size(c_call: SimpleNamespace, operation: Operation) -> None:
    """Answer the C function that returns the workspace of an algorithm."""
    call = ConvolutionCall(c_call, operation)
    c_call.sizeInBytes[0] = call.workspace(call.kernel(call.algorithm))


def write_max_count(c_call: SimpleNamespace, operation: Operation) -> None:
    """Answer the C function that returns the number of algorithms."""
    c_call.count[0] = len(_RANKINGS[operation.writes[0]])


class _RankedAlgorithm(NamedTuple):
    """A row of a ranking."""

    algorithm: Any
    status: Status = Status.SUCCESS
    milliseconds: float = -1.0
    workspace: int = 0


def write_ranking(c_call: SimpleNamespace, operation: Operation) -> None:
    """Answer the C function that ranks the algorithms without running them."""
    call = ConvolutionCall(c_call, operation)
    rows = []
    for algorithm in call.ranking:
        try:
            workspace = call.workspace(call.kernel(algorithm))
            rows.append(_RankedAlgorithm(algorithm, workspace=workspace))
        except RefusalError as refusal:
            rows.append(_RankedAlgorithm(algorithm, refusal.status))
    _write_rows(call, rows)


def write_search(c_call: SimpleNamespace, operation: Operation) -> None:
    """Answer the C function that runs the algorithms and ranks them by their times.

    A kernel is run once for all algorithms that have it; the output is overwritten, as by cuDNN.
    """
    call = ConvolutionCall(c_call, operation)
    times: dict[Kernel, float] = {}
    _write_rows(call, [_timed_row(call, algorithm, times) for algorithm in call.ranking])


def _timed_row(
    call: ConvolutionCall, algorithm: Any, times: dict[Kernel, float]
) -> _RankedAlgorithm:
    workspace = 0
    try:
        kernel = call.kernel(algorithm)
        workspace = call.workspace(kernel)
        work = call.scaled_work(algorithm, 1.0, 0.0)
        if kernel not in times:
            start = time.perf_counter()
            work()
            times[kernel] = (time.perf_counter() - start) * 1e3
        return _RankedAlgorithm(algorithm, Status.SUCCESS, times[kernel], workspace)
    except RefusalError as refusal:
        status = refusal.status
        if status == Status.BAD_PARAM_SIZE_INSUFFICIENT:
            # The row still says how much workspace the algorithm needs.
            status = Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
        return _RankedAlgorithm(algorithm, status, workspace=workspace)


def _write_rows(call: ConvolutionCall, rows: list[_RankedAlgorithm]) -> None:
    """Write the results of a search or a ranking; algorithms that are refused come last."""
    max_count = call.arguments["requestedAlgoCount"]
    if max_count < 1:
        raise bad_parameter(f"requestedAlgoCount={max_count}")
    rows.sort(key=lambda row: (row.status != Status.SUCCESS, row.milliseconds))
    rows = rows[:max_count]
    for result, row in zip(call.arguments["perfResults"], rows, strict=False):
        result.algo = row.algorithm
        result.status = row.status
        result.time = row.milliseconds
        result.memory = row.workspace
        result.determinism = Determinism.NON_DETERMINISTIC
        if is_deterministic(row.algorithm):
            result.determinism = Determinism.DETERMINISTIC
        result.mathType = call.conv.math_type
    call.arguments["returnedAlgoCount"][0] = len(rows)
