"""The memory of stateful calls: weights, workspace, and the reserve space of a training call."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.registry import EmulationState, bad_parameter, check_size, null_pointer

Array = NDArray[Any]
_ALIGNMENT = 16
_MAGIC = 0x52455345_52564544
_OPERANDS = ("x", "hx", "cx", "y", "weightSpace")  # whose checksums a reserve space may hold
_HEADER = np.dtype(
    [("magic", "u8"), ("stage", "u8"), ("problem", "u8"), ("operands", "u8", (len(_OPERANDS),))]
)


class Spaces:
    """The memory of a call, by the names of its C arguments; addresses are checked at every use."""

    def __init__(self, c_call: SimpleNamespace) -> None:
        self.c_call = c_call
        self.api: EmulationState = c_call.api

    def memory(self, name: str, nbytes: int) -> Bytes:
        """Return a view of the memory at an address."""
        address = getattr(self.c_call, name)
        if not address:
            raise null_pointer(name)
        return self.api.memory.view(address, nbytes)

    def space(self, name: str, size_name: str, needed: int) -> Bytes:
        """Return a view of a space whose size is the argument `size_name`."""
        check_size(name, getattr(self.c_call, size_name), needed)
        return self.memory(name, needed)


class ReserveLayout:
    """How a reserve space is divided: a header, then arrays of one type by name."""

    def __init__(self, shapes: Mapping[Any, tuple[int, ...]], dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.shapes = dict(shapes)
        self.offsets: dict[Any, int] = {}
        self.nbytes = align(_HEADER.itemsize)
        for key, shape in shapes.items():
            self.offsets[key] = self.nbytes
            self.nbytes = align(self.nbytes + math.prod(shape) * dtype.itemsize)


class Reserve:
    """A reserve space: its contents, and the call that wrote them.

    Hardware takes any bytes and computes garbage.  Here they must come from the call before, of the
    same `problem` (any value that its representation identifies) and with the same operands, which
    are compared by checksums.
    """

    # The stages that a reserve space goes through.
    FORWARD = "the forward call for training"
    BACKWARD_DATA = "the backward call over the data"

    def __init__(self, memory: Bytes, layout: ReserveLayout, problem: object) -> None:
        self._header = np.ndarray((1,), _HEADER, memory)
        self._problem = zlib.crc32(repr(problem).encode())
        arrays = {
            key: np.ndarray(shape, layout.dtype, memory, layout.offsets[key])
            for key, shape in layout.shapes.items()
        }
        self.tape = {key: array for key, array in arrays.items() if "mask" not in key}
        self.masks = [array for key, array in arrays.items() if "mask" in key] or None

    def begin(self) -> None:
        """Mark the contents as no stage's while they are overwritten."""
        self._header["magic"] = 0

    def finish(self, stage: str, **operands: int) -> None:
        """Store the stage that is reached, and the checksums of operands."""
        self._header["magic"] = _MAGIC
        self._header["stage"] = len(stage)
        self._header["problem"] = self._problem
        for name, value in operands.items():
            self._header["operands"][0, _OPERANDS.index(name)] = value

    def expect(self, stage: str, **operands: int) -> None:
        """Refuse unless the contents are at that stage of the same problem and operands."""
        header = self._header[0]
        if header["magic"] != _MAGIC or header["stage"] != len(stage):
            raise bad_parameter(f"reserveSpace is not as {stage} left it")
        if header["problem"] != self._problem:
            raise bad_parameter(
                "reserveSpace is of another problem: another network, other sequences or another "
                "dropout probability"
            )
        for name, value in operands.items():
            if header["operands"][_OPERANDS.index(name)] != value:
                raise bad_parameter(f"{name} is not what it was when reserveSpace was written")


def checksum(*arrays: Array | None) -> int:
    """Return a checksum over the values of arrays; None has none."""
    value = 0
    for array in arrays:
        if array is not None:
            memory = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            value = zlib.crc32(memory, value)
    return value


def align(nbytes: int) -> int:
    """Return the next offset at which an array may begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
