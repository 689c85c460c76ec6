"""What a shared library says of itself, read from its file: nothing of it is loaded or run.

cuDNN's parts export their version as a constant (`cudnn_graph_version` and the like): 0x091c00 is 9.28.0.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_TAG = struct.Struct("<qQ")
_SHT_DYNAMIC, _SHT_DYNSYM = 6, 11
_DT_RPATH, _DT_RUNPATH = 15, 29
_VERSION_SYMBOL = re.compile(rb"(?<=\0)cudnn_[a-z_]+_version(?=\0)")


class NotElfError(Exception):
    """The file is no shared library for a 64-bit little-endian machine, or its tables are damaged."""


@dataclass(frozen=True)
class SharedLibrary:
    """What was read.

    Attributes
    ----------
    cudnn_version : int or None
        The version in cuDNN's own number, 92800; None if the file states none.
    search_path : tuple of str
        The folders where the loader looks for what this library opens, after `LD_LIBRARY_PATH`.
    """

    cudnn_version: int | None
    search_path: tuple[str, ...]


def read_shared_library(path: str | Path) -> SharedLibrary:
    """Read a file.

    Raises
    ------
    NotElfError
        It is no such library.
    OSError
        It cannot be read.
    """
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _read(content, Path(path).resolve().parent)
        except (struct.error, ValueError, IndexError, OverflowError) as error:  # ValueError: an empty file
            raise NotElfError(f"{path}: {error}") from error


def _read(content: mmap.mmap, folder: Path) -> SharedLibrary:
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    sections = [_SECTION.unpack_from(content, offset + size * number) for number in range(count)]
    version, search_path = None, ""
    for _, kind, _, _, start, length, link, *_ in sections:
        if kind == _SHT_DYNSYM:
            version = _version(content, sections, start, length, sections[link])
        elif kind == _SHT_DYNAMIC:
            search_path = _search_path(content, start, length, sections[link])
    folders = (
        entry.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(folder)) for entry in search_path.split(":")
    )
    return SharedLibrary(version, tuple(entry for entry in folders if entry))


def _version(
    content: mmap.mmap, sections: list[tuple[int, ...]], start: int, length: int, strings: tuple[int, ...]
) -> int | None:
    names = content[strings[4] : strings[4] + strings[5]]
    offsets = {found.start() for found in _VERSION_SYMBOL.finditer(names)}
    if not offsets:
        return None
    for name, _, _, section, address, _ in _SYMBOL.iter_unpack(content[start : start + length]):
        if name in offsets and 0 < section < len(sections):  # section 0: another library's, which this one needs
            place = address - sections[section][3] + sections[section][4]
            packed: int = struct.unpack_from("<I", content, place)[0]
            major, minor, patch = packed >> 16, packed >> 8 & 0xFF, packed & 0xFF
            return major * 10000 + minor * 100 + patch if major >= 9 else major * 1000 + minor * 100 + patch
    return None


def _search_path(content: mmap.mmap, start: int, length: int, strings: tuple[int, ...]) -> str:
    tags = dict(_TAG.iter_unpack(content[start : start + length]))
    offset = tags.get(_DT_RUNPATH, tags.get(_DT_RPATH))
    if offset is None:
        return ""
    begin = strings[4] + offset
    return os.fsdecode(content[begin : max(content.find(b"\0", begin), begin)])
