"""Whether a shared library is as long as its own headers say: a shorter one ends the process (SIGBUS) when it is loaded."""

from __future__ import annotations

import struct
from pathlib import Path

_LOADED = 1  # PT_LOAD


def why_unloadable(path: Path) -> str:
    """Return what is wrong with the file of a shared library as far as its headers tell; empty if nothing is."""
    with open(path, "rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01" or len(header) < 64:
            return "is no library, or hardly the beginning of one"
        (start,), (size, count) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
        file.seek(start)
        table = file.read(size * count)
    whole = range(len(table) // size if size else 0)
    segments = [struct.unpack_from("<I4xQ16xQ", table, size * number) for number in whole]
    ends = (offset + length for kind, offset, length in segments if kind == _LOADED)
    missing = max((start + size * count if count else 0, *ends)) - path.stat().st_size
    return f"lacks {missing} bytes at its end" if missing > 0 else ""
