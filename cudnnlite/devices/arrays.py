"""`DeviceArray`: an array in device memory, with a spec; and views of other libraries' arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from cudnnlite._raw.dlpack import STAND_INS, relabel
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.devices.device import Device, check_recorded_together
from cudnnlite.devices.foreign import (
    HOST_TYPES,
    AnyArray,
    ForeignArray,
    bytes_of_torch,
    check_viewable,
    float8_of_torch,
    is_readable,
    parse_dlpack_options,
    spec_of,
)
from cudnnlite.devices.host_values import host_values
from cudnnlite.devices.indexing import (
    Index,
    indexed,
    memory_axes_order,
    part_spec,
    reshaped,
    rows_of,
    transposed,
)
from cudnnlite.devices.refused_operators import RefusedOperators
from cudnnlite.devices.storage import memory_axes, read_values, split_vectors
from cudnnlite.dtypes import dtype_name, numpy_dtype
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError, ArrayTypeError, CaptureError, ClosedError
from cudnnlite.other_libraries import ARRAY
from cudnnlite.specs import TensorSpec
from cudnnlite.unknown import refuse_attribute

Array = np.ndarray[Any, Any]
ArrayT = TypeVar("ArrayT", bound="DeviceArray")


class DeviceArray(RefusedOperators, NonCopyable):
    """An array in device memory.

    Arrays are made by `Handle.array`, `Handle.empty`, `Handle.view` and by operations.  The memory
    is freed, in stream order, when its last owner is gone: this object, a view of it, or an object
    that took it through `__dlpack__`.

    Indexing with integers, slices with positive steps and ``...`` returns a view of the same
    memory, without a copy.  An array keeps at least one axis: a single value has shape ``(1,)``.
    For arithmetic, use CuPy, PyTorch or NumPy.  ``if x`` and ``x == y`` raise ArrayTypeError,
    because only ``x.numpy()`` copies the values to the host.

    Attributes
    ----------
    spec : TensorSpec
        Shape ``(N, C, *spatial)``, dtype and strides.
    device : Device
        The device that has the memory.
    ptr : int
        The address of the first value; `ClosedError` after `close()`.
    nbytes : int
        The bytes from the first value to the last, gaps included.
    readonly : bool
        Whether the owner forbids writing; if so, the array cannot be an output.
    stream : stream object
        The stream that orders the use of the memory: it runs copies to the host and the freeing.  A
        call on another stream waits for this stream, and then this stream waits for the call.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(24).reshape(1, 2, 3, 4), dtype="float32", layout="NHWC")
    ...     print(x.shape, x.strides, x.nbytes)
    ...     print(x.numpy()[0, 1, 0])
    ...     x[:, 1, ::2].fill(0)
    ...     print(x.numpy()[0, 1].tolist())
    (1, 2, 3, 4) (24, 1, 8, 2) 96
    [12. 13. 14. 15.]
    [[0.0, 0.0, 0.0, 0.0], [16.0, 17.0, 18.0, 19.0], [0.0, 0.0, 0.0, 0.0]]
    """

    __slots__ = (
        "__weakref__",
        "_owner",
        "_readonly",
        "_stream",
        # What a plan compares with the array of its last call: address, spec, device, stream, and
        # whether it is read-only.
        "_traits",
        "device",
        "nbytes",
        "ptr",
        "spec",
    )
    _instead_of_copy = "pickle its numpy(), and copy it by its copy()"

    def __init__(
        self,
        spec: TensorSpec,
        device: Device,
        ptr: int,
        owner: object,
        stream: Any,
        *,
        readonly: bool = False,
    ) -> None:
        self.spec = spec
        self.device = device
        self.nbytes = spec.nbytes
        self.ptr = ptr
        self._readonly = readonly
        self._owner: object | None = owner
        self._stream = stream
        # As `_note_traits` does, whose call would take 0.2 us of 0.5 (two cores).
        self._traits = (ptr, (spec, device, stream, readonly))

    def _note_traits(self) -> None:
        """Set `_traits`.

        The address stands apart: a plan repeats its last call where nothing else differs.
        """
        self._traits = (self.ptr, (self.spec, self.device, self._stream, self._readonly))

    @property
    def readonly(self) -> bool:
        """Whether the owner forbids writing."""
        return self._readonly

    @readonly.setter
    def readonly(self, value: bool) -> None:
        self._readonly = value
        self._note_traits()

    @property
    def stream(self) -> Any:
        """The stream that orders the array's memory."""
        return self._stream

    @stream.setter
    def stream(self, value: Any) -> None:
        self._stream = value
        self._note_traits()

    @property
    def shape(self) -> tuple[int, ...]:
        """``(N, C, *spatial)``, whatever the layout."""
        return self.spec.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.spec.rank

    @property
    def size(self) -> int:
        """The number of values."""
        return self.spec.size

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

    @property
    def is_packed(self) -> bool:
        """Whether there are no gaps between its values."""
        return self.size * self.dtype.itemsize == self.nbytes

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
        if self.spec.layout == "strided":
            # A copy in the order in memory leaves out the gaps, which only such a layout has.
            values = values.copy(order="K")
        return values

    def __getitem__(self, key: Index) -> DeviceArray:
        spec, offset = indexed(self.spec, key)
        return part_of(self, spec, offset)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[DeviceArray]:
        return (self[index] for index in range(len(self)))

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view of another shape, of which one size may be -1.

        ArgumentError if the shape needs a copy.
        """
        is_one_sequence = len(shape) == 1 and np.iterable(shape[0])
        sizes = shape[0] if is_one_sequence else shape
        return part_of(self, reshaped(self.spec, sizes))

    def transpose(self, *axes: Any) -> DeviceArray:
        """Return a view with the axes in another order; without arguments they are reversed."""
        is_one_sequence = len(axes) == 1 and np.iterable(axes[0])
        order = axes[0] if is_one_sequence else axes
        return part_of(self, transposed(self.spec, order))

    def permute(self, *axes: Any) -> DeviceArray:
        """Return a view with the axes in another order, as `transpose` does; PyTorch's name."""
        return self.transpose(*axes)

    def copy(self) -> DeviceArray:
        """Copy to new memory without gaps.

        The axes keep their order in memory, so that channels that are last stay last.  The copy is
        in stream order.  An array with gaps is copied through the host, and the call waits.
        """
        if self.is_packed:
            return copy_of(self, self.stream)
        values = self.numpy()
        strides = tuple(stride // values.itemsize for stride in values.strides)
        packed = empty(self.device, self.stream, part_spec(self.spec, self.shape, strides))
        packed.copy_from(values)
        return packed

    def fill(self, value: float, *, stream: Any = None, casting: str | None = None) -> None:
        """Set every value in stream order; gaps stay as they are.

        `stream` is the array's own if not given; another stream waits for the array's own first.
        Floats are rounded to the dtype.  Any other loss, of digits of an integer for instance, is
        an ArgumentError, unless `casting` allows it as in `Handle.array`; a read-only array is an
        ArrayTypeError.
        """
        self._check_written("fill")
        # The patterns of plain numbers are cached.  0.0 is not: -0.0 equals it and has other bits.
        is_cacheable = type(value) is int or (type(value) is float and value != 0)
        if is_cacheable and casting is None:
            pattern = _pattern_of(value, self.spec.dtype, type(value).__name__)
        else:
            pattern = _new_pattern(value, self.dtype, casting)
        # CUDA fills with patterns of 4 bytes at most.
        has_two_halves = len(pattern) == 8 and pattern[:4] != pattern[4:]
        if stream is None and not has_two_halves:  # the usual call, without a context manager
            self._fill_rows(pattern[:4], self._stream)
            return
        with self._ordered(stream) as on:
            if has_two_halves:
                self._fill_halves(pattern, on)
            else:
                self._fill_rows(pattern[:4], on)

    def _fill_rows(self, pattern: bytes, stream: Any) -> None:
        rows = rows_of(self.spec)
        for start in rows.starts:
            self.device.fill_rows(
                self.ptr + start, rows.pitch, rows.width, rows.rows, pattern, stream
            )

    def _fill_halves(self, pattern: bytes, stream: Any) -> None:
        """Fill with a pattern of 8 bytes, a half at a time."""
        rows = rows_of(self.spec, single=True)  # a row is one value
        for offset in (0, 4):
            half = pattern[offset : offset + 4]
            for start in rows.starts:
                address = self.ptr + start + offset
                self.device.fill_rows(address, rows.pitch, len(half), rows.rows, half, stream)

    def copy_from(
        self, source: ArrayLike | AnyArray, *, stream: Any = None, casting: str | None = None
    ) -> None:
        """Copy values into this array, in stream order.

        Parameters
        ----------
        source : array_like or device array
            Of this shape.  Host values are converted as by `Handle.array`.  The caller may change
            pageable memory when the call has returned.  A copy from pinned memory
            (`Handle.pinned`) is asynchronous: the caller may change that when the stream has made
            the copy.  An array on the device must have this dtype and these strides, and no gaps
            (`transform_tensor` converts).
        stream : stream object, optional
            To enqueue the copy on, instead of the array's own; each then waits for the other.
        casting : str, optional
            "unsafe" allows host values to lose digits, as in `Handle.array`.

        Raises
        ------
        ArgumentError, ArrayTypeError
            The source has another shape, dtype or strides, holds no numbers, or is on another
            device; or this array is read-only.
        """
        self._check_written("copy_from")
        device_array = find_on_device(self.device, self.stream, source)
        if device_array is not None:
            self._copy_within(device_array, stream)
            return
        values = host_values(source, self.dtype, casting)
        if values.shape != self.shape:
            raise ArgumentError(f"source has shape {values.shape}; needed: {self.shape}")
        by_axes = split_vectors(values, self.spec.vector)
        packed = np.ascontiguousarray(by_axes.transpose(memory_axes_order(self.spec)))
        with self._ordered(stream) as on:
            self._copy_rows(packed, on, out=False)

    def copy_to(self, target: Array, *, stream: Any = None) -> None:
        """Copy the values into a host array, in stream order; wait unless that array is pinned.

        Parameters
        ----------
        target : ndarray
            Of this shape and dtype.  One by `Handle.pinned`, in the memory order of the array,
            makes the copy asynchronous: the values are there after `Handle.synchronize`.
        stream : stream object, optional
            As in `copy_from`.

        Raises
        ------
        ArgumentError
            A wrong shape or dtype, or a target that cannot be written.
        """
        self._check_target(target)
        if self.spec.vector > 1:  # a value in memory has several channels, as int8x4 does
            target[...] = self.numpy()
            return
        in_memory_order = target.transpose(memory_axes_order(self.spec))
        has_same_order = in_memory_order.flags.c_contiguous and target.size > 0
        host = in_memory_order
        if not has_same_order:
            host = np.empty(in_memory_order.shape, in_memory_order.dtype)
        with self._ordered(stream) as on:
            self._copy_rows(host, on, out=True)
        if not has_same_order:
            in_memory_order[...] = host

    def _check_target(self, target: object) -> None:
        requirement = f"needed: an ndarray, {self.dtype} {self.shape}"
        if not isinstance(target, np.ndarray):
            raise ArgumentError(f"target is {type(target).__name__}; {requirement}")
        if (target.shape, target.dtype) != (self.shape, self.dtype):
            raise ArgumentError(f"target is {target.dtype} {target.shape}; {requirement}")
        if not target.flags.writeable:
            raise ArgumentError("target is read-only")

    def _copy_rows(self, host: Array, stream: Any, *, out: bool) -> None:
        """Copy between contiguous host memory and the rows of this array."""
        rows = rows_of(self.spec)
        blocks = host.reshape(-1).view(np.uint8).reshape(len(rows.starts), rows.rows, rows.width)
        for start, block in zip(rows.starts, blocks, strict=True):
            self.device.copy_rows(self.ptr + start, rows.pitch, block, stream, out=out)

    def _copy_within(self, source: DeviceArray, stream: Any) -> None:
        is_itself = source.ptr == self.ptr and source.spec == self.spec
        if not is_itself:
            self._check_source(source)
        with self._ordered(stream) as on, source._ordered(on):
            if self.nbytes and not is_itself:
                self.device.copy_within(self.ptr, source.ptr, self.nbytes, on)

    def _check_source(self, source: DeviceArray) -> None:
        """Raise ArgumentError for an array whose memory cannot be copied here as it is."""
        has_same_layout = (source.shape, source.spec.dtype, source.strides) == (
            self.shape,
            self.spec.dtype,
            self.strides,
        )
        if not has_same_layout or not self.is_packed:
            hint = "transform_tensor(handle, source, out=...) converts layouts and dtypes"
            raise ArgumentError(
                f"source is {source.spec}, the array {self.spec}; "
                f"allowed: the same, without gaps; {hint}"
            )
        if abs(source.ptr - self.ptr) < self.nbytes:
            raise ArgumentError("source overlaps the array in memory")

    def _check_written(self, argument: str) -> None:
        _ = self.ptr  # ClosedError if the array was closed
        if self.readonly:
            raise ArrayTypeError(
                f"{argument}: the array is read-only: its owner forbids writing to it"
            )
        if self.spec.overlaps_itself:
            raise ArgumentError(f"{argument}: {self.spec} overlaps itself, and cannot be written")

    @contextmanager
    def _ordered(self, stream: Any) -> Iterator[Any]:
        """Yield the stream to enqueue on; if it is not the array's, they wait for each other."""
        on = self.stream if stream is None else self.device.stream(stream)
        is_another = int(on.handle) != int(self.stream.handle)
        if is_another:
            check_recorded_together(self.device, on, self.stream)
            on.wait(self.stream)
        try:
            yield on
        finally:
            if is_another:
                self.stream.wait(on)

    def __enter__(self: ArrayT) -> ArrayT:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the memory, which is freed with its last owner; harmless when called again."""
        if self._owner is not None:
            self._owner = None
            self.__class__ = _ClosedArray  # its attributes raise ClosedError

    def _exported(self) -> ForeignArray:
        shape, strides = memory_axes(self.spec)
        return ForeignArray(self.ptr, shape, strides, self.dtype, self.readonly, self._owner)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        options = parse_dlpack_options(stream, max_version, dl_device, copy)
        exported = self._exported()
        stand_in = STAND_INS.get(exported.dtype.name)
        if stand_in is None:
            return self.device.export_dlpack(exported, self.stream, stream, **options)
        # The exporter does not know such a type: it exports the stand-in, which is relabelled.
        exported = exported._replace(dtype=np.dtype(stand_in.name))
        capsule = self.device.export_dlpack(exported, self.stream, stream, **options)
        relabel(capsule, stand_in.code, stand_in.foreign_code)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack_device()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.device.cuda_array_interface(self._exported(), self.stream)

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise ArrayTypeError(
            "a DeviceArray does not turn into a host array by itself; call its numpy()"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError; for a name of another library it says what is ours."""
            return refuse_attribute(self, name, ARRAY)

    def __str__(self) -> str:
        if self._owner is None:
            return repr(self)
        return f"{repr(self)[:-1]}; its numpy() has the values>"

    def __repr__(self) -> str:
        state = "closed " if self._owner is None else ""
        return f"<{state}DeviceArray {self.shape} {dtype_name(self.spec.dtype)} {self.layout} on {self.device}>"


class _ClosedArray(DeviceArray):
    """The class of an array after `close()`.

    So an open array needs no check at each use.
    """

    __slots__ = ()

    @property
    def ptr(self) -> int:  # type: ignore[override]
        raise ClosedError("this DeviceArray was closed")

    @property
    def _traits(self) -> Any:  # type: ignore[override]
        raise ClosedError("this DeviceArray was closed")


@lru_cache(maxsize=256)  # new arrays of zeros are filled often
def _pattern_of(value: float, dtype: DataType, kind: str) -> bytes:
    """Return the bytes of a number; `kind` distinguishes 1 from 1.0 in the cache."""
    return _new_pattern(value, numpy_dtype(dtype), None)


def _new_pattern(value: Any, dtype: np.dtype[Any], casting: str | None) -> bytes:
    number = host_values(value, dtype, casting)
    if number.size != 1:
        raise ArgumentError(f"value={value!r} is not one number")
    return number.tobytes()


def empty(device: Device, stream: Any, spec: TensorSpec) -> DeviceArray:
    """Allocate an array with undefined contents (NaN on the emulated device)."""
    try:
        buffer = device.allocate(spec.nbytes, stream)
    except CaptureError as error:
        raise CaptureError(f"{error}; for results pass out= (in training reserve= too)") from None
    return DeviceArray(spec, device, int(buffer.handle), buffer, stream)


def from_host(
    device: Device,
    stream: Any,
    values: Any,
    *,
    dtype: Any = None,
    layout: str | None = None,
    casting: str | None = None,
) -> DeviceArray:
    """Copy a host array (anything that `numpy.asarray` takes) to the device, packed in `layout`."""
    source = host_values(values, dtype, casting)
    spec = TensorSpec(source.shape or (1,), source.dtype if dtype is None else dtype, layout)
    array = empty(device, stream, spec)
    if spec.size:
        values_by_axes = split_vectors(source.reshape(spec.shape), spec.vector)
        packed = np.ascontiguousarray(values_by_axes.transpose(memory_axes_order(spec)))
        device.copy_in(array.ptr, packed, stream)
    return array


def find_on_device(device: Device, stream: Any, array: Any) -> DeviceArray | None:
    """Return a view of any library's array on that device; None for anything else.

    ArrayTypeError for a DeviceArray of another device.
    """
    if isinstance(array, DeviceArray):
        return view(device, stream, array, "values")
    if not is_readable(array) or isinstance(array, HOST_TYPES):
        return None
    try:
        return view(device, stream, array, "values")
    except ArrayTypeError:  # The copy from the host says whether it is on another device.
        return None


def copy_of(array: DeviceArray, stream: Any) -> DeviceArray:
    """Copy an array on its device, keeping its strides, gaps included."""
    copy = empty(array.device, stream, array.spec)
    if array.nbytes:
        array.device.copy_within(copy.ptr, array.ptr, array.nbytes, stream)
    return copy


def move_values(target: DeviceArray, source: DeviceArray, stream: Any) -> None:
    """Copy the memory of an array, gaps included, to an array of the same spec.

    The copy is on `stream`, and in the order of both arrays' streams.
    """
    with target._ordered(stream) as on, source._ordered(on):
        if target.nbytes:
            target.device.copy_within(target.ptr, source.ptr, target.nbytes, on)


def view(
    device: Device,
    stream: Any,
    array: Any,
    argument: str,
    spec_kinds: tuple[type, ...] = (),
) -> DeviceArray:
    """View any array on the device, without a copy; `argument` is its name.

    ArrayTypeError for a host array, one on another device, or no array at all; ArgumentError if
    cuDNN has no descriptor for it.  `spec_kinds` is as in `check_viewable`.
    """
    if isinstance(array, DeviceArray):
        if array.device is not device:
            raise ArrayTypeError(f"{argument} is on {array.device}, the handle on {device}")
        return array
    check_viewable(array, argument, spec_kinds)
    float8 = float8_of_torch(array, argument)
    if float8 is None:
        foreign = device.adopt(array, argument, stream)
    else:
        foreign = device.adopt(bytes_of_torch(array), argument, stream)
        foreign = foreign._replace(dtype=float8)
    spec = spec_of(foreign, argument)
    return DeviceArray(spec, device, foreign.ptr, foreign.owner, stream, readonly=foreign.readonly)


def on_stream(array: DeviceArray, stream: Any) -> DeviceArray:
    """Return a view that belongs to `stream`; it waits once for the array's own stream."""
    if int(array.stream.handle) == int(stream.handle):
        return array
    check_recorded_together(array.device, stream, array.stream)
    stream.wait(array.stream)
    return part_of(array, array.spec, stream=stream)


def part_of(
    array: DeviceArray, spec: TensorSpec, offset: int = 0, *, stream: Any = None
) -> DeviceArray:
    """Return another array in the same memory, which it keeps alive.

    `offset` is in bytes, and is not checked.
    """
    on = array._stream if stream is None else stream
    return DeviceArray(
        spec, array.device, array.ptr + offset, array._owner, on, readonly=array._readonly
    )
