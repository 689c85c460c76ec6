"""What every emulated operation refuses: `cudnnTransformTensor`, called as C calls it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.types import cudnnHandle_t
from cudnnlite.emulated.device import EmulatedDevice

SHAPE = (2, 3, 4, 5)
STRIDES = {
    "NCHW": (60, 20, 5, 1),
    "NHWC": (60, 1, 15, 3),
    "gaps": (252, 72, 14, 2),
    "outermost": (20, 40, 5, 1),
}


class Machine:
    """An emulated device, a handle, and one call."""

    def __init__(self) -> None:
        self.device = EmulatedDevice()
        self.handle = cudnnHandle_t()
        self.device.api.cudnnCreate(ctypes.byref(self.handle))

    def buffer(self, memory: Any) -> Any:
        buffer = self.device.memory.allocate(memory.nbytes)
        buffer.bytes()[:] = memory.view(np.uint8)
        return buffer

    def call(
        self,
        source: Any,
        x: int,
        target: Any,
        y: int,
        alpha: float = 1.0,
        beta: float = 0.0,
        *,
        without: str = "",
    ) -> None:
        """Call it; a null pointer stands for the scalar that is named by `without`."""
        kind = ctypes.c_double if source.dtype == dnn.DataType.DOUBLE else ctypes.c_float
        scalars = {"alpha": kind(alpha), "beta": kind(beta)}
        a, b = (
            None if name == without else ctypes.addressof(scalar)
            for name, scalar in scalars.items()
        )
        with dnn.TensorDescriptor(source) as x_desc, dnn.TensorDescriptor(target) as y_desc:
            self.device.api.cudnnTransformTensor(self.handle, a, x_desc.ptr, x, b, y_desc.ptr, y)


@pytest.fixture
def machine() -> Any:
    machine = Machine()
    yield machine
    machine.device.api.cudnnDestroy(machine.handle)


def test_int8_is_rounded_and_saturated(machine: Machine) -> None:
    x = np.array([100, -100, 1, 3, -1, -3, 0, 127], np.int8).reshape(1, 2, 2, 2)
    source, target = machine.buffer(x.reshape(-1)), machine.device.memory.allocate(8)
    spec = dnn.TensorSpec(x.shape, "int8")
    machine.call(spec, source.handle, spec, target.handle, 1.5)
    expected = [127, -128, 2, 4, -2, -4, 0, 127]  # 1.5 and 4.5 go to the even neighbour
    np.testing.assert_array_equal(target.bytes().view(np.int8), expected)


PLAIN = dnn.TensorSpec(SHAPE)
REFUSED = {
    "shape": (PLAIN, dnn.TensorSpec((2, 3, 5, 4)), dnn.errors.BadParamError, "shape"),
    "dtype": (
        dnn.TensorSpec(SHAPE, "bfloat16"),
        dnn.TensorSpec(SHAPE, "float16"),
        dnn.NotSupportedError,
        "bfloat16.*float16",
    ),
    "integers": (
        dnn.TensorSpec(SHAPE, "int32"),
        dnn.TensorSpec(SHAPE, "int32"),
        dnn.NotSupportedError,
        "INT32",
    ),
    "vectors": (
        dnn.TensorSpec((2, 8, 4, 5), "int8x4"),
        dnn.TensorSpec((2, 8, 4, 5), "int8x4"),
        dnn.NotSupportedError,
        "INT8x4",
    ),
    "rank": (dnn.TensorSpec((2,) * 6), dnn.TensorSpec((2,) * 6), dnn.NotSupportedError, "rank 6"),
    "target_overlaps_itself": (
        PLAIN,
        dnn.TensorSpec(SHAPE, strides=(60, 20, 4, 1)),
        dnn.errors.BadParamError,
        "overlap",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(machine: Machine, case: str) -> None:
    source, target, error, words = REFUSED[case]
    x, y = (machine.device.memory.allocate(4096) for _ in range(2))
    before = y.bytes().copy()
    with pytest.raises(error, match=words):
        machine.call(source, x.handle, target, y.handle)
    np.testing.assert_array_equal(y.bytes(), before)


@pytest.mark.parametrize("short", ["x", "y"])
@pytest.mark.parametrize("strides", STRIDES)
def test_one_byte_out_of_bounds(machine: Machine, strides: str, short: str) -> None:
    packed, spec = PLAIN, dnn.TensorSpec(SHAPE, strides=STRIDES[strides])
    sizes = {"x": spec.nbytes - (short == "x"), "y": packed.nbytes - (short == "y")}
    x, y = (machine.device.memory.allocate(size) for size in sizes.values())
    with pytest.raises(dnn.errors.ExecutionError, match="live allocation"):
        machine.call(spec, x.handle, packed, y.handle)
    assert (y.bytes() == 0xFF).all()
    whole = machine.device.memory.allocate(4096)
    machine.call(
        *(
            (spec, whole.handle, packed, y.handle)
            if short == "x"
            else (spec, x.handle, packed, whole.handle)
        )
    )


def test_freed_memory(machine: Machine) -> None:
    x, y = (machine.device.memory.allocate(PLAIN.nbytes) for _ in range(2))
    x.close()
    with pytest.raises(dnn.errors.ExecutionError, match="live allocation"):
        machine.call(PLAIN, x.handle, PLAIN, y.handle)


def test_in_place(machine: Machine) -> None:
    memory = machine.device.memory.allocate(2 * PLAIN.nbytes)
    for offset in (0, 4, PLAIN.nbytes - 4):
        with pytest.raises(dnn.errors.BadParamError, match="overlap"):
            machine.call(PLAIN, memory.handle, PLAIN, memory.handle + offset)
    machine.call(PLAIN, memory.handle, PLAIN, memory.handle + PLAIN.nbytes)


@pytest.mark.parametrize("pointer", ["alpha", "beta", "x", "y"])
def test_null_pointers(machine: Machine, pointer: str) -> None:
    x, y = (machine.device.memory.allocate(PLAIN.nbytes) for _ in range(2))
    addresses = [
        None if pointer == name else buffer.handle for name, buffer in (("x", x), ("y", y))
    ]
    with pytest.raises(
        (dnn.errors.BadParamError, dnn.errors.ExecutionError), match=r"null pointer|live allocation"
    ):
        machine.call(PLAIN, addresses[0], PLAIN, addresses[1], without=pointer)
    assert (y.bytes() == 0xFF).all()
    machine.call(PLAIN, x.handle, PLAIN, y.handle)


@pytest.mark.parametrize("operand", ["x", "y"])
def test_misaligned(machine: Machine, operand: str) -> None:
    x, y = (machine.device.memory.allocate(PLAIN.nbytes + 2) for _ in range(2))
    with pytest.raises(dnn.errors.BadParamError, match=f"{operand} at .* is not aligned"):
        machine.call(PLAIN, x.handle + 2 * (operand == "x"), PLAIN, y.handle + 2 * (operand == "y"))
