"""`NativeConvolution`, a convolution's descriptors and graph, and convolutions of two calls."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from cudnnlite._raw.calls import PreparedCall
from cudnnlite.cached_property import cached_property
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.operations.convolution.graphs import graph_of
from cudnnlite.plans.native_problem import NativeProblem
from cudnnlite.problems.problem import Problem


class NativeConvolution(NativeProblem):
    """The descriptors of a convolution, and its operation graph.

    Parameters
    ----------
    handle, problem, stack
        As in `NativeProblem`.
    graph : OperationGraph, optional
        The problem's graph, if the caller has it.  The caller keeps it open for as long as this
        object is used.
    for_descriptor_call : bool
        Whether the descriptor call will be made.  Then a padding that differs at the two ends of an
        axis is refused; otherwise it is left to the graph.
    """

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        stack: ExitStack,
        graph: OperationGraph | None = None,
        *,
        for_descriptor_call: bool = False,
    ) -> None:
        super().__init__(handle, problem, stack)
        self._shared_graph = graph
        self._for_descriptor_call = for_descriptor_call

    @cached_property
    def graph(self) -> OperationGraph:
        """The operation graph; NotSupportedError if cuDNN has none."""
        if self._shared_graph is not None:
            return self._shared_graph
        return graph_of(self.handle, self.problem, self._stack)

    def described_values(self) -> dict[str, Any]:
        """Return the specs that have descriptors.

        A padding that differs at the two ends of an axis has none.
        """
        values = super().described_values()
        if not (self._for_descriptor_call or self.problem.conv.is_symmetric):
            del values["conv"]
        return values


class ConvolutionThenBias:
    """A convolution followed by `cudnnAddTensor`; a plan calls it like a `PreparedCall`."""

    arguments: tuple[()] = ()
    # Each of the two calls checks its own status.
    check = None
    remark = "cudnnAddTensor adds the bias"

    def __init__(
        self, native: NativeConvolution, convolution: PreparedCall | ExecutionPlan
    ) -> None:
        is_double = native.problem.x.dtype == DataType.DOUBLE
        scalar_dtype: Any = np.float64 if is_double else np.float32
        self._one = np.ones((), scalar_dtype)
        self._convolution: Any = convolution
        self._addition = native.prepare(
            "cudnnAddTensor",
            alpha=self._one.ctypes.data,
            beta=self._one.ctypes.data,
            aDesc=native.descriptors["bias"].ptr,
            A=0,
            cDesc=native.descriptors["y"].ptr,
            C=0,
        )

    def replace(self, bias: int, y: int, z: int = 0, **addresses: int) -> None:
        """Change the addresses."""
        self._convolution.replace(y=y, **addresses)
        self._addition.replace(A=bias, C=y)

    def function(self) -> None:
        """Enqueue the convolution and the addition."""
        self._convolution()
        self._addition()

    __call__ = function  # of a call between conversions to another layout


class ConvolutionThenActivation:
    """An engine's convolution, followed by `cudnnActivationForward` in place; called alike."""

    arguments: tuple[()] = ()
    # Each of the two calls checks its own status.
    check = None
    remark = "cudnnActivationForward computes the activation"

    def __init__(self, native: NativeConvolution, convolution: ExecutionPlan) -> None:
        is_double = native.problem.x.dtype == DataType.DOUBLE
        scalar_dtype: Any = np.float64 if is_double else np.float32
        self._scalars = np.array([1, 0], scalar_dtype)
        one = self._scalars.ctypes.data
        y = native.descriptors["y"].ptr
        self._convolution: Any = convolution
        self._activation = native.prepare(
            "cudnnActivationForward",
            activationDesc=native.descriptors["activation"].ptr,
            alpha=one,
            xDesc=y,
            x=0,
            beta=one + self._scalars.itemsize,
            yDesc=y,
            y=0,
        )

    def replace(self, y: int, **addresses: int) -> None:
        """Change the addresses."""
        self._convolution.replace(y=y, **addresses)
        self._activation.replace(x=y, y=y)

    def function(self) -> None:
        """Enqueue the convolution and the activation."""
        self._convolution()
        self._activation()

    __call__ = function


def convolution_then_bias(
    native: NativeConvolution, algorithm: object, size: int
) -> ConvolutionThenBias:
    """Return two descriptor calls for an algorithm that the fused call does not support."""
    convolution = native.prepare(
        "cudnnConvolutionForward", algo=algorithm, workSpaceSizeInBytes=size
    )
    return ConvolutionThenBias(native, convolution)
