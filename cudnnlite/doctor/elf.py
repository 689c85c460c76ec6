"""What a shared library says of itself, read from its file: nothing of it is loaded or run.

cuDNN's parts export their version as a constant (`cudnn_graph_version` and the like): 0x091c00 is 9.28.0.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_SHT_DYNSYM = 11
_VERSION_SYMBOL = re.compile(rb"(?<=\0)cudnn_[a-z_]+_version(?=\0)")


class NotElfError(Exception):
    """The file is no shared library for a 64-bit little-endian machine, or its tables are damaged."""


def read_version(path: str | Path) -> int | None:
    """Return the version of cuDNN that a file states, 92800; None if it states none.

    Raises NotElfError if it is no such library, OSError if it cannot be read.
    """
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _read(content)
        except (struct.error, ValueError, IndexError, OverflowError) as error:  # ValueError: an empty file
            raise NotElfError(f"{path}: {error}") from error


def _read(content: mmap.mmap) -> int | None:
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    sections = [_SECTION.unpack_from(content, offset + size * number) for number in range(count)]
    for _, kind, _, _, start, length, link, *_ in sections:
        if kind == _SHT_DYNSYM:
            names = content[sections[link][4] : sections[link][4] + sections[link][5]]
            offsets = {found.start() for found in _VERSION_SYMBOL.finditer(names)}
            for name, _, _, section, address, _ in _SYMBOL.iter_unpack(
                content[start : start + length] if offsets else b""
            ):
                if name in offsets and 0 < section < count:  # section 0: another library's, which this one needs
                    place = address - sections[section][3] + sections[section][4]
                    packed: int = struct.unpack_from("<I", content, place)[0]
                    major, minor, patch = packed >> 16, packed >> 8 & 0xFF, packed & 0xFF
                    return major * (10000 if major >= 9 else 1000) + minor * 100 + patch
    return None
