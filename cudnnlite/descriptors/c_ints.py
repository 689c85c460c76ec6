"""`c_ints`: an array of C ints, as cuDNN takes shapes, strides and lengths; `device_ints`: one in device memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any


def c_ints(values: Iterable[int]) -> Any:
    """Return a ctypes array that holds the values."""
    numbers = tuple(values)
    return (ctypes.c_int * len(numbers))(*numbers)


def device_ints(address: int) -> Any:
    """Return a pointer to C ints in device memory, which is not looked at here."""
    return ctypes.pointer(ctypes.c_int.from_address(address))
