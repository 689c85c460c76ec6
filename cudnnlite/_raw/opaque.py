"""`Opaque`: the base class of cuDNN's handles and descriptors, as pointers that only their own kind may stand for."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol, TypeAlias, TypeVar

NativeT = TypeVar("NativeT", bound="Opaque")
NativeT_co = TypeVar("NativeT_co", bound="Opaque", covariant=True)


class Opaque(ctypes.c_void_p):
    """A pointer to something inside libcudnn.

    As an argument it takes an instance of the very class, an object whose `ptr` is one (our
    descriptors and handles), or None. A plain integer, which ctypes would pass on as an address, is
    refused: one that is no descriptor crashes the process.
    """

    @classmethod
    def from_param(cls, value: Any) -> Any:
        """Return what ctypes passes on; TypeError names what is needed."""
        if value is None or isinstance(value, cls):
            return value
        native = getattr(value, "ptr", None)
        if isinstance(native, cls):
            return native
        raise TypeError(
            f"a {cls.__name__} is needed, not {type(value).__name__}; an address becomes one by {cls.__name__}(address)"
        )


class Owner(Protocol[NativeT_co]):
    """What may stand for a native object as an argument: it has one as `ptr`."""

    @property
    def ptr(self) -> NativeT_co:
        """The native object."""


Integer: TypeAlias = "int | ctypes._SimpleCData[int]"
Given: TypeAlias = NativeT | Owner[NativeT] | None  # what a C function is given for one
