"""`NamedWeights`: matrices and biases in one device buffer, by name; cuDNN sets their layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite._raw.types import cudnnTensorDescriptor_t
from cudnnlite.arguments import instance_of, shown
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.devices.host_values import is_overflow
from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import itemsize, numpy_dtype
from cudnnlite.errors import ArgumentError
from cudnnlite.other_libraries import torch_weight_hint
from cudnnlite.plans.host_arrays import check_names, host_array, host_array_of_shape
from cudnnlite.plans.operands import use
from cudnnlite.specs import TensorSpec
from cudnnlite.texts import aligned
from cudnnlite.unknown import meant

Array = np.ndarray[Any, Any]
WeightsT = TypeVar("WeightsT", bound="NamedWeights")


class WeightPlace(NamedTuple):
    """The place of one matrix or bias in the buffer.

    Attributes
    ----------
    name : str
        The name, such as "layer0.forward.input.i" or "layer0.forward.input.i.bias".
    offset : int
        The bytes between the beginning of the buffer and its first value.
    shape : tuple of int
        The shape; in an RNN (hidden_size, input) for a matrix, (hidden_size,) for a bias, and
        (projection_size, hidden_size) for a projection.
    """

    name: str
    offset: int
    shape: tuple[int, ...]


class WeightLayout(Sequence[WeightPlace]):
    """The places of all matrices and biases; prints as a table.

    The layout is opaque: another device, or another cuDNN, may have another one.
    """

    def __init__(self, places: Sequence[WeightPlace], nbytes: int) -> None:
        self._places = tuple(places)
        self.nbytes = nbytes

    def __getitem__(self, index: Any) -> Any:
        return self._places[index]

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        rows = [("name", "offset", "shape")]
        for place in self._places:
            rows.append((place.name, str(place.offset), str(place.shape)))
        return "\n".join([*aligned(rows, ["offset"]), f"{self.nbytes} bytes"])


class NamedWeights(NonCopyable, Mapping[str, DeviceArray]):
    """One buffer of weights, zero at first; a subclass asks cuDNN for the places in it."""

    _instead_of_copy: ClassVar[str] = (
        "pickle its numpy() and spec, and make another by its class's from_arrays"
    )
    _places: dict[str, tuple[int, TensorSpec]]  # by name: the offset in bytes, and the spec there

    def __init__(self, handle: Handle, spec: Any, kind: Any, nbytes: int) -> None:
        self.spec = spec
        self.kind = kind
        self.device = handle.device
        self.nbytes = nbytes
        size = ceil(nbytes / itemsize(spec.dtype))
        flat = TensorSpec((max(size, 1),), spec.dtype)
        self.array = arrays.empty(handle.device, handle.stream, flat)
        self.fill_zero(handle.stream)

    @classmethod
    def zeros_like(cls: type[WeightsT], handle: Handle, weights: WeightsT) -> WeightsT:
        """Make weights of the same layout, all zero, to which gradients are added."""
        use(handle)
        instance_of(weights, cls, "weights")
        new = weights.in_memory_of(arrays.empty(handle.device, handle.stream, weights.array.spec))
        new.fill_zero(handle.stream)
        return new

    def view(self: WeightsT, handle: Handle) -> WeightsT:
        """Return the same weights for calls on `handle`'s stream.

        That stream waits once, here, for the stream that the weights belong to.  Then two streams
        can share weights, as long as nobody writes to them, and calls can be recorded into a graph.
        """
        instance_of(handle, Handle, "handle")._use()
        array = arrays.view(handle.device, handle.stream, self.array, "weights")
        return self.in_memory_of(arrays.part_of(arrays.on_stream(array, handle.stream), array.spec))

    def in_memory_of(self: WeightsT, array: DeviceArray) -> WeightsT:
        """Return weights of the same layout that own `array` instead, which has as many bytes."""
        if instance_of(array, DeviceArray, "array").nbytes != self.array.nbytes:
            raise ArgumentError(
                f"array has {array.nbytes} bytes; needed: {self.array.nbytes}, as the weights have"
            )
        new = object.__new__(type(self))
        vars(new).update(vars(self), array=array, device=array.device)
        return new

    def fill_zero(self, stream: Any) -> None:
        """Set everything to zero, in stream order."""
        self.device.fill(self.array.ptr, self.array.nbytes, 0, stream)

    def __getitem__(self, name: str) -> DeviceArray:
        offset, spec = self._place(name)
        return arrays.part_of(self.array, spec, offset)

    def __setitem__(self, name: str, values: Any) -> None:
        view = self[name]
        host = self._host(values, f"weights[{name!r}]")
        if host.shape != view.shape:
            raise ArgumentError(f"weights[{name!r}] has shape {view.shape}; given: {host.shape}")
        memory = np.empty(view.nbytes, np.uint8)
        write_values(memory, view.spec, slice(None), host)
        view.device.copy_in(view.ptr, memory, view.stream)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _place(self, name: str) -> tuple[int, TensorSpec]:
        try:
            return self._places[name]
        except (KeyError, TypeError):
            hint = ""
            if isinstance(name, str):
                hint = torch_weight_hint(name, self._places) or meant(name, self._places)
            first_names = ", ".join(list(self._places)[:6])
            raise KeyError(
                f"{shown(name)} is no weight of {self.spec}; there are {first_names}, ...{hint}"
            ) from None

    def _host(self, values: Any, what: str) -> Array:
        """Return values on the host in the weights' dtype.

        ArgumentError if a value is too large for it.
        """
        if isinstance(values, DeviceArray):
            values = values.numpy()
        host = host_array(values, what)
        dtype = numpy_dtype(self.spec.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            converted = host.astype(dtype, copy=False)
        if is_overflow(host, converted):
            raise ArgumentError(
                f"{what} of {host.dtype} as {dtype} would lose values that are too large"
            )
        return converted

    def layout(self) -> WeightLayout:
        """Return the table of names, offsets in bytes, and shapes."""
        places = [
            WeightPlace(name, offset, spec.shape) for name, (offset, spec) in self._places.items()
        ]
        return WeightLayout(places, self.nbytes)

    def numpy(self) -> dict[str, Array]:
        """Copy every matrix and bias to the host, by name, and wait for it."""
        memory = np.empty(self.array.nbytes, np.uint8)
        self.array.device.copy_out(memory, self.array.ptr, self.array.stream)
        return {
            name: read_values(memory[offset:], spec).copy(order="C")
            for name, (offset, spec) in self._places.items()
        }

    def update(self, values: Mapping[str, Any]) -> None:
        """Copy arrays into their places: all of them in one copy, or some by name.

        Raises
        ------
        ArgumentError
            A name is not known, a shape is wrong, or a value is too large for the dtype; nothing is
            written then.
        """
        check_names("values", values, self._places, all_of_them=False)
        hosts = {}
        for name, value in values.items():
            host = self._host(value, f"values[{name!r}]")
            shape = self._places[name][1].shape
            hosts[name] = host_array_of_shape(f"values[{name!r}]", host, shape)
        if len(hosts) < len(self._places):
            for name, host in hosts.items():
                self[name] = host
            return
        memory = np.zeros(self.array.nbytes, np.uint8)
        for name, (offset, spec) in self._places.items():
            write_values(memory[offset:], spec, slice(None), hosts[name])
        self.array.device.copy_in(self.array.ptr, memory, self.array.stream)

    update.__qualname__ = "weights.update"  # the name in errors: users do not know this class

    @classmethod
    def from_arrays(
        cls: type[WeightsT], handle: Handle, spec: Any, values: Mapping[str, Any]
    ) -> WeightsT:
        """Make weights from host arrays (NumPy, or PyTorch tensors) by this class's own names.

        Raises
        ------
        ArgumentError
            A name is missing or not known, or a shape is wrong.
        """
        make: Any = cls
        weights: WeightsT = make(handle, spec)
        check_names("values", values, weights._places)
        weights.update(values)
        return weights

    def close(self) -> None:
        """Give up the memory, which is freed when nobody else holds it; harmless when repeated."""
        self.array.close()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.spec} on {self.array.device}>"


class EmptyTensorDescriptor(NativeObject[cudnnTensorDescriptor_t]):
    """A tensor descriptor that a function of cuDNN fills in."""

    def __init__(self) -> None:
        super().__init__(None)
