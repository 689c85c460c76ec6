"""Bytes of emulated device memory as arrays of logical shape (N, C, *spatial), and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.memory import Bytes
from cudnnlite.specs import FilterSpec, TensorSpec

Array = np.ndarray[Any, Any]


def _strided(memory: Bytes, spec: TensorSpec) -> Array:
    """View the memory; a vector type adds an axis for the channels inside one element."""
    dtype = numpy_dtype(spec.dtype)
    shape, strides = spec.shape, spec.strides
    if spec.vector > 1:
        shape = (shape[0], shape[1] // spec.vector, *shape[2:], spec.vector)
        strides = (*(stride * spec.vector for stride in strides), 1)
    steps = tuple(stride * dtype.itemsize for stride in strides)
    values: Array = np.ndarray(shape, dtype, memory, strides=steps)
    return values


def _as_tensor(spec: TensorSpec | FilterSpec) -> TensorSpec:
    return spec if isinstance(spec, TensorSpec) else TensorSpec(spec.shape, spec.dtype, spec.layout)


def read_values(memory: Bytes, spec: TensorSpec | FilterSpec) -> Array:
    """Return the values in logical shape: a view, or a copy where a vector type splits the channels."""
    tensor = _as_tensor(spec)
    values = _strided(memory, tensor)
    return values if tensor.vector == 1 else np.moveaxis(values, -1, 2).reshape(tensor.shape)


def write_values(memory: Bytes, spec: TensorSpec, batch: slice, values: Array) -> None:
    """Write the images of `batch`, given in logical shape; gaps between strides stay untouched."""
    target = _strided(memory, spec)[batch]
    if spec.vector > 1:
        n, c, *spatial = values.shape
        values = np.moveaxis(values.reshape(n, c // spec.vector, spec.vector, *spatial), 2, -1)
    target[...] = values
