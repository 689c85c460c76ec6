"""The memory of a tensor as an array of logical shape (N, C, *spatial), and back.

Copies of device arrays and operands of the emulated device need it alike: strides may leave gaps,
and elements of vector types hold 4 or 32 channels each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnlite.arguments import MAX_INT
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor

Array = np.ndarray[Any, Any]
# What NumPy tries before it gives up; slices of one buffer take a few steps.
_MOST_WORK = 10_000


def bytes_spec(nbytes: int) -> TensorSpec:
    """Return the spec of a buffer of at least `nbytes`, and of at least one byte.

    The spec has rank 2 if one axis cannot have that many bytes.
    """
    rows = -(-nbytes // MAX_INT)
    if rows <= 1:
        return TensorSpec((max(nbytes, 1),), "uint8")
    return TensorSpec((rows, -(-nbytes // rows)), "uint8")


def memory_axes(spec: TensorSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides in single values: a vector type's channels become a last axis."""
    if spec.vector == 1:
        return spec.shape, spec.strides
    shape = (spec.shape[0], spec.shape[1] // spec.vector, *spec.shape[2:], spec.vector)
    return shape, (*(stride * spec.vector for stride in spec.strides), 1)


def memory_view(memory: Array, spec: TensorSpec) -> Array:
    """View bytes by the tensor's memory axes."""
    shape, strides = memory_axes(spec)
    dtype = numpy_dtype(spec.dtype)
    values: Array = np.ndarray(
        shape, dtype, memory, strides=tuple(stride * dtype.itemsize for stride in strides)
    )
    return values


def read_values(memory: Array, spec: TensorSpec | FilterSpec) -> Array:
    """Return the values in logical shape: a view, or a copy for a vector type."""
    tensor = as_tensor(spec)
    values = memory_view(memory, tensor)
    if tensor.vector == 1:
        return values
    return np.moveaxis(values, -1, 2).reshape(tensor.shape)


def share_values(
    spec: TensorSpec, address: int, other_spec: TensorSpec, other_address: int
) -> bool:
    """Return whether tensors at two addresses have a byte of a value in common; gaps do not count.

    The memory is not read.  To decide this may take exponential time; where it would take long, the
    answer is True.
    """
    first = np.asarray(_Values(spec, address))
    second = np.asarray(_Values(other_spec, other_address))
    try:
        return np.shares_memory(first, second, max_work=_MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


class _Values:
    """The values of a tensor at an address, as NumPy describes them."""

    def __init__(self, spec: TensorSpec, address: int) -> None:
        shape, strides = memory_axes(spec)
        itemsize = numpy_dtype(spec.dtype).itemsize
        self.__array_interface__ = {
            "shape": shape,
            "typestr": f"|V{itemsize}",
            "strides": tuple(stride * itemsize for stride in strides),
            "data": (address, True),
            "version": 3,
        }


def split_vectors(values: Array, vector: int) -> Array:
    """Return values of logical shape with the memory axes of a vector type, if it is one."""
    if vector == 1:
        return values
    n, c, *spatial = values.shape
    return np.moveaxis(values.reshape(n, c // vector, vector, *spatial), 2, -1)


def write_values(memory: Array, spec: TensorSpec | FilterSpec, batch: slice, values: Array) -> None:
    """Write the images of `batch`, given in logical shape; gaps between strides stay untouched."""
    memory_view(memory, as_tensor(spec))[batch][...] = split_vectors(values, spec.vector)


def as_row(array: Array) -> Array:
    """Return a contiguous array's bytes as one row."""
    if array.size == 0:
        return np.empty((1, 0), np.uint8)
    return array.reshape(1, -1).view(np.uint8)


class _Exporter:
    """The base of NumPy's array over a buffer, which it keeps alive."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self.__array_interface__ = {
            "shape": (buffer.size,),
            "typestr": "|u1",
            "data": (int(buffer.handle), False),
            "version": 3,
        }


def host_bytes(buffer: Any) -> Array:
    """Return host memory, with `handle` and `size`, as an array of bytes that keeps it alive."""
    if not buffer.size:
        return np.empty(0, np.uint8)
    return np.asarray(_Exporter(buffer))
