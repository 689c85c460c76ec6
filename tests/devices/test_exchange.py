"""Other libraries' arrays, read without a view: PyTorch's, CuPy's and JAX's, by stand-ins."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.dlpack import CUDA_DEVICE, read_capsule
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

    def address_of(self, stream: Any) -> int:
        return 0 if stream is None else stream.handle

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
        foreign = foreign_traits(DescribingDevice(), None, arrays)
        assert foreign is not None
        traits, _ = foreign
        kinds = [kind for _, kind in traits]
        streams = {type(one): kind[2] for one, kind in zip(arrays, kinds, strict=True)}
        assert streams == {type(tensor): "the stream at 2000", type(array): "the stream at 7777"}


class JaxArray:
    """What JAX's arrays are to DLPack: a capsule without a version, and a wait for its values.

    The values are NumPy's, which the capsule places on a GPU if `number` is that of one.
    """

    __module__ = "jaxlib._jax"

    def __init__(self, values: np.ndarray, number: int | None = None) -> None:
        self.values = values
        self.number = number
        self.waiting_streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **_: object) -> Any:
        self.waiting_streams.append(stream)
        capsule = self.values.__dlpack__()
        if self.number is not None:
            device = (ctypes.c_int32 * 2).from_address(pointer_of(capsule) + 8)
            device[:] = CUDA_DEVICE, self.number
        return capsule


def pointer_of(capsule: Any) -> int:
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return get_pointer(capsule, b"dltensor")


def test_what_a_capsule_says() -> None:
    values = np.zeros((4, 5, 6), np.float16)[1:, ::2]
    ptr, (number, device_type, dtype, shape, strides) = read_capsule(
        JaxArray(values, 3).__dlpack__()
    )
    assert (ptr, number, device_type) == (values.ctypes.data, 3, CUDA_DEVICE)
    assert (dtype & 0xFF, dtype >> 8 & 0xFF, dtype >> 16) == (2, 16, 1)  # kDLFloat, bits, lanes
    assert np.frombuffer(shape, np.int64).tolist() == [3, 3, 6]
    assert np.frombuffer(strides, np.int64).tolist() == [30, 12, 1]


def test_the_address_counts_the_offset_in_bytes() -> None:
    capsule = np.zeros(3, np.float32).__dlpack__()
    ptr, _ = read_capsule(capsule)
    ctypes.c_uint64.from_address(pointer_of(capsule) + 40).value = 24
    assert read_capsule(capsule)[0] == ptr + 24


def test_a_capsule_without_strides() -> None:
    capsule = np.zeros((2, 3), np.float32).__dlpack__()
    ctypes.c_void_p.from_address(pointer_of(capsule) + 32).value = None
    _, (*_, strides) = read_capsule(capsule)
    assert strides == b""


def test_capsules_that_are_not_read() -> None:
    with pytest.raises(ValueError, match="name"):
        read_capsule(np.zeros(3).__dlpack__(max_version=(1, 0)))
    with pytest.raises(ValueError, match="9 axes"):
        read_capsule(np.zeros((1,) * 9).__dlpack__())


@pytest.mark.parametrize(("address", "told"), [(0, 1), (7, 7)], ids=["default", "another"])
def test_our_stream_waits_for_an_array_of_jax(address: int, told: int) -> None:
    """DLPack calls the default stream 1.  The view belongs to our stream, and is read-only."""
    stream = SimpleNamespace(handle=address)
    array = JaxArray(np.zeros((2, 3), np.float32), 0)
    foreign = foreign_traits(DescribingDevice(), stream, [array])
    assert foreign is not None
    traits, _ = foreign
    ((ptr, (spec, _, own_stream, readonly)),) = traits
    assert (ptr, spec.shape) == (array.values.ctypes.data, (2, 3))
    assert own_stream is stream
    assert readonly
    assert array.waiting_streams[0] == told


def test_arrays_of_jax_beside_others_have_each_their_stream() -> None:
    tensor, array = torch_type()(), JaxArray(np.zeros((2, 3), np.float32), 0)
    stream = SimpleNamespace(handle=5)
    foreign = foreign_traits(DescribingDevice(), stream, [tensor, array, tensor])
    assert foreign is not None
    theirs = "the stream at 2000"
    traits, _ = foreign
    assert [kind[2] for _, kind in traits] == [theirs, stream, theirs]


def test_a_view_holds_the_memory_of_an_array_of_jax() -> None:
    """JAX may give it to another array as soon as the capsule is gone."""
    array = JaxArray(np.zeros((2, 3), np.float32), 0)
    memory = weakref.ref(array.values)
    (view,) = exchanged(DescribingDevice(), None, [array]) or [None]
    array.values = None
    gc.collect()
    assert memory() is not None
    del view
    gc.collect()
    assert memory() is None


ERRORS = [AttributeError, BufferError, RuntimeError, TypeError, ValueError]


@pytest.mark.parametrize("error", ERRORS)
def test_arrays_without_a_capsule_go_another_way(error: type[Exception]) -> None:
    """Deleted ones, those on several devices, tracers: the view says what is wrong."""

    class Broken(JaxArray):
        __module__ = JaxArray.__module__

        def __dlpack__(self, **_: object) -> Any:
            raise error

    assert exchanged(DescribingDevice(), None, [Broken(np.zeros(3))]) is None


@pytest.mark.parametrize("kind", ["jax", "torch"])
def test_an_array_on_another_device_goes_another_way(kind: str) -> None:
    """Although one of the same description on the handle's device was read before."""
    array = torch_type()() if kind == "torch" else JaxArray(np.zeros((2, 3), np.float32), 0)
    assert exchanged(DescribingDevice(), None, [array]) is not None
    second = DescribingDevice()
    second.index = 1
    assert exchanged(second, None, [array]) is None


@pytest.fixture
def emulated_handle(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a handle of the emulated device whose plans read arrays as those on a GPU do."""
    with dnn.Handle("emulated") as handle:
        monkeypatch.setattr(type(handle.device), "kind", "cuda")
        yield handle
        monkeypatch.undo()


def test_a_plan_reads_arrays_of_jax(
    emulated_handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New ones in each call, and described once: what differs is the address alone."""
    handle, rng = emulated_handle, np.random.default_rng(0)
    adopt, adopted = type(handle.device).adopt, []

    def counting_adopt(self: Any, array: Any, *arguments: Any) -> ForeignArray:
        adopted.append(array)
        return adopt(self, array, *arguments)

    monkeypatch.setattr(type(handle.device), "adopt", counting_adopt)
    shape = (3, 5, 7, 2)
    out = handle.full(shape, np.nan)
    plan = dnn.op_tensor.plan(handle, out.spec, out.spec, "add")
    for _ in range(4):
        hosts = [rng.standard_normal(shape, dtype=np.float32) for _ in range(2)]
        arrays = [handle.array(host) for host in hosts]
        out.fill(np.nan)
        operands = [JaxArray(np.from_dlpack(array)) for array in arrays]
        assert plan(*operands, out=out) is out
        np.testing.assert_array_equal(out.numpy(), hosts[0] + hosts[1])
        assert all(operand.waiting_streams for operand in operands)
    assert len(adopted) <= 1
    plan.close()


def test_an_array_of_jax_is_no_output(emulated_handle: dnn.Handle) -> None:
    """Neither of a call, nor of one that would repeat the last."""
    handle = emulated_handle
    x, out = handle.full((2, 3, 4, 5), -1.0), handle.full((2, 3, 4, 5), 7.0)
    immutable = JaxArray(np.from_dlpack(out))
    with dnn.activation_forward.plan(handle, x, "relu") as plan:
        for _ in range(2):
            with pytest.raises(dnn.ArrayTypeError, match=r"\bout\b.*read-only"):
                plan(x, out=immutable)
            assert (out.numpy() == 7).all()
            plan(x, out=handle.empty(x.spec))


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
