"""`Function`: the declaration of one exported C function."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from cudnnlite._raw.types import cudaStream_t, cudnnHandle_t

_DEVICE_TYPES = frozenset({cudnnHandle_t, cudaStream_t, ctypes.POINTER(cudnnHandle_t)})


class Function(NamedTuple):
    """One C function, as its header declares it.

    `name` is the exported symbol, `restype` None for void; `argtypes` and `argnames` are in order.
    `returns_status`: the result is a ``cudnnStatus_t``.  `header` is short, ``"ops"`` for
    ``cudnn_ops.h``.  `since` is the version of cuDNN that introduced the function, None if the
    header does not say.  `deprecated` is the version that deprecated it; None if it is not
    deprecated, and ``"yes"`` if the header names no version.
    """

    name: str
    restype: Any
    argtypes: tuple[Any, ...]
    argnames: tuple[str, ...]
    returns_status: bool
    header: str
    since: str | None
    deprecated: str | None

    @property
    def needs_device(self) -> bool:
        """Whether a call needs a GPU or its emulation: it takes or makes a handle or stream."""
        return not _DEVICE_TYPES.isdisjoint(self.argtypes)

    @property
    def deprecation(self) -> str:
        """Since when it is deprecated, as in "deprecated since cuDNN 9.0.0"; empty if it is not."""
        if self.deprecated is None:
            return ""
        return (
            "deprecated"
            if self.deprecated == "yes"
            else f"deprecated since cuDNN {self.deprecated}"
        )

    @property
    def prototype(self) -> Any:
        """The function pointer type; ctypes caches it, so that equal prototypes are identical."""
        return ctypes.CFUNCTYPE(self.restype, *self.argtypes)
