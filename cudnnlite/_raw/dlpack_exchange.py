"""The stream that another library works on, from DLPack's C exchange API.

The structure is that of the DLPack 1.3 specification
(https://dmlc.github.io/dlpack/latest/c_api.html).  A type of arrays has a capsule with a table of C
functions as its attribute `__dlpack_c_exchange_api__`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_CAPSULE_NAME = b"dlpack_exchange_api"
_MAJOR = 1


class ExchangeTable(ctypes.Structure):
    """A `DLPackExchangeAPI`."""

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


# The type of `current_stream`. Python's lock is held during a call, and an exception that the
# library sets is raised.
CurrentStream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


def current_stream_of(kind: type) -> Callable[[int, int], int] | None:
    """Return a function: (DLPack device type, number) -> the address of the library's stream.

    None for a type without such a table, or with a table of another version.
    """
    capsule: Any = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None or not _is_valid(capsule, _CAPSULE_NAME):
        return None
    table = ExchangeTable.from_address(_pointer_of(capsule, _CAPSULE_NAME))
    if table.major != _MAJOR or not table.current_stream:
        return None
    function = CurrentStream(table.current_stream)

    def current_stream(device_type: int, number: int) -> int:
        address = ctypes.c_void_p()
        function(device_type, number, address)
        return address.value or 0

    return current_stream
