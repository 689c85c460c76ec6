"""The emulated half of 'an operation is data': a C call unmarshalled by the names of its header, and NumPy in, NumPy out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.descriptors import DESCRIPTORS
from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.precision import scale_add
from cudnnlite.emulated.registry import RefusalError, emulates
from cudnnlite.enums import DataType, Status
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.operation import OPERATIONS
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.frozen import FrozenSpec

Array = np.ndarray[Any, Any]

FLOATS = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)


class Call:
    """A call of an operation's C function, or of one that asks about it; its descriptors are read back and checked.

    Parameters
    ----------
    api : EmulatedApi
        The table that was called.
    operation : str
        The operation's name.
    function : str
        The C function that was called.
    arguments : tuple
        What it was given.

    Attributes
    ----------
    specs, options : dict
        By name.
    given : dict
        The C arguments, by the header's names and by ours.

    Raises
    ------
    RefusalError
        The descriptors do not fit together.
    """

    def __init__(self, api: EmulatedApi, operation: str, function: str, arguments: tuple[Any, ...]) -> None:
        self.api, self.operation = api, OPERATIONS[operation]
        own = self.operation
        self.given = dict(zip(FUNCTIONS[function].argnames, arguments, strict=True))
        self.given |= {here: self.given[there] for there, here in own.names.items() if there in self.given}
        kinds = {name: FilterSpec if name in own.filters else TensorSpec for name in (*own.reads, *own.writes)}
        self.specs: dict[str, Any] = {name: self._described(name, kind) for name, kind in kinds.items()}
        self.options = {name: self._option(name, kind) for name, kind in own.options.items()}
        (written,) = own.writes
        try:
            expected = own.infer(**{name: self.specs[name] for name in own.reads}, **self.options)
            own.check(self.specs, self.options)
        except ArgumentError as error:
            raise RefusalError(Status.BAD_PARAM, str(error)) from error
        if expected.shape != self.specs[written].shape:
            shape = self.specs[written].shape
            raise RefusalError(Status.BAD_PARAM, f"{written} has shape {shape}, the result has {expected.shape}")

    def _described(self, name: str, kind: type) -> Any:
        return DESCRIPTORS[kind].read(self.api.real, self.given[f"{name}Desc"])

    def _option(self, name: str, kind: Any) -> Any:
        if issubclass(kind, FrozenSpec):
            return self._described(name, kind)
        value = kind(self.given[name])
        if value.name not in kind.__members__:
            raise RefusalError(Status.BAD_PARAM, f"{name}={self.given[name]}; allowed: {', '.join(kind.__members__)}")
        return value

    @property
    def compute(self) -> np.dtype[Any]:
        """What is computed in: float64 beside float64, float32 otherwise."""
        return np.dtype(np.float64 if self.specs[self.operation.reads[0]].dtype == DataType.DOUBLE else np.float32)

    def scalars(self) -> tuple[float, float]:
        """Return alpha and beta, read in the host type that cuDNN wants for them."""
        alpha, beta = self.given["alpha"], self.given["beta"]
        if not (alpha and beta):
            raise RefusalError(Status.BAD_PARAM_NULL_POINTER, "alpha or beta is a null pointer")
        kind = ctypes.c_double if self.compute == np.float64 else ctypes.c_float
        return kind.from_address(alpha).value, kind.from_address(beta).value

    def view(self, name: str) -> Bytes:
        """Return the memory of an operand, which must lie inside one allocation and be aligned."""
        address, spec = self.given[name] or 0, self.specs[name]
        size = numpy_dtype(spec.dtype).itemsize
        if address % size:
            raise RefusalError(
                Status.BAD_PARAM_MISALIGNED_POINTER, f"{name} at {address:#x} is not aligned to {size} bytes"
            )
        return self.api.memory.view(address, spec.nbytes)

    def views(self) -> dict[str, Bytes]:
        """Return the memory of all operands; that of what is written overlaps no other's, and its values not each other."""
        found = {name: self.view(name) for name in self.specs}
        (written,) = self.operation.writes
        for name in self.operation.reads:
            if np.shares_memory(found[name], found[written]):
                raise RefusalError(Status.BAD_PARAM, f"{name} and {written} overlap in memory")
        if self.specs[written].overlaps_itself:
            strides = self.specs[written].strides
            raise RefusalError(Status.BAD_PARAM, f"values of {written} overlap each other in memory: strides {strides}")
        return found


def computes(
    operation: str,
    function: str,
    *,
    dtypes: tuple[DataType, ...] = FLOATS,
    ranks: tuple[int, ...] = (4, 5),
    mixed: Status = Status.BAD_PARAM,
    refuse: Callable[[Mapping[str, Any], Mapping[str, Any]], str] = lambda specs, options: "",
) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Register the decorated function, NumPy in, NumPy out, as what an operation computes.

    It receives the operands in the order of `Operation.reads`, float32 or float64, and the options by name, and returns the
    result before alpha, beta and rounding.  Descriptors, addresses, alignment and what is refused are seen to here.

    Parameters
    ----------
    operation, function : str
        Its name, and its C function.
    dtypes, ranks : tuple
        What an H200 takes: of all operands alike.  (1-D images are told to cuDNN at rank 4.)
    mixed : Status
        What is returned where their data types differ.
    refuse : callable, optional
        (all specs, options) -> why an H200 calls them bad parameters; empty if it does not.
    """

    def register(compute: Callable[..., Array]) -> Callable[..., Array]:
        def entry(api: EmulatedApi, *arguments: Any) -> None:
            call = Call(api, operation, function, arguments)
            (written,) = call.operation.writes
            target, specs = call.specs[written], call.specs
            if any(spec.dtype != target.dtype for spec in specs.values()) or target.dtype not in dtypes:
                kinds = ", ".join(f"{name} is {spec.dtype.name}" for name, spec in specs.items())
                raise RefusalError(
                    mixed if len({spec.dtype for spec in specs.values()}) > 1 else Status.NOT_SUPPORTED, kinds
                )
            if target.rank not in ranks:
                raise RefusalError(Status.NOT_SUPPORTED, f"tensors of rank {target.rank}")
            if why := refuse(specs, call.options):
                raise RefusalError(Status.BAD_PARAM, why)
            alpha, beta = call.scalars()
            views = call.views()
            values = [read_values(views[name], specs[name]).astype(call.compute) for name in call.operation.reads]
            with np.errstate(all="ignore"):
                result = compute(*values, **call.options)
            old = read_values(views[written], target) if beta else None
            dtype = numpy_dtype(target.dtype)
            write_values(views[written], target, slice(None), scale_add(result, alpha, beta, old, dtype))

        emulates(function)(entry)
        return compute

    return register
