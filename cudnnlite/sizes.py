"""Sizes of memory as people write them: 1048576, "64 MiB", "10%"."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import SupportsIndex

from cudnnlite.arguments import integer, shown
from cudnnlite.errors import ArgumentError

_UNITS = {"": 1, "b": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for unit, base in (("b", 1000), ("ib", 1024))
}
_MOST = 2**63 - 1  # more memory than any device has
_PATTERN = re.compile(r"\s*(\d{1,99}(?:\.\d{1,99})?)\s*(%|[a-z]*)\s*", re.IGNORECASE)

# Allocations of CUDA and of the emulated device begin at multiples of this number of bytes.
ALLOCATION_ALIGNMENT = 256


def aligned_size(nbytes: int) -> int:
    """Return a size rounded up to where the next allocation may begin."""
    return -(-nbytes // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT


def parse_size(value: SupportsIndex | str, argument: str, *, total: int | None = None) -> int:
    """Return a size in bytes, from bytes or a text such as "64 MiB", "1.5 GB" or "10%".

    A percentage is one of `total`.  ArgumentError for everything else.
    """
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return integer(value, argument, 0, _MOST)
    match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match:
        # A fraction is exact, also beyond 2^53.
        number, unit = Fraction(match[1]), match[2].lower()
        if unit == "%" and total is not None and number <= 100:
            return int(total * number / 100)
        if unit in _UNITS:
            return integer(int(number * _UNITS[unit]), argument, 0, _MOST)
    raise ArgumentError(
        f"{argument}={shown(value)} is not a size; "
        'allowed: bytes, or a text such as "64 MiB" or "10%"'
    )


def format_size(nbytes: int) -> str:
    """Return a size in the largest binary unit that it fills: '1.5 MiB', '12 B'."""
    if nbytes < 1 << 10:
        return f"{nbytes} B"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.4g} {unit}"
    raise AssertionError


def over_limit(needed: int, limit: int) -> str:
    """Return why a candidate exceeds the workspace limit; both numbers are bytes."""
    return f"needs {format_size(needed)}, the limit is {format_size(limit)}"
