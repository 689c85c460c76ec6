"""The types of the C functions, for calls through `handle.api` that have no Python wrapper yet.

`raw.types` has cuDNN's handles and structures under their C names, `raw.enums` all its enums
without the C prefix, and `raw.functions` what is known of each C function.

>>> import ctypes
>>> from cudnnlite.raw import enums, types
>>> pooling, mode = types.cudnnPoolingDescriptor_t(), enums.PoolingMode.MAX
>>> with dnn.Handle() as handle:
...     handle.api.cudnnCreatePoolingDescriptor(ctypes.byref(pooling))
...     handle.api.cudnnSetPooling2dDescriptor(pooling, mode, enums.NanPropagation.PROPAGATE, 2, 2, 0, 0, 2, 2)
...     handle.api.cudnnDestroyPoolingDescriptor(pooling)
"""

from cudnnlite._raw import enums, functions, types

__all__ = ["enums", "functions", "types"]
