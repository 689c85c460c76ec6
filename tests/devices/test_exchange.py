"""The stream of another library, from the table of C functions that its type of arrays has."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.dlpack_exchange import CurrentStream, ExchangeTable, current_stream_of
from cudnnlite.devices.cuda import CudaDevice
from cudnnlite.devices.exchange import exchanged

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def _tell(device_type: int, number: int, out: Any) -> int:
    out.contents.value = 1000 * device_type + number
    return 0


FUNCTION = CurrentStream(_tell)
ADDRESS = ctypes.cast(FUNCTION, ctypes.c_void_p).value


def type_with(table: ExchangeTable, name: bytes = b"dlpack_exchange_api") -> type:
    capsule = _new_capsule(ctypes.addressof(table), name, None)
    return type("Tensor", (), {"__dlpack_c_exchange_api__": capsule})


def test_the_stream_is_asked_for() -> None:
    table = ExchangeTable(major=1, minor=3, current_stream=ADDRESS)
    current_stream = current_stream_of(type_with(table))
    assert current_stream is not None
    assert current_stream(2, 7) == 2007


@pytest.mark.parametrize("case", ["another version", "another name", "no function"])
def test_tables_that_say_nothing_usable(case: str) -> None:
    version = 2 if case == "another version" else 1
    function = None if case == "no function" else ADDRESS
    table = ExchangeTable(major=version, minor=0, current_stream=function)
    name = b"something" if case == "another name" else b"dlpack_exchange_api"
    assert current_stream_of(type_with(table, name)) is None
    assert current_stream_of(int) is None
    assert current_stream_of(type("Odd", (), {"__dlpack_c_exchange_api__": 3})) is None


def test_the_structure_is_that_of_dlpack() -> None:
    assert ctypes.sizeof(ExchangeTable) == 56
    assert ExchangeTable.current_stream.offset == 48


def test_arrays_of_other_libraries_go_another_way() -> None:
    with dnn.Handle("emulated") as handle:
        array = handle.array(np.ones((2, 3), np.float32))
        assert exchanged(handle.device, handle.stream, [array, np.ones(3)]) is None


class InterruptedDevice(CudaDevice):
    """A GPU to which another thread's stream comes whenever this thread has noted something."""

    is_interrupted = False

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if self.is_interrupted:
            self.__dict__["is_interrupted"] = False
            self.stream_at(9, SimpleNamespace(handle=9))


def test_another_thread_compares_its_stream_meanwhile() -> None:
    """This thread's stream is not taken for the one at the other's address."""
    device = object.__new__(InterruptedDevice)
    device.__dict__.update(_compared=(None, 0), _streams_at={9: "PyTorch's"}, is_interrupted=True)
    own = SimpleNamespace(handle=7)
    assert device.stream_at(7, own) is own
    assert not device.is_interrupted
    assert device.stream_at(9, own) == "PyTorch's"
