"""What the file of a shared library says of itself, without loading it: whether it is whole, which cuDNN it belongs to."""

from __future__ import annotations

import mmap
import os
import re
import struct
from pathlib import Path
from typing import BinaryIO

_PT_LOAD, _SHT_DYNSYM = 1, 11
# where the segments and the sections are described; the size of an entry, and how many, of both
_HEADER, _SEGMENT = (
    struct.Struct("<32xQQ6xHHHH2x"),
    struct.Struct("<I4xQ16xQ"),
)  # of a segment: type, offset, size
_SECTION = struct.Struct(
    "<IIQQQQIIQQ"
)  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_DAMAGED = (struct.error, ValueError, IndexError, OverflowError)  # ValueError: an empty file
_VERSION_SYMBOL = re.compile(rb"(?<=\0)cudnn_[a-z_]+_version(?=\0)")


def why_unloadable(path: Path) -> str:
    """Return what is wrong with a file as far as its headers tell; empty if nothing is.

    One that is shorter than they say ends the process (SIGBUS) when it is loaded.
    """
    try:
        with open(
            path, "rb"
        ) as file:  # not mapped: some have 500 MB, more than `ulimit -v` may leave
            start, _, size, count, *_ = _header_of(file)
            length = os.fstat(file.fileno()).st_size
            file.seek(start)
            table = file.read(min(size * count, length))
            segments = [
                _SEGMENT.unpack_from(table, size * number)
                for number in range(len(table) // size if size else 0)
            ]
            ends = (offset + extent for kind, offset, extent in segments if kind == _PT_LOAD)
            missing = max((start + size * count if count else 0, *ends)) - length
            return f"lacks {missing} bytes at its end" if missing > 0 else ""
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except _DAMAGED:
        return "is no library, or hardly the beginning of one"


def read_version(path: str | os.PathLike[str]) -> str:
    """Return the version of cuDNN that a file exports as a constant, 0x091c00 as '9.28.0'; '' if it has none.

    Raises ValueError if it is no shared library for a 64-bit little-endian machine, or damaged,
    OSError if it cannot be read.
    """
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return _version_in(content, _header_of(file))
    except _DAMAGED as error:
        raise ValueError(f"{path}: {error}") from error


def _header_of(file: BinaryIO) -> tuple[int, ...]:
    header = file.read(_HEADER.size)
    if header[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    return _HEADER.unpack(header)


def _version_in(content: mmap.mmap, header: tuple[int, ...]) -> str:
    _, offset, *_, size, count = header
    sections = [_SECTION.unpack_from(content, offset + size * number) for number in range(count)]
    for _, kind, _, _, start, length, link, *_ in sections:
        if kind == _SHT_DYNSYM:
            names = content[sections[link][4] : sections[link][4] + sections[link][5]]
            offsets = {found.start() for found in _VERSION_SYMBOL.finditer(names)}
            symbols = content[start : start + length] if offsets else b""
            for name, _, _, section, address, _ in _SYMBOL.iter_unpack(symbols):
                if (
                    name in offsets and 0 < section < count
                ):  # section 0: another library's, which this one needs
                    (packed,) = struct.unpack_from(
                        "<I", content, address - sections[section][3] + sections[section][4]
                    )
                    return f"{packed >> 16}.{packed >> 8 & 0xFF}.{packed & 0xFF}"
    return ""
