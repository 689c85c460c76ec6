"""Emulated conversion of tensors from one layout to another."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cudnnlite.descriptors import read_tensor_spec
from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.precision import scale_add
from cudnnlite.emulated.registry import RefusalError, emulates
from cudnnlite.enums import DataType, Status
from cudnnlite.specs import TensorSpec

# cuDNN converts between some data types too; nothing here asks for that, so it is refused.
_DTYPES = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16, DataType.INT8)
_RANKS = (4, 5)  # as cuDNN is told: a 1-D tensor has four axes


@emulates("cudnnTransformTensor")
def transform_tensor(
    api: EmulatedApi, handle: Any, alpha: int, x_desc: Any, x: int, beta: int, y_desc: Any, y: int
) -> None:
    """Compute y = alpha * x + beta * y, each with strides of its own."""
    source, target = read_tensor_spec(api.real, x_desc), read_tensor_spec(api.real, y_desc)
    _check(source, target)
    if not (alpha and beta):
        raise RefusalError(Status.BAD_PARAM_NULL_POINTER, "alpha or beta is a null pointer")
    dtype = numpy_dtype(source.dtype)
    for name, address in (("x", x or 0), ("y", y or 0)):
        if address % dtype.itemsize:
            raise RefusalError(
                Status.BAD_PARAM_MISALIGNED_POINTER, f"{name} at {address:#x} is not aligned to {dtype.itemsize} bytes"
            )
    images, memory = api.memory.view(x or 0, source.nbytes), api.memory.view(y or 0, target.nbytes)
    if np.shares_memory(images, memory):
        raise RefusalError(Status.BAD_PARAM, "x and y overlap in memory")
    scalar = ctypes.c_double if source.dtype == DataType.DOUBLE else ctypes.c_float
    a, b = scalar.from_address(alpha).value, scalar.from_address(beta).value
    values = read_values(images, source).astype(np.float64 if dtype == np.float64 else np.float32, copy=False)
    old = read_values(memory, target) if b else None
    write_values(memory, target, slice(None), scale_add(values, a, b, old, dtype))


def _check(source: TensorSpec, target: TensorSpec) -> None:
    if source.shape != target.shape:
        raise RefusalError(Status.BAD_PARAM, f"x has shape {source.shape}, y {target.shape}")
    if source.dtype != target.dtype:
        raise RefusalError(Status.NOT_SUPPORTED, f"x is {source.dtype.name}, y is {target.dtype.name}")
    if source.dtype not in _DTYPES or source.rank not in _RANKS:
        raise RefusalError(Status.NOT_SUPPORTED, f"tensors of rank {source.rank} and {source.dtype.name}")
    if target.overlaps_itself:
        raise RefusalError(Status.BAD_PARAM, f"values of y overlap each other in memory: strides {target.strides}")
