"""The types of the C functions, for calls through `handle.api` that have no Python wrapper yet.

`raw.types` has cuDNN's handles and structures under their C names, `raw.enums` all its enums without the C prefix, and
`raw.functions` what is known of each C function.
"""

from cudnnlite._raw import enums, functions, types

__all__ = ["enums", "functions", "types"]
