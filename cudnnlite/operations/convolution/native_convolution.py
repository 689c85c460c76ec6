"""`NativeConvolution`, a convolution's descriptors and graph, and convolutions of two calls."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from cudnnlite._raw.calls import PreparedCall
from cudnnlite.cached_property import cached_property
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.operations.convolution.graphs import data_of
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
    def data(self) -> GraphData:
        """The operation graph as data."""
        if self._shared_graph is not None:
            return self._shared_graph.data
        return data_of(self.problem)

    @cached_property
    def graph(self) -> OperationGraph:
        """The operation graph; NotSupportedError if cuDNN has none."""
        if self._shared_graph is not None:
            return self._shared_graph
        return lower(self.data, self.handle, self._stack)

    def described_values(self) -> dict[str, Any]:
        """Return the specs that have descriptors.

        A padding that differs at the two ends of an axis has none.
        """
        values = super().described_values()
        if not (self._for_descriptor_call or self.problem.conv.is_symmetric):
            del values["conv"]
        return values


class CallsInTurn:
    """A convolution followed by a call for what it leaves out; called like a `PreparedCall`.

    Parameters
    ----------
    convolution : PreparedCall or ExecutionPlan
        The convolution.
    second : PreparedCall
        The call behind it.
    names : mapping
        The arguments of `second` that are addresses, and the operand that each of them is.
    extra_names : tuple of str
        The operands that the convolution does not take.
    remark : str
        What the second call does, for messages.
    scalars : ndarray
        The host scalars that `second` reads at each call.
    """

    arguments: tuple[()] = ()
    # Each of the two calls checks its own status.
    check = None

    def __init__(
        self,
        convolution: PreparedCall | ExecutionPlan,
        second: PreparedCall,
        names: Mapping[str, str],
        extra_names: tuple[str, ...],
        remark: str,
        scalars: np.ndarray[Any, Any],
    ) -> None:
        self._convolution: Any = convolution
        self._second = second
        self._names = names
        self._extra_names = extra_names
        self.remark = remark
        self._scalars = scalars

    def replace(self, **addresses: int) -> None:
        """Change the addresses."""
        self._second.replace(**{name: addresses[operand] for name, operand in self._names.items()})
        for name in self._extra_names:
            addresses.pop(name, None)
        self._convolution.replace(**addresses)

    def function(self) -> None:
        """Enqueue the two calls."""
        self._convolution()
        self._second()

    __call__ = function  # of a call between conversions to another layout


def followed_by_bias(
    native: NativeConvolution, convolution: PreparedCall | ExecutionPlan
) -> CallsInTurn:
    """Return a convolution followed by `cudnnAddTensor`."""
    one = _scalars(native, 1)
    addition = native.prepare(
        "cudnnAddTensor",
        alpha=one.ctypes.data,
        beta=one.ctypes.data,
        aDesc=native.descriptors["bias"].ptr,
        A=0,
        cDesc=native.descriptors["y"].ptr,
        C=0,
    )
    remark = "cudnnAddTensor adds the bias"
    return CallsInTurn(convolution, addition, {"A": "bias", "C": "y"}, ("bias", "z"), remark, one)


def followed_by_activation(native: NativeConvolution, convolution: ExecutionPlan) -> CallsInTurn:
    """Return an engine's convolution followed by `cudnnActivationForward` in place."""
    scalars = _scalars(native, 1, 0)
    one = scalars.ctypes.data
    y = native.descriptors["y"].ptr
    activation = native.prepare(
        "cudnnActivationForward",
        activationDesc=native.descriptors["activation"].ptr,
        alpha=one,
        xDesc=y,
        x=0,
        beta=one + scalars.itemsize,
        yDesc=y,
        y=0,
    )
    remark = "cudnnActivationForward computes the activation"
    return CallsInTurn(convolution, activation, {"x": "y", "y": "y"}, (), remark, scalars)


def _scalars(native: NativeConvolution, *values: float) -> np.ndarray[Any, Any]:
    """Return host scalars of the type that cuDNN reads beside the operands."""
    is_double = native.problem.x.dtype == DataType.DOUBLE
    return np.array(values, np.float64 if is_double else np.float32)


def convolution_then_bias(native: NativeConvolution, algorithm: object, size: int) -> CallsInTurn:
    """Return two descriptor calls for an algorithm that the fused call does not support."""
    convolution = native.prepare(
        "cudnnConvolutionForward", algo=algorithm, workSpaceSizeInBytes=size
    )
    return followed_by_bias(native, convolution)
