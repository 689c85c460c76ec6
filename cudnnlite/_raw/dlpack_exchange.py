"""DLPack's C exchange API: what a library's type offers to read its arrays by a C call.

The structures are those of the DLPack 1.3 specification
(https://dmlc.github.io/dlpack/latest/c_api.html).  A type has a capsule with a table of C functions
as its attribute `__dlpack_c_exchange_api__`.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

_CAPSULE_NAME = b"dlpack_exchange_api"
_MAJOR = 1
_AXIS_BYTES = 8


class ExchangedTensor(ctypes.Structure):
    """A `DLTensor`; shape and strides belong to the array that was read."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),  # code, bits and lanes in one number
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Table(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("export_object", ctypes.c_void_p),
        ("import_object", ctypes.c_void_p),
        ("read_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


# They run while Python's lock is held, and raise the exception that the library has set.
_Read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ExchangedTensor))
_CurrentStream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


class ArrayFacts(NamedTuple):
    """What a C call tells of an array.

    Attributes
    ----------
    ptr : int
        The address of the first value.
    device : tuple of int
        The type and the number of its device.
    description : tuple
        Sizes and strides as bytes, and the data type as a number: equal for arrays that are
        described alike.
    """

    ptr: int
    device: tuple[int, int]
    description: tuple[bytes, bytes, int]


class ExchangeApi:
    """The C functions of one library."""

    def __init__(self, table: _Table) -> None:
        self._read = _Read(table.read_object)
        self._current_stream = _CurrentStream(table.current_stream)

    def facts_of(self, array: object) -> ArrayFacts | None:
        """Return what the library tells of an array; None where it fails, or there are no values."""
        tensor = ExchangedTensor()
        try:
            failed = self._read(array, tensor)
        except Exception:  # each library raises its own kind
            return None
        nbytes = tensor.ndim * _AXIS_BYTES
        if failed or not nbytes or not tensor.data:
            return None
        sizes = ctypes.string_at(tensor.shape, nbytes)
        strides = ctypes.string_at(tensor.strides, nbytes) if tensor.strides else b""
        return ArrayFacts(
            tensor.data + tensor.byte_offset,
            (tensor.device_type, tensor.device_id),
            (sizes, strides, tensor.dtype),
        )

    def stream_on(self, device: tuple[int, int]) -> int:
        """Return the address of the stream that the library works on now."""
        address = ctypes.c_void_p()
        self._current_stream(*device, address)
        return address.value or 0


def exchange_api_of(kind: type) -> ExchangeApi | None:
    """Return what a type offers; None if it has no such table, or one of another version."""
    capsule: Any = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None or not _is_valid(capsule, _CAPSULE_NAME):
        return None
    table = _Table.from_address(_pointer_of(capsule, _CAPSULE_NAME))
    if table.major != _MAJOR or not table.read_object or not table.current_stream:
        return None
    return ExchangeApi(table)
