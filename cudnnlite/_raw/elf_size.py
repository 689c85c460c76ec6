"""How long a shared library must be, by its own headers: one that is shorter ends the process (SIGBUS) when it is loaded."""

from __future__ import annotations

import struct
from pathlib import Path

_LOADED = 1  # PT_LOAD


def bytes_missing(path: Path) -> int:
    """Return how many bytes a 64-bit ELF file lacks of what the loader will map; 0 for a file that is something else."""
    try:
        with open(path, "rb") as file:
            header = file.read(64)
            if header[:6] != b"\x7fELF\x02\x01" or len(header) < 64:
                return 0
            (start,), (size, count) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
            file.seek(start)
            table = file.read(size * count)
        segments = [struct.unpack_from("<I4xQ16xQ", table, size * number) for number in range(count)]
    except (OSError, struct.error):  # the loader will say what it thinks of that
        return 0
    wanted = max((offset + length for kind, offset, length in segments if kind == _LOADED), default=0)
    return max(0, wanted - path.stat().st_size)
