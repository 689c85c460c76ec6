"""What a shared library says of itself, read from its file: nothing of it is loaded or run.

cuDNN's parts export their version as a constant (`cudnn_graph_version` and the like): 0x091c00 is 9.28.0.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_TAG = struct.Struct("<qQ")
_SHT_DYNAMIC, _SHT_DYNSYM = 6, 11
_DT_RPATH, _DT_RUNPATH = 15, 29
_VERSION_SYMBOL = re.compile(rb"(?<=\0)cudnn_[a-z_]+_version(?=\0)")


class NotElfError(Exception):
    """The file is no shared library for a 64-bit little-endian machine, or its tables are damaged."""


class SharedLibrary(NamedTuple):
    """What was read."""

    cudnn_version: int | None  # in cuDNN's own number, 92800; None if the file states none
    search_path: tuple[str, ...]  # where the loader looks for what this library opens, after LD_LIBRARY_PATH


def read_shared_library(path: str | Path) -> SharedLibrary:
    """Read a file; NotElfError if it is no such library, OSError if it cannot be read."""
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _read(content, str(Path(path).resolve().parent))
        except (struct.error, ValueError, IndexError, OverflowError) as error:  # ValueError: an empty file
            raise NotElfError(f"{path}: {error}") from error


def _read(content: mmap.mmap, folder: str) -> SharedLibrary:
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    sections = [_SECTION.unpack_from(content, offset + size * number) for number in range(count)]
    version, search_path = None, ""
    for _, kind, _, _, start, length, link, *_ in sections:
        table, strings = content[start : start + length], sections[link]
        if kind == _SHT_DYNSYM:
            version = _version(content, sections, table, content[strings[4] : strings[4] + strings[5]])
        elif kind == _SHT_DYNAMIC:
            tags = dict(_TAG.iter_unpack(table))
            if (name := tags.get(_DT_RUNPATH, tags.get(_DT_RPATH))) is not None:
                begin = strings[4] + name
                search_path = os.fsdecode(content[begin : max(content.find(b"\0", begin), begin)])
    search_path = search_path.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", folder)
    return SharedLibrary(version, tuple(filter(None, search_path.split(":"))))


def _version(content: mmap.mmap, sections: list[tuple[int, ...]], symbols: bytes, names: bytes) -> int | None:
    offsets = {found.start() for found in _VERSION_SYMBOL.finditer(names)}
    for name, _, _, section, address, _ in _SYMBOL.iter_unpack(symbols if offsets else b""):
        if name in offsets and 0 < section < len(sections):  # section 0: another library's, which this one needs
            place = address - sections[section][3] + sections[section][4]
            packed: int = struct.unpack_from("<I", content, place)[0]
            major, minor, patch = packed >> 16, packed >> 8 & 0xFF, packed & 0xFF
            return major * (10000 if major >= 9 else 1000) + minor * 100 + patch
    return None
