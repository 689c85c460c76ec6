"""`SumOfNothing`: sums over the images of an empty batch, for which cuDNN has no descriptors."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType
from cudnnlite.problems.problem import Problem
from cudnnlite.specs.filter import as_tensor


class SumOfNothing:
    """Computes out = beta * out, or zeros if beta is 0; it has the interface of a `PreparedCall`.

    Outputs without values are left out.

    C functions: `cudnnScaleTensor`, and `cudnnSetTensor` where `out` is not read.
    """

    arguments: tuple[()] = ()
    check = None  # the prepared calls raise errors

    def __init__(self, handle: Handle, problem: Problem, stack: ExitStack) -> None:
        operation = problem.operation
        beta = problem.values.get("beta", 0.0)
        function = "cudnnScaleTensor" if beta else "cudnnSetTensor"
        self._calls = {}
        self._scalars = []  # C has their addresses
        for name in operation.writes:
            spec = as_tensor(problem.specs[name])
            if spec.size == 0:
                continue
            descriptor = stack.enter_context(TensorDescriptor(spec))
            host_type = ctypes.c_double if spec.dtype == DataType.DOUBLE else ctypes.c_float
            self._scalars.append(host_type(beta))
            address = ctypes.addressof(self._scalars[-1])
            (header_name,) = operation.header(name)
            call = handle.api.prepare(function, handle.ptr, descriptor.ptr, 0, address)
            self._calls[header_name] = call

    def replace(self, **addresses: int) -> None:
        """Change the addresses of the outputs; those of the empty operands are not used."""
        for name, call in self._calls.items():
            call.replace(y=addresses[name])

    def function(self) -> None:
        """Enqueue it."""
        for call in self._calls.values():
            call()
