"""`c_ints`: an array of C ints, as cuDNN takes shapes, strides and lengths."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any


def c_ints(values: Iterable[int]) -> Any:
    """Return a ctypes array that holds the values."""
    numbers = tuple(values)
    return (ctypes.c_int * len(numbers))(*numbers)
