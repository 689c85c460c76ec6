"""bfloat16 through DLPack.

NumPy and cuda.core do not know bfloat16.  So a capsule's dtype is exchanged with float16's.

The structures are those of the DLPack 1.x specification
(https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

import ctypes
from typing import Any

FLOAT, BFLOAT = 2, 4  # kDLFloat, kDLBfloat


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
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
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def relabel(capsule: Any, old: int, new: int) -> bool:
    """Change the dtype code of a fresh 16-bit DLPack capsule in place.

    `old` and `new` are `FLOAT` or `BFLOAT`.  Returns whether the capsule held 16-bit values of the
    code `old`; any other capsule is left alone.
    """
    if _is_valid(capsule, b"dltensor_versioned"):
        address = _get_pointer(capsule, b"dltensor_versioned")
        tensor = _Versioned.from_address(address).tensor
    else:
        tensor = _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    if (tensor.dtype.code, tensor.dtype.bits) != (old, 16):
        return False
    tensor.dtype.code = new
    return True
