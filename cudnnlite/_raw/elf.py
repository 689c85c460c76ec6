"""What the file of a shared library says of itself, without loading it: whether it is whole, which cuDNN it belongs to."""

from __future__ import annotations

import mmap
import os
import re
import struct
from pathlib import Path

_PT_LOAD, _SHT_DYNSYM = 1, 11
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_VERSION_SYMBOL = re.compile(rb"(?<=\0)cudnn_[a-z_]+_version(?=\0)")


def why_unloadable(path: Path) -> str:
    """Return what is wrong with a file as far as its headers tell; empty if nothing is.

    One that is shorter than they say ends the process (SIGBUS) when it is loaded.
    """
    with open(path, "rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01" or len(header) < 64:
            return "is no library, or hardly the beginning of one"
        (start,), (size, count) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
        file.seek(start)
        table = file.read(size * count)
    whole = range(len(table) // size if size else 0)
    segments = [struct.unpack_from("<I4xQ16xQ", table, size * number) for number in whole]
    ends = (offset + length for kind, offset, length in segments if kind == _PT_LOAD)
    missing = max((start + size * count if count else 0, *ends)) - path.stat().st_size
    return f"lacks {missing} bytes at its end" if missing > 0 else ""


def read_version(path: str | os.PathLike[str]) -> str:
    """Return the version of cuDNN that a file exports as a constant, 0x091c00 as '9.28.0'; '' if it has none.

    Raises ValueError if it is no shared library for a 64-bit little-endian machine, or damaged, OSError if it cannot be read.
    """
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _version_in(content)
        except (struct.error, ValueError, IndexError, OverflowError) as error:  # ValueError: an empty file
            raise ValueError(f"{path}: {error}") from error


def _version_in(content: mmap.mmap) -> str:
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (offset,), (size, count) = struct.unpack_from("<Q", content, 40), struct.unpack_from("<HH", content, 58)
    sections = [_SECTION.unpack_from(content, offset + size * number) for number in range(count)]
    for _, kind, _, _, start, length, link, *_ in sections:
        if kind == _SHT_DYNSYM:
            names = content[sections[link][4] : sections[link][4] + sections[link][5]]
            offsets = {found.start() for found in _VERSION_SYMBOL.finditer(names)}
            symbols = content[start : start + length] if offsets else b""
            for name, _, _, section, address, _ in _SYMBOL.iter_unpack(symbols):
                if name in offsets and 0 < section < count:  # section 0: another library's, which this one needs
                    (packed,) = struct.unpack_from("<I", content, address - sections[section][3] + sections[section][4])
                    return f"{packed >> 16}.{packed >> 8 & 0xFF}.{packed & 0xFF}"
    return ""
