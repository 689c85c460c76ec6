"""`ForeignArray`: what is known of an array in device memory, whoever made it; and the error for one that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from cudnnlite.errors import ArrayTypeError
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.layout import span


class ForeignArray(NamedTuple):
    """Where an array is and how it lies: what DLPack and the array interfaces exchange.

    Attributes
    ----------
    ptr : int
        The address of the first value.
    shape, strides : tuple of int
        In elements.
    dtype : numpy dtype
        Of one value.
    readonly : bool
        Whether the owner forbids writing.
    owner : object
        Keeps the memory alive.
    """

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    readonly: bool
    owner: object

    @property
    def nbytes(self) -> int:
        """The bytes from the first value to the last, gaps included."""
        return span(self.shape, self.strides) * self.dtype.itemsize


class SupportsDLPack(Protocol):
    """An array that DLPack exchanges: a DeviceArray, PyTorch's, CuPy's, JAX's."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """An array with the CUDA array interface: Numba's, CuPy's."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


AnyArray: TypeAlias = SupportsDLPack | SupportsCudaArrayInterface  # on a device, whoever made it
Operand: TypeAlias = AnyArray | TensorSpec | FilterSpec  # what a plan can be made for


def host_array_error(array: object, argument: str) -> ArrayTypeError:
    """Return the error for host memory where device memory is needed."""
    made = "handle.empty(shape, dtype)" if argument.startswith("out") else f"handle.array({argument})"
    return ArrayTypeError(f"{argument} is a host array ({type(array).__name__}); a device array is needed: {made}")
