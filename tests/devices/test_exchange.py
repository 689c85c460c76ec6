"""The stream of another library, from the table of C functions that its type of arrays has."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cudnnlite._raw.dlpack_exchange import CurrentStream, ExchangeTable, current_stream_of
from cudnnlite.devices.cuda import CudaDevice
from cudnnlite.devices.exchange import exchanged, foreign_traits
from cudnnlite.devices.foreign import ForeignArray

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def _tell(device_type: int, number: int, out: Any) -> int:
    out.contents.value = 1000 * device_type + number
    return 0


FUNCTION = CurrentStream(_tell)
ADDRESS = ctypes.cast(FUNCTION, ctypes.c_void_p).value
TABLE = ExchangeTable(major=1, minor=3, current_stream=ADDRESS)


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


class DescribingDevice:
    """A GPU of which only the name and the streams' addresses are needed."""

    kind, index = "cuda", 0

    def stream_at(self, address: int, stream: Any) -> str:
        return f"the stream at {address}"

    def adopt(self, array: Any, argument: str, stream: Any) -> ForeignArray:
        return ForeignArray(4096, (2, 3), (3, 1), np.dtype(np.float32), False, array)


def torch_type() -> type:
    """Return a type that is read as PyTorch's tensors are; its stream is at 2000."""
    methods = {
        "__module__": "torch",
        "__dlpack__": None,
        "get_device": lambda self: 0,
        "requires_grad": False,
        "is_neg": lambda self: False,
        "dtype": "torch.float32",
        "stride": lambda self: (3, 1),
        "shape": (2, 3),
        "data_ptr": lambda self: 4096,
    }
    capsule = type_with(TABLE).__dict__["__dlpack_c_exchange_api__"]
    return type("Tensor", (), methods | {"__dlpack_c_exchange_api__": capsule})


def cupy_type() -> type:
    """Return a type that is read as CuPy's arrays are."""
    memory = SimpleNamespace(ptr=8192, device_id=0)
    attributes = {"data": memory, "dtype": np.dtype(np.float32), "strides": (12, 4)}
    return type(
        "ndarray",
        (),
        {"__module__": "cupy._core", "__dlpack__": None, "shape": (2, 3), **attributes},
    )


@pytest.mark.parametrize("position", [0, 1], ids=["first", "last"])
def test_arrays_of_other_libraries_go_another_way(position: int) -> None:
    """One array of an unknown library is enough; without it, the other is read as it is."""
    known = [torch_type()()]
    assert exchanged(DescribingDevice(), None, known) is not None
    known.insert(position, np.ones((2, 3), np.float32))
    assert exchanged(DescribingDevice(), None, known) is None


def test_an_emulated_device_exchanges_nothing() -> None:
    """Its memory is no GPU's."""
    device = DescribingDevice()
    device.kind = "emulated"
    assert exchanged(device, None, [torch_type()()]) is None


def test_each_library_has_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of arrays of two libraries waits for both: neither is on the other's stream."""
    cupy = SimpleNamespace(get_current_stream=lambda number: SimpleNamespace(ptr=7777 + number))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cupy))
    tensor, array = torch_type()(), cupy_type()()
    for arrays in ([tensor, array], [array, tensor], [tensor, array, tensor]):
        traits = foreign_traits(DescribingDevice(), None, arrays)
        assert traits is not None
        streams = {type(one): kind[2] for one, (_, kind) in zip(arrays, traits, strict=True)}
        assert streams == {type(tensor): "the stream at 2000", type(array): "the stream at 7777"}


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
