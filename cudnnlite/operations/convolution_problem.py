"""`ConvolutionProblem`: the specs of a forward convolution, their descriptors, and what cuDNN says of them."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

from cudnnlite._raw.calls import PreparedCall
from cudnnlite._raw.types import cudnnConvolutionFwdAlgoPerf_t
from cudnnlite.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, check_describable
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import ConvolutionFwdAlgo, DataType, Determinism, MathType, Status, TensorFormat
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError
from cudnnlite.operations.operands import HostScalars, check_shape, tensor_spec
from cudnnlite.search.results import AlgorithmResult, AlgorithmTable
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec

DEFAULT_CONV = ConvolutionSpec()


class ConvolutionProblem:
    """The specs of a forward convolution and, inside `with`, their descriptors."""

    def __init__(self, handle: Handle, x: Any, w: Any, conv: Any, y: Any = None) -> None:
        if type(conv) is not ConvolutionSpec:
            hint = "; pass its .spec" if isinstance(conv, ConvolutionDescriptor) else ""
            raise ArgumentError(f"conv={conv!r} is not a ConvolutionSpec{hint}")
        self.handle = handle
        self.x = tensor_spec(x, "x")
        self.w = filter_spec_of(w, self.x)
        self.conv = conv.replace(compute_type=conv.compute_type_for(self.x))
        expected = conv.output_spec(self.x, self.w)
        self.y = expected if y is None else tensor_spec(y, "out")
        check_shape(self.y, expected)
        if self.y.overlaps_itself:
            raise ArgumentError(f"out={self.y}: its values overlap each other in memory")

    def describe(self, stack: ExitStack) -> None:
        """Make the descriptors; `stack` owns them."""
        for argument, spec in (("x", self.x), ("w", self.w), ("out", self.y)):
            check_describable(spec, argument)
        self.x_desc = stack.enter_context(TensorDescriptor(self.x))
        self.w_desc = stack.enter_context(FilterDescriptor(self.w))
        self.conv_desc = stack.enter_context(ConvolutionDescriptor(self.conv, spatial_rank=self.x.rank - 2))
        self.y_desc = stack.enter_context(TensorDescriptor(self.y))

    @property
    def pointers(self) -> tuple[Any, Any, Any, Any, Any]:
        """Handle and descriptors in the order of cuDNN's queries."""
        return self.handle.ptr, self.x_desc.ptr, self.w_desc.ptr, self.conv_desc.ptr, self.y_desc.ptr

    def workspace(self, algorithm: ConvolutionFwdAlgo) -> int:
        """Return the bytes of workspace that the algorithm needs with the descriptor's present math type."""
        size = ctypes.c_size_t()
        self.handle.api.cudnnGetConvolutionForwardWorkspaceSize(*self.pointers, algorithm, size)
        return size.value

    def prepare(self, choice: AlgorithmResult, scalars: HostScalars) -> tuple[PreparedCall, int]:
        """Return the call of a choice, addresses missing, and the bytes of workspace that it needs."""
        # a result is applied as one: its math type first, then the workspace is asked again
        self.conv_desc.set_math_type(choice.math_type)
        kind = ConvolutionFwdAlgo(choice.algorithm)
        size = self.workspace(kind)
        handle, x, w, conv, y = self.pointers
        call = self.handle.api.prepare(
            "cudnnConvolutionForward", handle, scalars.alpha_pointer, x, 0, w, 0, conv, kind, 0, size,
            scalars.beta_pointer, y, 0,
        )  # fmt: skip
        return call, size

    def involve(self, error: CudnnError) -> None:
        """Add the specs to an error's message, and what is known to be refused."""
        if isinstance(error, NotSupportedError) and self.w.format == TensorFormat.NHWC and not self.x.is_channels_last:
            error.notes += ("a filter whose channels come last needs an input of that layout; give both in one layout",)
        error.involving(x=self.x, w=self.w, conv=self.conv, y=self.y)

    def table(self, results: Any, count: int, timing: str, searched_with: int | None = None) -> AlgorithmTable:
        """Turn cuDNN's result structs into a table."""
        rows = [
            AlgorithmResult(
                ConvolutionFwdAlgo(result.algo),
                MathType(result.mathType),
                Status(result.status),
                result.time if result.time >= 0 else None,
                result.memory,
                result.determinism == Determinism.DETERMINISTIC,
            )
            for result in results[:count]
        ]
        device = self.handle.device
        title = f"convolution forward of {self.x} by {self.w} to {self.y}, {self.conv}"
        memory = device.memory_info()[1]
        return AlgorithmTable(rows, title=title, timing=timing, device_memory=memory, searched_with=searched_with)

    def result_array(self) -> tuple[Any, ctypes.c_int, int]:
        """Return room for all results, for their number, and how many there may be."""
        room = ctypes.c_int()
        self.handle.api.cudnnGetConvolutionForwardAlgorithmMaxCount(self.handle.ptr, room)
        return (cudnnConvolutionFwdAlgoPerf_t * room.value)(), ctypes.c_int(), room.value

    def prefer_tensor_cores(self) -> None:
        """Ask for tensor cores where the user left the math type of half precision open.

        With DEFAULT math cuDNN multiplies float16 and bfloat16 without them, on an H200 in ten times the time.
        """
        if self.conv.math_type == MathType.DEFAULT and self.x.dtype in (DataType.HALF, DataType.BFLOAT16):
            self.conv_desc.set_math_type(MathType.TENSOR_OP)

    def heuristic(self) -> AlgorithmTable:
        """Ask the v7 heuristic, with the descriptor's present math type."""
        results, count, room = self.result_array()
        self.handle.api.cudnnGetConvolutionForwardAlgorithm_v7(*self.pointers, room, count, results)
        return self.table(results, count.value, f"none, ranked by cuDNN's heuristic on {self.handle.device}")


def filter_spec_of(w: Any, x: TensorSpec) -> FilterSpec:
    """Return the filter's spec; an array that fits both formats is read in the input's."""
    if isinstance(w, FilterSpec):
        return w
    return FilterSpec.from_tensor(tensor_spec(w, "w"), channels_last=x.is_channels_last)
