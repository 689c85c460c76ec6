"""Arrays of a library that offers them by DLPack's C exchange API; the library is made up here."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.dlpack_exchange import (
    ExchangedTensor,
    _CurrentStream,
    _Read,
    _Table,
    exchange_api_of,
)
from cudnnlite.devices import exchange
from cudnnlite.devices.exchange import exchanged

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
FLOAT32 = 2 | 32 << 8 | 1 << 16  # code, bits, lanes


class Tensor:
    """Another library's array in memory of the emulated device."""

    __module__ = "torch.made_up"
    reads = 0
    fails = False

    def __init__(self, array: dnn.DeviceArray, device_type: int = 1) -> None:
        self.array = array
        self.requires_grad = False
        self.device_type = device_type
        self.sizes = (ctypes.c_int64 * len(array.shape))(*array.shape)
        self.steps = (ctypes.c_int64 * len(array.shape))(*array.strides)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def _read(tensor: Tensor, out: Any) -> int:
    if Tensor.fails:
        return 1
    Tensor.reads += 1
    out.contents.data = tensor.array.ptr - 16
    out.contents.byte_offset = 16
    out.contents.device_type = tensor.device_type
    out.contents.device_id = 0
    out.contents.ndim = len(tensor.sizes)
    out.contents.dtype = FLOAT32
    out.contents.shape = ctypes.addressof(tensor.sizes)
    out.contents.strides = ctypes.addressof(tensor.steps)
    return 0


_callbacks = (_Read(_read), _CurrentStream(lambda kind, number, out: 0))
_table = _Table(
    major=1,
    minor=3,
    read_object=ctypes.cast(_callbacks[0], ctypes.c_void_p).value,
    current_stream=ctypes.cast(_callbacks[1], ctypes.c_void_p).value,
)
_capsule = _new_capsule(ctypes.addressof(_table), b"dlpack_exchange_api", None)


@pytest.fixture
def handle() -> Iterator[dnn.Handle]:
    with dnn.Handle("emulated") as handle:
        yield handle


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "__dlpack_c_exchange_api__", _capsule, raising=False)
    monkeypatch.setattr(exchange, "_apis", {})
    monkeypatch.setattr(Tensor, "reads", 0)
    monkeypatch.setattr(Tensor, "fails", False)


def test_an_array_is_read_by_the_c_call(handle: dnn.Handle) -> None:
    array = handle.array(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    view = exchanged(handle.device, handle.stream, Tensor(array))
    assert view is not None
    assert (view.ptr, view.spec, view.readonly) == (array.ptr, array.spec, False)
    assert view.stream is handle.stream


def test_plans_and_one_line_calls_take_it(handle: dnn.Handle) -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    x = Tensor(handle.array(values))
    out = Tensor(handle.empty((2, 3, 4, 5)))
    with dnn.activation_forward.plan(handle, x, "relu") as plan:
        y = plan(x, out=out)
        assert y.ptr == out.array.ptr
        assert (plan(x).numpy() == np.maximum(values, 0)).all()
    reads = Tensor.reads
    assert (dnn.activation_forward(handle, x, "relu").numpy() == np.maximum(values, 0)).all()
    assert Tensor.reads > reads
    assert (out.array.numpy() == np.maximum(values, 0)).all()


def test_it_keeps_the_memory_alive(handle: dnn.Handle) -> None:
    tensor = Tensor(handle.array(np.ones((2, 3), np.float32)))
    view = exchanged(handle.device, handle.stream, tensor)
    del tensor
    assert view is not None
    assert (view.numpy() == 1).all()


@pytest.mark.parametrize("case", ["another device", "foreign memory", "gradients", "it fails"])
def test_what_another_way_has_to_refuse(
    handle: dnn.Handle, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = Tensor(handle.array(np.ones((2, 3), np.float32)))
    if case == "another device":
        tensor.device_type = 2
    elif case == "foreign memory":
        tensor.array.ptr += 1 << 40
    elif case == "gradients":
        tensor.requires_grad = True
    else:
        monkeypatch.setattr(Tensor, "fails", True)
    assert exchanged(handle.device, handle.stream, tensor) is None


def test_types_that_offer_nothing_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exchange_api_of(np.ndarray) is None or np.ndarray.__module__ == "numpy"
    newer = _Table(major=2, minor=0, read_object=1, current_stream=1)
    for capsule in (
        _new_capsule(ctypes.addressof(newer), b"dlpack_exchange_api", None),
        _new_capsule(ctypes.addressof(_table), b"another name", None),
        object(),
    ):
        monkeypatch.setattr(Tensor, "__dlpack_c_exchange_api__", capsule)
        assert exchange_api_of(Tensor) is None


def test_arrays_that_must_not_be_written_go_another_way(handle: dnn.Handle) -> None:
    """The C call does not tell of them, so that libraries that have such are not read by it."""
    kind = type("Array", (), {"__module__": "jaxlib", "__dlpack_c_exchange_api__": _capsule})
    assert exchanged(handle.device, handle.stream, kind()) is None


def test_the_structure_is_that_of_dlpack() -> None:
    assert ctypes.sizeof(ExchangedTensor) == 48
    assert ExchangedTensor.shape.offset == 24
    assert ExchangedTensor.byte_offset.offset == 40
