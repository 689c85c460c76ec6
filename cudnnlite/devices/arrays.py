"""`DeviceArray`: an array in device memory, with a spec; and views of arrays that other libraries made."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.ma import MaskedArray, is_masked

from cudnnlite._raw.dlpack import BFLOAT, FLOAT, relabel
from cudnnlite.arguments import one_of
from cudnnlite.devices.device import Device, check_recorded_together
from cudnnlite.devices.foreign import ForeignArray, host_array_error
from cudnnlite.devices.storage import memory_axes, read_values, split_vectors
from cudnnlite.dtypes import ARRAY_DTYPES, dtype_name, numpy_dtype, parse_dtype
from cudnnlite.errors import ArgumentError, ArrayTypeError, CaptureError, ClosedError
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import memory_order

Array = np.ndarray[Any, Any]
_HOST_TYPES = (np.ndarray, np.generic, list, tuple, int, float)


class DeviceArray:
    """An array in device memory.

    Made by `Handle.array`, `Handle.empty`, `Handle.view` and by operations.  Its memory is freed, in stream order, when the
    last owner is gone: this object, or whoever took it through `__dlpack__`.

    Attributes
    ----------
    spec : TensorSpec
        Shape ``(N, C, *spatial)``, dtype and strides.
    device : Device
        Where it is.
    ptr : int
        The address of the first value; `ClosedError` after `close()`.
    nbytes : int
        The bytes from the first value to the last, gaps included.
    readonly : bool
        Whether the owner forbids writing; then it cannot be an output.
    stream : stream object
        What orders its memory: copies to the host, and the freeing, happen on it.  A call on another stream waits for it
        first, and it for that call afterwards.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(24).reshape(1, 2, 3, 4), dtype="float32", layout="NHWC")
    ...     print(x.shape, x.strides, x.nbytes)
    ...     print(x.numpy()[0, 1, 0])
    (1, 2, 3, 4) (24, 1, 8, 2) 96
    [12. 13. 14. 15.]
    """

    __slots__ = ("__weakref__", "_owner", "device", "nbytes", "ptr", "readonly", "spec", "stream")

    def __init__(
        self, spec: TensorSpec, device: Device, ptr: int, owner: object, stream: Any, *, readonly: bool = False
    ) -> None:
        self.spec = spec
        self.device = device
        self.nbytes = spec.nbytes
        self.ptr = ptr
        self.readonly = readonly
        self._owner: object | None = owner
        self.stream = stream

    @property
    def shape(self) -> tuple[int, ...]:
        """``(N, C, *spatial)``, whatever the layout."""
        return self.spec.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return self.spec.strides

    @property
    def layout(self) -> str:
        """'NCHW', 'NHWC', ..., 'strided'."""
        return self.spec.layout

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of one value."""
        return numpy_dtype(self.spec.dtype)

    def numpy(self) -> Array:
        """Copy to the host, in logical shape ``(N, C, *spatial)``, and wait for it.

        Returns
        -------
        ndarray
            A new array; its memory order is the device array's.
        """
        ptr, memory = self.ptr, np.empty(self.nbytes, np.uint8)
        if self.nbytes:
            self.device.copy_out(memory, ptr, self.stream)
        values = read_values(memory, self.spec)
        return values if self.spec.layout != "strided" else values.copy(order="K")

    def close(self) -> None:
        """Give up the memory; it is freed when nobody else holds it.  Harmless when called again."""
        if self._owner is not None:
            self._owner = None
            self.__class__ = _ClosedArray

    def _exported(self) -> ForeignArray:
        shape, strides = memory_axes(self.spec)
        return ForeignArray(self.ptr, shape, strides, self.dtype, self.readonly, self._owner)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        exported = self._exported()
        if exported.dtype.name != "bfloat16":
            return self.device.export_dlpack(exported, self.stream, stream, **options)
        stand_in = exported._replace(dtype=np.dtype(np.float16))
        capsule = self.device.export_dlpack(stand_in, self.stream, stream, **options)
        relabel(capsule, FLOAT, BFLOAT)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack_device()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.device.cuda_array_interface(self._exported(), self.stream)

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise ArrayTypeError("a DeviceArray does not turn into a host array by itself; call its numpy()")

    def __reduce__(self) -> Any:
        raise TypeError("a DeviceArray cannot be pickled; pickle its numpy()")

    def __repr__(self) -> str:
        state = "closed " if self._owner is None else ""
        return f"<{state}DeviceArray {self.shape} {dtype_name(self.spec.dtype)} {self.layout} on {self.device}>"


class _ClosedArray(DeviceArray):
    """What an array becomes by `close()`.  So an open one has plain slots, which cost a call nothing."""

    __slots__ = ()

    @property
    def ptr(self) -> int:  # type: ignore[override]
        raise ClosedError("this DeviceArray was closed")


def empty(device: Device, stream: Any, spec: TensorSpec) -> DeviceArray:
    """Allocate an array with undefined contents (NaN on the emulated device)."""
    try:
        buffer = device.allocate(spec.nbytes, stream)
    except CaptureError as error:
        raise CaptureError(f"{error}; for results pass out= (in training reserve= too)") from None
    return DeviceArray(spec, device, int(buffer.handle), buffer, stream)


def from_host(
    device: Device, stream: Any, values: Any, *, dtype: Any = None, layout: str | None = None, casting: str | None = None
) -> DeviceArray:  # fmt: skip
    """Copy a host array (anything that `numpy.asarray` takes) to the device, packed in `layout`."""
    one_of(casting, "casting", "unsafe", None)
    try:
        source = np.asarray(values)
    except (ValueError, MemoryError, OverflowError) as error:  # a ragged list; a range of too many
        raise ArgumentError(f"values cannot be turned into an array: {error}") from error
    except TypeError as error:  # another device's array
        raise ArrayTypeError(
            f"values of type {type(values).__name__} cannot be copied from the host: {error}"
        ) from error
    if source.dtype.kind == "O" and hasattr(values, "__dlpack__"):
        try:
            source = np.from_dlpack(values)
        except (TypeError, ValueError, AttributeError, RuntimeError, BufferError) as error:
            raise ArrayTypeError(f"values of type {type(values).__name__} cannot be copied: {error}") from error
    if source.dtype.kind == "O":
        raise ArrayTypeError(f"an array of {type(values).__name__} objects cannot be copied to a device")
    kind = parse_dtype(source.dtype if dtype is None else dtype)
    shape = source.shape or (1,)
    spec = TensorSpec(shape, kind, layout)
    if source.dtype != numpy_dtype(kind) or isinstance(values, MaskedArray):
        source = _converted(values, source, numpy_dtype(kind), casting)
    array = empty(device, stream, spec)
    if spec.size:
        device.copy_in(array.ptr, _pack(source.reshape(shape), spec), stream)
    return array


def _converted(values: Any, source: Array, dtype: np.dtype[Any], casting: str | None) -> Array:
    """Return an array in another dtype; floats are rounded to what that has, but nothing else is lost unless it may be."""
    is_number = source.dtype.kind in "biufc" or source.dtype in map(numpy_dtype, ARRAY_DTYPES)
    if not is_number:
        raise ArrayTypeError(f"values of {source.dtype} are no numbers, and cannot be copied to a device")
    what = "masked values" if is_masked(values) else "imaginary parts" if source.dtype.kind == "c" else ""
    try:
        with np.errstate(invalid="ignore", over="ignore" if casting else "raise"):
            converted = (source.real if source.dtype.kind == "c" else source).astype(dtype, copy=False)
    except FloatingPointError:
        what = "values that are too large"
    if casting is None:
        if dtype.kind in "iu" and not (what or np.can_cast(source.dtype, dtype) or (converted == source).all()):
            what = "values that it has not, such as fractions, NaN or larger ones"
        if what:
            raise ArgumentError(f'values of {source.dtype} as {dtype} would lose {what}; casting="unsafe" lets them')
    return converted


def _pack(values: Array, spec: TensorSpec) -> Array:
    """Bring values of logical shape into the memory order of a packed spec."""
    values = split_vectors(values, spec.vector)
    return np.ascontiguousarray(values.transpose(memory_order(spec.rank, spec.layout)) if spec.vector == 1 else values)


def find_on_device(device: Device, stream: Any, array: Any) -> DeviceArray | None:
    """Return a view of an array whose memory is that device's, whoever made it; None for anything else.

    Raises
    ------
    ArrayTypeError
        A DeviceArray of another device.
    """
    if isinstance(array, DeviceArray):
        return view(device, stream, array, "values")
    readable = hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")
    if not readable or isinstance(array, _HOST_TYPES):
        return None
    try:
        return view(device, stream, array, "values")
    except ArrayTypeError:  # host memory, or another device's: which, the copy from the host will say
        return None


def copy_of(array: DeviceArray, stream: Any) -> DeviceArray:
    """Copy an array on its device, keeping its strides."""
    copy = empty(array.device, stream, array.spec)
    if array.nbytes:
        array.device.copy_within(copy.ptr, array.ptr, array.nbytes, stream)
    return copy


def view(device: Device, stream: Any, array: Any, argument: str) -> DeviceArray:
    """View any array on the device, without a copy.

    Parameters
    ----------
    array : object
        A DeviceArray, or anything with `__dlpack__` or `__cuda_array_interface__`.
    argument : str
        Its name, for the message.

    Raises
    ------
    ArrayTypeError
        It is a host array, or on another device, or no array at all.
    """
    if isinstance(array, DeviceArray):
        if array.device is not device:
            raise ArrayTypeError(f"{argument} is on {array.device}, the handle on {device}")
        return array
    if isinstance(array, _HOST_TYPES):
        raise host_array_error(array, argument)
    if not (hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")):
        raise ArrayTypeError(
            f"{argument} of type {type(array).__name__} is no array; allowed: a DeviceArray, or an object with __dlpack__ "
            "or __cuda_array_interface__"
        )
    if getattr(array, "requires_grad", False) is True:
        raise ArrayTypeError(
            f"{argument} requires grad, and cudnnlite has no gradients to give; pass {argument}.detach()"
        )
    foreign = device.adopt(array, argument, stream)
    if any(step < 0 for step in foreign.strides):
        raise ArgumentError(
            f"{argument} has negative strides {foreign.strides}; cuDNN reads in front of the buffer then"
        )
    try:
        spec = TensorSpec(foreign.shape, foreign.dtype, strides=foreign.strides)
    except ArgumentError as error:
        raise ArgumentError(f"{argument} cannot be described to cuDNN: {error}") from error
    if foreign.ptr % foreign.dtype.itemsize:
        raise ArgumentError(f"{argument} begins at {foreign.ptr:#x}, which is not aligned to its {foreign.dtype}")
    return DeviceArray(spec, device, foreign.ptr, foreign.owner, stream, readonly=foreign.readonly)


def on_stream(array: DeviceArray, stream: Any) -> DeviceArray:
    """Return a view of the same memory that belongs to `stream`, which waits once for the array's own stream."""
    if int(array.stream.handle) == int(stream.handle):
        return array
    check_recorded_together(array.device, stream, array.stream)
    stream.wait(array.stream)
    return part_of(array, array.spec, stream=stream)


def part_of(array: DeviceArray, spec: TensorSpec, offset: int = 0, *, stream: Any = None) -> DeviceArray:
    """Return another array in the same memory, which it keeps alive; `offset` is in bytes, and is not checked."""
    ptr, owner = array.ptr + offset, array._owner
    stream = array.stream if stream is None else stream
    return DeviceArray(spec, array.device, ptr, owner, stream, readonly=array.readonly)
