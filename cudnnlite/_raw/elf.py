"""The facts in the file of a shared library, without loading it.

They tell whether the file is complete, and which cuDNN it belongs to.
"""

from __future__ import annotations

import mmap
import os
import platform
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

_PT_LOAD, _SHT_DYNSYM = 1, 11
# The tables of segments and of sections: where they begin, the size of an entry, and how many.
_HEADER = struct.Struct("<32xQQ6xHHHH2x")
_MACHINE = struct.Struct("<18xH")  # at the beginning of the header
# The processors that cuDNN is built for, as `platform.machine` calls them.
_MACHINES = {62: "x86_64", 183: "aarch64"}
# A segment: type, offset, size.
_SEGMENT = struct.Struct("<I4xQ16xQ")
# A section: name, type, flags, address, offset, size, link, info, alignment, entry size.
_SECTION = struct.Struct("<IIQQQQIIQQ")
# A symbol: name, info, other, section, value, size.
_SYMBOL = struct.Struct("<IBBHQQ")
_DAMAGED = (struct.error, ValueError, IndexError, OverflowError)  # ValueError: an empty file
_VERSION_SYMBOL = re.compile(rb"(?<=\0)cudnn_[a-z_]+_version(?=\0)")


class _Section(NamedTuple):
    """An entry of the table of sections."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def why_unloadable(path: Path) -> str:
    """Return the fault of a file that its headers show; empty if they show none.

    A file that is shorter than its headers say ends the process (SIGBUS) when it is loaded.
    """
    try:
        # The file is read and not mapped: some have 500 MB, which `ulimit -v` may not leave.
        with open(path, "rb") as file:
            missing = _needed_bytes(file) - os.fstat(file.fileno()).st_size
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except _DAMAGED:
        return "is no library, or hardly the beginning of one"
    if missing > 0:
        return f"lacks {missing} bytes at its end"
    return ""


def other_machine(path: Path) -> str:
    """Return the processor that a library is for if this process runs on another; else no text.

    The system's loader passes over such a file, and says that there is none.
    """
    try:
        with open(path, "rb") as file:
            _header_of(file)
            file.seek(0)
            (number,) = _MACHINE.unpack(file.read(_MACHINE.size))
    except (OSError, *_DAMAGED):
        return ""
    here = platform.machine()
    machine = _MACHINES.get(number, f"a processor of number {number}")
    is_other = here in _MACHINES.values() and machine != here
    return machine if is_other else ""


def _needed_bytes(file: BinaryIO) -> int:
    """Return how long a file has to be for its segments and for its table of them."""
    start, _, size, count, *_ = _header_of(file)
    if not count:
        return 0
    if not size:
        return start
    file.seek(start)
    table = file.read(min(size * count, os.fstat(file.fileno()).st_size))
    ends = [start + size * count]
    for number in range(len(table) // size):
        kind, offset, extent = _SEGMENT.unpack_from(table, size * number)
        if kind == _PT_LOAD:
            ends.append(offset + extent)
    return max(ends)


def read_version(path: str | os.PathLike[str]) -> str:
    """Return the version of cuDNN that a file exports as a constant; '' if it has none.

    0x091c00 becomes '9.28.0'.  Raises ValueError if it is no shared library for a 64-bit
    little-endian machine, or damaged; OSError if it cannot be read.
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


def _sections_of(content: mmap.mmap, header: tuple[int, ...]) -> list[_Section]:
    _, offset, *_, size, count = header
    return [
        _Section(*_SECTION.unpack_from(content, offset + size * number)) for number in range(count)
    ]


def _version_in(content: mmap.mmap, header: tuple[int, ...]) -> str:
    sections = _sections_of(content, header)
    for symbols in sections:
        if symbols.kind != _SHT_DYNSYM:
            continue
        for section, address in _version_symbols(content, symbols, sections):
            position = address - section.address + section.offset
            (packed,) = struct.unpack_from("<I", content, position)
            return f"{packed >> 16}.{packed >> 8 & 0xFF}.{packed & 0xFF}"
    return ""


def _version_symbols(
    content: mmap.mmap, symbols: _Section, sections: list[_Section]
) -> Iterator[tuple[_Section, int]]:
    """Yield the section and the address of each version constant that a file defines itself."""
    strings = sections[symbols.link]
    names = content[strings.offset : strings.offset + strings.size]
    name_offsets = {match.start() for match in _VERSION_SYMBOL.finditer(names)}
    if not name_offsets:
        return
    table = content[symbols.offset : symbols.offset + symbols.size]
    for name, _, _, section, address, _ in _SYMBOL.iter_unpack(table):
        # Section 0 stands for a symbol of another library, which this file needs.
        if name in name_offsets and 0 < section < len(sections):
            yield sections[section], address
