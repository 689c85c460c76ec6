"""The spaces that stateful calls are given: weights, workspace, and what a training call keeps for its backward passes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.registry import RefusalError
from cudnnlite.enums import Status

Array = NDArray[Any]
_ALIGNMENT = 16
_MAGIC = 0x52455345_52564544
_OPERANDS = ("x", "hx", "cx", "y", "weightSpace")  # whose checksums a reserve space may hold
_HEADER = np.dtype([("magic", "u8"), ("stage", "u8"), ("problem", "u8"), ("operands", "u8", (len(_OPERANDS),))])


def bad(message: str) -> RefusalError:
    """Return what ends a call with BAD_PARAM."""
    return RefusalError(Status.BAD_PARAM, message)


class Spaces:
    """The memory that a call is given, looked at before it is used."""

    api: EmulatedApi

    def memory(self, address: int | None, nbytes: int, name: str) -> Bytes:
        """View what lies at an address."""
        if not address:
            raise RefusalError(Status.BAD_PARAM_NULL_POINTER, f"{name} is a null pointer")
        return self.api.memory.view(address, nbytes)

    def space(self, address: int | None, nbytes: int, needed: int, name: str) -> Bytes:
        """View what is needed of so many bytes."""
        if nbytes < needed:
            raise bad(f"{name} of {nbytes} bytes; {needed} are needed")
        return self.memory(address, needed, name)


class Places:
    """How a reserve space is cut up: a header, then arrays of one type by name."""

    def __init__(self, shapes: Mapping[Any, tuple[int, ...]], dtype: np.dtype[Any]) -> None:
        self.dtype, self.nbytes = dtype, _aligned(_HEADER.itemsize)
        self.places: dict[Any, tuple[tuple[int, ...], int]] = {}
        for key, shape in shapes.items():
            self.places[key] = shape, self.nbytes
            self.nbytes = _aligned(self.nbytes + math.prod(shape) * dtype.itemsize)


class Reserve:
    """A reserve space: what is in it, and who left it there.

    Hardware takes any bytes and computes garbage.  Here they must come from the call before, of the same `problem` (any
    value whose representation tells it) and with the same operands, which checksums tell.
    """

    FORWARD, BACKWARD_DATA = "the forward call for training", "the backward call over the data"  # the stages

    def __init__(self, memory: Bytes, places: Places, problem: object) -> None:
        self._header = np.ndarray((1,), _HEADER, memory)
        self._problem = zlib.crc32(repr(problem).encode())
        self.tape = {key: np.ndarray(shape, places.dtype, memory, at) for key, (shape, at) in places.places.items()}
        self.masks = [self.tape.pop(key) for key in places.places if "mask" in key] or None

    def begin(self) -> None:
        """Make it nobody's while it is overwritten."""
        self._header["magic"] = 0

    def finish(self, stage: str, **operands: int) -> None:
        """Note the stage that is reached, and the checksums of operands."""
        self._header["magic"], self._header["stage"], self._header["problem"] = _MAGIC, len(stage), self._problem
        for name, value in operands.items():
            self._header["operands"][0, _OPERANDS.index(name)] = value

    def expect(self, stage: str, **operands: int) -> None:
        """Refuse unless it is at that stage of the same problem, with the same operands."""
        if self._header["magic"][0] != _MAGIC or self._header["stage"][0] != len(stage):
            raise bad(f"reserveSpace is not as {stage} left it")
        if self._header["problem"][0] != self._problem:
            raise bad(
                "reserveSpace is of another problem: another network, other sequences or another dropout probability"
            )
        for name, value in operands.items():
            if self._header["operands"][0, _OPERANDS.index(name)] != value:
                raise bad(f"{name} is not what it was when reserveSpace was written")


def checksum(*arrays: Array | None) -> int:
    """Return a checksum over the values of arrays, as far as they are there."""
    value = 0
    for a in arrays:
        if a is not None:
            value = zlib.crc32(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data, value)
    return value


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
