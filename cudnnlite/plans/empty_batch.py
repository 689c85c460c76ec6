"""`SumOfNothing`: a sum over the images of an empty batch, for which cuDNN has no descriptors."""

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

    C functions: `cudnnScaleTensor`, and `cudnnSetTensor` where `out` is not read.
    """

    arguments: tuple[()] = ()
    check = None  # the prepared call raises errors

    def __init__(self, handle: Handle, problem: Problem, stack: ExitStack) -> None:
        (written,) = problem.operation.writes
        (self._header_name,) = problem.operation.header(written)
        spec = as_tensor(problem.specs[written])
        beta = problem.values["beta"]
        descriptor = stack.enter_context(TensorDescriptor(spec))
        host_type = ctypes.c_double if spec.dtype == DataType.DOUBLE else ctypes.c_float
        self._scalar = host_type(beta)  # C has its address
        function = "cudnnScaleTensor" if beta else "cudnnSetTensor"
        self._call = handle.api.prepare(
            function, handle.ptr, descriptor.ptr, 0, ctypes.addressof(self._scalar)
        )

    def replace(self, **addresses: int) -> None:
        """Change the address of the output; those of the empty operands are not used."""
        self._call.replace(y=addresses[self._header_name])

    def function(self) -> None:
        """Enqueue it."""
        self._call()
