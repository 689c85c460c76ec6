"""The types of the C functions, for calls of `handle.api` that have no Python wrapper yet.

`raw.types` has cuDNN's handles and structures under their C names.  `raw.enums` has all its enums
without the C prefix.  `raw.functions` has the argument names and types of each C function.

>>> import ctypes
>>> from cudnnlite.raw import enums, types
>>> pooling, mode = types.cudnnPoolingDescriptor_t(), enums.PoolingMode.MAX
>>> with dnn.Handle() as handle:
...     handle.api.cudnnCreatePoolingDescriptor(ctypes.byref(pooling))
...     nan = enums.NanPropagation.PROPAGATE
...     handle.api.cudnnSetPooling2dDescriptor(pooling, mode, nan, 2, 2, 0, 0, 2, 2)
...     handle.api.cudnnDestroyPoolingDescriptor(pooling)
"""

from typing import TYPE_CHECKING, NoReturn

from cudnnlite._raw import enums, functions, types
from cudnnlite.unknown import c_name_hint

__all__ = ["enums", "functions", "types"]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        """Refuse a name; that of a function or a constant in C with its place."""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{c_name_hint(name)}")
