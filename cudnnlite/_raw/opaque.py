"""`Opaque`: the base class of cuDNN's handles and descriptors, each a pointer type of its own."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol, TypeAlias, TypeVar

from cudnnlite.arguments import shown

NativeT = TypeVar("NativeT", bound="Opaque")
NativeT_co = TypeVar("NativeT_co", bound="Opaque", covariant=True)


class Opaque(ctypes.c_void_p):
    """A pointer to something inside libcudnn.

    As an argument it takes an instance of its own class, an object whose `ptr` is one (our
    descriptors and handles), or None.  ctypes would pass a plain integer on as an address.  It is
    refused, because an address of anything else crashes the process.
    """

    @classmethod
    def from_param(cls, value: Any) -> Any:
        """Return the pointer that ctypes passes on; TypeError names the class that is needed."""
        if value is None or isinstance(value, cls):
            return value
        native = getattr(value, "ptr", None)
        if isinstance(native, cls):
            return native
        raise TypeError(
            f"a {cls.__name__} is needed, not {shown(value)} of type {type(value).__name__}; "
            f"an address becomes one by {cls.__name__}(address)"
        )


class Owner(Protocol[NativeT_co]):
    """An object that has a native object as `ptr`, and may be passed instead of it."""

    @property
    def ptr(self) -> NativeT_co:
        """The native object."""


Integer: TypeAlias = "int | ctypes._SimpleCData[int]"
# The values that a C function takes for a native object.
Given: TypeAlias = NativeT | Owner[NativeT] | None
