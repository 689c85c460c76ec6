"""The spaces that stateful calls are given: weights, workspace, and what a training call keeps for its backward passes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.registry import bad, check_size, null

Array = NDArray[Any]
_ALIGNMENT = 16
_MAGIC = 0x52455345_52564544
_OPERANDS = ("x", "hx", "cx", "y", "weightSpace")  # whose checksums a reserve space may hold
_HEADER = np.dtype(
    [("magic", "u8"), ("stage", "u8"), ("problem", "u8"), ("operands", "u8", (len(_OPERANDS),))]
)


class Spaces:
    """The memory that a call is given, by the names of its C arguments, looked at before it is used."""

    def __init__(self, given: SimpleNamespace) -> None:
        self.given, self.api = given, given.api

    def memory(self, name: str, nbytes: int) -> Bytes:
        """View what lies at an address."""
        address = getattr(self.given, name)
        if not address:
            raise null(name)
        return self.api.memory.view(address, nbytes)  # type: ignore[no-any-return]

    def space(self, name: str, size: str, needed: int) -> Bytes:
        """View what is needed of a space, of as many bytes as the argument `size` says."""
        check_size(name, getattr(self.given, size), needed)
        return self.memory(name, needed)


class Places:
    """How a reserve space is cut up: a header, then arrays of one type by name."""

    def __init__(self, shapes: Mapping[Any, tuple[int, ...]], dtype: np.dtype[Any]) -> None:
        self.dtype, self.nbytes = dtype, aligned(_HEADER.itemsize)
        self.places: dict[Any, tuple[tuple[int, ...], int]] = {}
        for key, shape in shapes.items():
            self.places[key] = shape, self.nbytes
            self.nbytes = aligned(self.nbytes + math.prod(shape) * dtype.itemsize)


class Reserve:
    """A reserve space: what is in it, and who left it there.

    Hardware takes any bytes and computes garbage.  Here they must come from the call before, of the same `problem` (any
    value whose representation tells it) and with the same operands, which checksums tell.
    """

    FORWARD, BACKWARD_DATA = (
        "the forward call for training",
        "the backward call over the data",
    )  # the stages

    def __init__(self, memory: Bytes, places: Places, problem: object) -> None:
        self._header = np.ndarray((1,), _HEADER, memory)
        self._problem = zlib.crc32(repr(problem).encode())
        self.tape = {
            key: np.ndarray(shape, places.dtype, memory, at)
            for key, (shape, at) in places.places.items()
        }
        self.masks = [self.tape.pop(key) for key in places.places if "mask" in key] or None

    def begin(self) -> None:
        """Make it nobody's while it is overwritten."""
        self._header["magic"] = 0

    def finish(self, stage: str, **operands: int) -> None:
        """Note the stage that is reached, and the checksums of operands."""
        self._header["magic"], self._header["stage"], self._header["problem"] = (
            _MAGIC,
            len(stage),
            self._problem,
        )
        for name, value in operands.items():
            self._header["operands"][0, _OPERANDS.index(name)] = value

    def expect(self, stage: str, **operands: int) -> None:
        """Refuse unless it is at that stage of the same problem, with the same operands."""
        header = self._header[0]
        if header["magic"] != _MAGIC or header["stage"] != len(stage):
            raise bad(f"reserveSpace is not as {stage} left it")
        if header["problem"] != self._problem:
            raise bad(
                "reserveSpace is of another problem: another network, other sequences or another dropout probability"
            )
        for name, value in operands.items():
            if header["operands"][_OPERANDS.index(name)] != value:
                raise bad(f"{name} is not what it was when reserveSpace was written")


def checksum(*arrays: Array | None) -> int:
    """Return a checksum over the values of arrays, as far as they are there."""
    value = 0
    for a in arrays:
        if a is not None:
            value = zlib.crc32(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data, value)
    return value


def aligned(nbytes: int) -> int:
    """Return the next place where something may begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
