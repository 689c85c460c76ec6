"""DLPack's capsules: `relabel` changes a capsule's data type, `read_capsule` reads its array.

NumPy and cuda.core do not know bfloat16 and float8.  So a capsule with such a type receives a type
of the same size that they know.

The structures are those of the DLPack 1.x specification
(https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

CUDA_DEVICE = 2  # kDLCUDA


class TypeCode(NamedTuple):
    """A DLPack data type of one lane."""

    code: int
    bits: int


class StandIn(NamedTuple):
    """A type of NumPy in place of a type that NumPy does not know."""

    name: str  # in NumPy
    code: TypeCode
    foreign_code: TypeCode  # of the type that NumPy does not know


# The keys are the names of ml_dtypes' types in NumPy.
STAND_INS: Mapping[str, StandIn] = {
    "bfloat16": StandIn("float16", TypeCode(2, 16), TypeCode(4, 16)),
    "float8_e4m3fn": StandIn("uint8", TypeCode(1, 8), TypeCode(10, 8)),
    "float8_e5m2": StandIn("uint8", TypeCode(1, 8), TypeCode(12, 8)),
}


class _ElementType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _ElementType),
    )  # shape, strides and byte_offset follow


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
# A call of a function with a prototype takes half the time of one with `argtypes`.
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
# A DLTensor: data, device type and number, rank, dtype, shape, strides, byte offset.
_TENSOR = struct.Struct("@PiiiIPPQ")
_TensorBytes = ctypes.c_char * _TENSOR.size
_MOST_AXES = 8  # more than cuDNN has
_SIZES_BYTES = tuple(ctypes.c_char * (8 * rank) for rank in range(_MOST_AXES + 1))


def relabel(capsule: Any, old: TypeCode, new: TypeCode) -> bool:
    """Change the dtype of a fresh DLPack capsule in place.

    Returns whether the capsule held values of the type `old`; any other capsule is left alone.
    """
    if _is_valid(capsule, b"dltensor_versioned"):
        address = _get_pointer(capsule, b"dltensor_versioned")
        tensor = _Versioned.from_address(address).tensor
    else:
        tensor = _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    if (tensor.dtype.code, tensor.dtype.bits) != old:
        return False
    tensor.dtype.code = new.code
    return True


def read_capsule(capsule: Any) -> tuple[int, tuple[int, int, int, bytes, bytes]]:
    """Return the address of an array's first value, and its description in a capsule.

    The description has the device's number and type, the dtype as one integer, the shape and the
    strides.  The last two are bytes as C has them; the strides may be empty if the array is packed
    in C order.  The capsule must have no version; it still holds the array's memory afterwards.
    ValueError for any other capsule, for one that was consumed, and for an array of more than 8
    axes.
    """
    # Plain tuples: each call on an array of JAX makes them, and named ones take longer.
    address = _get_pointer(capsule, b"dltensor")
    data, device_type, device_id, rank, dtype, shape, strides, offset = _TENSOR.unpack_from(
        _TensorBytes.from_address(address)
    )
    if rank > _MOST_AXES:
        raise ValueError(f"the array has {rank} axes; allowed: up to {_MOST_AXES}")
    sizes = _SIZES_BYTES[rank]
    shape_bytes = sizes.from_address(shape).raw
    strides_bytes = sizes.from_address(strides).raw if strides else b""
    return data + offset, (device_id, device_type, dtype, shape_bytes, strides_bytes)
