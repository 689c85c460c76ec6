"""`RNNWeights`: all matrices and biases of an RNN in one device buffer, reachable by name."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from cudnnlite._raw.types import cudnnTensorDescriptor_t
from cudnnlite.arguments import instance_of, shown
from cudnnlite.descriptors import RNNDescriptor, TensorDescriptor
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import itemsize, numpy_dtype
from cudnnlite.errors import ArgumentError, LibraryError
from cudnnlite.operations.rnn import formats as rnn_formats
from cudnnlite.specs import RNNSpec, TensorSpec
from cudnnlite.specs.rnn_weights import weight_parts
from cudnnlite.texts import aligned

Array = np.ndarray[Any, Any]


class WeightPlace(NamedTuple):
    """Where one matrix or bias lies.

    Attributes
    ----------
    name : str
        Such as "layer0.forward.input.i" or "layer0.forward.input.i.bias".
    offset : int
        In bytes from the beginning of the buffer.
    shape : tuple of int
        (hidden_size, input) of a matrix, (hidden_size,) of a bias, (projection_size, hidden_size) of a projection.
    """

    name: str
    offset: int
    shape: tuple[int, ...]


class WeightLayout(Sequence[WeightPlace]):
    """The places of all matrices and biases; prints as a table.  Opaque: another device or cuDNN may have another."""

    def __init__(self, places: Sequence[WeightPlace], nbytes: int) -> None:
        self._places = tuple(places)
        self.nbytes = nbytes

    def __getitem__(self, index: Any) -> Any:
        return self._places[index]

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        rows = [("name", "offset", "shape"), *((p.name, str(p.offset), str(p.shape)) for p in self._places)]
        return "\n".join([*aligned(rows, ["offset"]), f"{self.nbytes} bytes"])


class RNNWeights(Mapping[str, DeviceArray]):
    """The weights of an RNN: one buffer, zero at first, with a view of each matrix and bias by name.

    Names are ``layer0.forward.input.i``, ``layer0.forward.recurrent.i`` and the same with ``.bias``;
    ``layer0.backward...`` if bidirectional; ``layer0.forward.projection``.  Gates are i, f, g, o of an LSTM, r, z, n of a GRU,
    h of a plain network.  A view is written by ``weights[name] = values``; reading ``weights[name]`` gives a DeviceArray that
    shares the memory.

    Parameters
    ----------
    handle : Handle
        Whose device they are on.
    spec : RNNSpec
        The network; its dtype is the weights'.

    Attributes
    ----------
    spec : RNNSpec
        What they are for.  Math type, compute type, clipping and dropout of the network may differ.
    kind : RNNSpec
        The spec without what weights do not depend on: two weights of one kind are for the same networks.
    array : DeviceArray
        The whole buffer; its layout is cuDNN's own affair.

    Raises
    ------
    ArgumentError, NotSupportedError
        cuDNN does not support the network.
    DeviceMemoryError
        There is not enough device memory.

    Notes
    -----
    C functions: `cudnnGetRNNWeightSpaceSize`, `cudnnGetRNNWeightParams`, which alone says where a matrix lies.

    Examples
    --------
    >>> lstm = dnn.RNNSpec("lstm", input_size=4, hidden_size=8)
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.RNNWeights(handle, lstm)
    ...     weights["layer0.forward.input.f.bias"] = np.ones(8)  # the forget gate's
    ...     state_dict = weights.to_torch()
    ...     again = dnn.RNNWeights.from_torch(handle, lstm, state_dict)
    ...     print(len(again), again["layer0.forward.input.f.bias"].numpy().sum())
    16 8.0
    """

    def __init__(self, handle: Handle, spec: RNNSpec) -> None:
        instance_of(handle, Handle, "handle", "; it comes first: RNNWeights(handle, spec)").use()
        self.spec = instance_of(spec, RNNSpec, "spec")
        self.kind = spec.weights_of()
        self.device = handle.device
        with RNNDescriptor(spec, api=handle.api) as descriptor:
            size = ctypes.c_size_t()
            handle.api.cudnnGetRNNWeightSpaceSize(handle.ptr, descriptor.ptr, size)
            flat = TensorSpec((-(-size.value // itemsize(spec.dtype)),), spec.dtype)
            self.array = arrays.empty(handle.device, handle.stream, flat)
            self.nbytes = size.value
            self.fill_zero(handle.stream)
            self._places = _read_layout(handle, descriptor, spec, self.array.ptr, size.value)

    @classmethod
    def zeros_like(cls, weights: RNNWeights, handle: Handle) -> RNNWeights:
        """Make weights of the same layout, all zero: what gradients are added to."""
        instance_of(weights, RNNWeights, "weights")
        instance_of(handle, Handle, "handle").use()
        new = cls.__new__(cls)
        new.spec, new.kind, new.device = weights.spec, weights.kind, handle.device
        new.nbytes, new._places = weights.nbytes, weights._places
        new.array = arrays.empty(handle.device, handle.stream, weights.array.spec)
        new.fill_zero(handle.stream)
        return new

    def view(self, handle: Handle) -> RNNWeights:
        """Return the same weights as belonging to `handle`'s stream, which waits once, here, for the stream they belong to.

        So two streams can share weights, as long as nobody writes to them; and calls can be recorded into a graph.
        """
        instance_of(handle, Handle, "handle").use()
        array = arrays.view(handle.device, handle.stream, self.array, "weights")
        new = copy(self)
        new.array = arrays.part_of(arrays.on_stream(array, handle.stream), array.spec)
        return new

    def fill_zero(self, stream: Any) -> None:
        """Set everything to zero, in stream order."""
        self.device.fill(self.array.ptr, self.array.nbytes, 0, stream)

    def __getitem__(self, name: str) -> DeviceArray:
        place = self._place(name)
        return arrays.part_of(self.array, TensorSpec(place.shape, self.spec.dtype), place.offset)

    def __setitem__(self, name: str, values: Any) -> None:
        view = self[name]
        given = values.numpy() if isinstance(values, DeviceArray) else values
        host = rnn_formats.host_array(given, f"weights[{name!r}]")
        if host.shape != view.shape:
            raise ArgumentError(f"weights[{name!r}] has shape {view.shape}; given: {host.shape}")
        packed = np.ascontiguousarray(host.astype(numpy_dtype(self.spec.dtype), copy=False))
        view.device.copy_in(view.ptr, packed, view.stream)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _place(self, name: str) -> WeightPlace:
        try:
            return self._places[name]
        except (KeyError, TypeError):
            raise KeyError(
                f"{shown(name)} is no weight of {self.spec}; there are {', '.join(list(self._places)[:6])}, ..."
            ) from None

    def layout(self) -> WeightLayout:
        """Return the table of names, offsets in bytes, and shapes."""
        return WeightLayout(tuple(self._places.values()), self.nbytes)

    def numpy(self) -> dict[str, Array]:
        """Copy every matrix and bias to the host, by name, and wait for it."""
        memory = np.empty(self.array.nbytes, np.uint8)
        self.array.device.copy_out(memory, self.array.ptr, self.array.stream)
        dtype = numpy_dtype(self.spec.dtype)
        return {name: np.ndarray(shape, dtype, memory, offset).copy() for name, offset, shape in self._places.values()}

    def update(self, values: Mapping[str, Any]) -> None:
        """Copy host arrays into their places, all of them in one go.

        Raises
        ------
        ArgumentError
            A name is missing or not known, or a shape is wrong; nothing is written then.
        """
        rnn_formats.check_names("values", values, self._places)
        memory = np.zeros(self.array.nbytes, np.uint8)
        dtype = numpy_dtype(self.spec.dtype)
        for name, offset, shape in self._places.values():
            host = rnn_formats.checked(f"values[{name!r}]", values[name], shape)
            np.ndarray(shape, dtype, memory, offset)[...] = host
        self.array.device.copy_in(self.array.ptr, memory, self.array.stream)

    @classmethod
    def from_arrays(cls, handle: Handle, spec: RNNSpec, values: Mapping[str, Any]) -> RNNWeights:
        """Make weights from host arrays (NumPy, or PyTorch tensors) by this class's own names.

        Raises
        ------
        ArgumentError
            A name is missing or not known, or a shape is wrong.
        """
        weights = cls(handle, spec)
        weights.update(values)
        return weights

    @classmethod
    def from_torch(
        cls, handle: Handle, spec: RNNSpec, state_dict: Mapping[str, Any], *, prefix: str = ""
    ) -> RNNWeights:
        """Make weights from the `state_dict()` of a `torch.nn.LSTM`, `GRU` or `RNN`.

        Parameters
        ----------
        handle, spec
            As in `RNNWeights`.
        state_dict : mapping of str to tensor
            PyTorch tensors, on any device, or NumPy arrays.
        prefix : str
            What the names begin with in a larger model: "encoder.lstm.".  Other names are left alone then.

        Raises
        ------
        ArgumentError
            A tensor is missing, not known, or has the wrong shape; a bias is not zero that the spec has not got.
        """
        return cls.from_arrays(handle, spec, rnn_formats.from_torch(spec, state_dict, prefix))

    def to_torch(self) -> dict[str, Array]:
        """Return a state_dict for a `torch.nn.LSTM`, `GRU` or `RNN`, as NumPy arrays; waits for the copy.

        With a single bias, the other one is zeros: PyTorch always has two, or none.
        """
        return rnn_formats.to_torch(self.spec, self.numpy())

    @classmethod
    def from_onnx(cls, handle: Handle, spec: RNNSpec, W: Any, R: Any, B: Any = None) -> RNNWeights:
        """Make weights from the inputs of ONNX nodes LSTM, GRU or RNN.

        Parameters
        ----------
        handle, spec
            As in `RNNWeights`.
        W, R : array_like, or list of them
            (directions, gates * hidden_size, input) and (directions, gates * hidden_size, hidden_size); with several layers,
            a list with those of each node.
        B : array_like, or list of them, optional
            (directions, 2 * gates * hidden_size); zeros if not given.

        Raises
        ------
        ArgumentError
            A wrong number of layers, or a wrong shape.

        Notes
        -----
        ONNX's GRU agrees with cuDNN's where its attribute ``linear_before_reset`` is 1, which the weights do not tell.
        """
        return cls.from_arrays(handle, spec, rnn_formats.from_onnx(spec, W, R, B))

    @classmethod
    def from_keras(cls, handle: Handle, spec: RNNSpec, weights: Any) -> RNNWeights:
        """Make weights from what Keras's `LSTM`, `GRU`, `SimpleRNN` or `Bidirectional` layers return as `get_weights()`.

        Parameters
        ----------
        handle, spec
            As in `RNNWeights`.
        weights : list of arrays, or list of such lists
            (input, gates * hidden_size), (hidden_size, gates * hidden_size), and the bias: (gates * hidden_size,), for a GRU
            (2, gates * hidden_size).  Layer after layer; forward before backward.

        Raises
        ------
        ArgumentError
            A wrong number of arrays, a wrong shape, or a GRU with ``reset_after=False``, which cuDNN has not.
        """
        return cls.from_arrays(handle, spec, rnn_formats.from_keras(spec, weights))

    def close(self) -> None:
        """Give up the memory; it is freed when nobody else holds it.  Harmless when called again."""
        self.array.close()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<RNNWeights of {self.spec} on {self.array.device}>"


class _EmptyTensorDescriptor(NativeObject):
    """A tensor descriptor that cuDNN will describe."""

    _type = cudnnTensorDescriptor_t
    _create = TensorDescriptor._create
    _destroy = TensorDescriptor._destroy

    def __init__(self) -> None:
        super().__init__(None)


def _read_layout(handle: Handle, rnn: RNNDescriptor, spec: RNNSpec, base: int, nbytes: int) -> dict[str, WeightPlace]:
    """Ask cuDNN for the address of every matrix and bias, and check that each has the shape that its name promises."""
    places = {}
    with _EmptyTensorDescriptor() as matrix, _EmptyTensorDescriptor() as bias:
        for part in weight_parts(spec):
            matrix_at, bias_at = ctypes.c_void_p(), ctypes.c_void_p()
            handle.api.cudnnGetRNNWeightParams(
                handle.ptr, rnn.ptr, part.pseudo_layer, nbytes, base, part.linear_layer, matrix.ptr, matrix_at, bias.ptr,
                bias_at,
            )  # fmt: skip
            address, descriptor = (bias_at.value, bias) if part.bias else (matrix_at.value, matrix)
            if address is None:
                raise LibraryError(f"cuDNN has no {part.name} in {spec}")
            shape = TensorDescriptor.read(handle.api, descriptor.ptr).shape  # (1, rows, columns); a bias has one column
            if shape != (1, *part.shape, *(1,) * (2 - len(part.shape))):
                raise LibraryError(f"cuDNN gives {part.name} the shape {shape}, expected: {part.shape}")
            places[part.name] = WeightPlace(part.name, address - base, part.shape)
    return places
