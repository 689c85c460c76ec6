"""`RNNWeights`: all matrices and biases of an RNN in one device buffer, reachable by name."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cudnnlite.arguments import instance_of
from cudnnlite.descriptors import RNNDescriptor
from cudnnlite.descriptors.native import c_ints
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import LibraryError
from cudnnlite.operations.rnn import formats as rnn_formats
from cudnnlite.plans.named_weights import EmptyTensorDescriptor, NamedWeights
from cudnnlite.specs import RNNSpec, TensorSpec
from cudnnlite.specs.rnn_weights import WeightPart, weight_parts

Array = np.ndarray[Any, Any]


class RNNWeights(NamedWeights):
    """The weights of an RNN: one buffer, zero at first, with views of its parts by name.

    Names are ``layer0.forward.input.i``, ``layer0.forward.recurrent.i`` and the same with
    ``.bias``; ``layer0.backward...`` if bidirectional; ``layer0.forward.projection``.  Gates are i,
    f, g, o of an LSTM, r, z, n of a GRU, h of a plain network.  A view is written by
    ``weights[name] = values``; reading ``weights[name]`` gives a DeviceArray that shares the
    memory.

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
        The spec without what weights do not depend on: two weights of one kind are for the same
        networks.
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
    C functions: `cudnnGetRNNWeightSpaceSize`, `cudnnGetRNNWeightParams`, which alone says where a
    matrix lies.

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
        instance_of(spec, RNNSpec, "spec")
        with RNNDescriptor(spec, api=handle.api) as descriptor:
            size = ctypes.c_size_t()
            handle.api.cudnnGetRNNWeightSpaceSize(handle.ptr, descriptor.ptr, size)
            super().__init__(handle, spec, spec.weights_of(), size.value)
            self._places = _read_layout(handle, descriptor, spec, self.array.ptr, size.value)

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
            What the names begin with in a larger model: "encoder.lstm.".  Other names are left
            alone then.

        Raises
        ------
        ArgumentError
            A tensor is missing, not known, or has the wrong shape; a bias is not zero that the spec
            has not got.
        """
        return cls.from_arrays(handle, spec, rnn_formats.from_torch(spec, state_dict, prefix))

    def to_torch(self) -> dict[str, Array]:
        """Return a state_dict for a `torch.nn.LSTM`, `GRU` or `RNN`, as NumPy arrays.

        Waits for the copy.  With a single bias, the other one is zeros: PyTorch always has two, or
        none.
        """
        return rnn_formats.to_torch(self.spec, self.numpy())

    @classmethod
    def from_onnx(
        cls,
        handle: Handle,
        spec: RNNSpec,
        W: ArrayLike | Sequence[ArrayLike],
        R: ArrayLike | Sequence[ArrayLike],
        B: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> RNNWeights:
        """Make weights from the inputs of ONNX nodes LSTM, GRU or RNN.

        Parameters
        ----------
        handle, spec
            As in `RNNWeights`.
        W, R : array_like, or list of them
            (directions, gates * hidden_size, input) and (directions, gates * hidden_size,
            hidden_size); with several layers, a list with those of each node.
        B : array_like, or list of them, optional
            (directions, 2 * gates * hidden_size); zeros if not given.

        Raises
        ------
        ArgumentError
            A wrong number of layers, or a wrong shape.

        Notes
        -----
        ONNX's GRU agrees with cuDNN's where its attribute ``linear_before_reset`` is 1, which the
        weights do not tell.
        """
        return cls.from_arrays(handle, spec, rnn_formats.from_onnx(spec, W, R, B))

    @classmethod
    def from_keras(cls, handle: Handle, spec: RNNSpec, weights: Any) -> RNNWeights:
        """Make weights from what `get_weights()` of Keras layers returns.

        They are `LSTM`, `GRU`, `SimpleRNN` or `Bidirectional` layers.

        Parameters
        ----------
        handle, spec
            As in `RNNWeights`.
        weights : list of arrays, or list of such lists
            (input, gates * hidden_size), (hidden_size, gates * hidden_size), and the bias: (gates *
            hidden_size,), for a GRU (2, gates * hidden_size).  Layer after layer; forward before
            backward.

        Raises
        ------
        ArgumentError
            A wrong number of arrays, a wrong shape, or a GRU with ``reset_after=False``, which
            cuDNN has not.
        """
        return cls.from_arrays(handle, spec, rnn_formats.from_keras(spec, weights))


def _read_layout(
    handle: Handle, rnn: RNNDescriptor, spec: RNNSpec, base: int, nbytes: int
) -> dict[str, tuple[int, TensorSpec]]:
    """Ask cuDNN for the place of every matrix and bias, and check their shapes."""
    places: dict[str, tuple[int, TensorSpec]] = {}
    specs: dict[tuple[int, ...], TensorSpec] = {}  # a deep network has many parts of few shapes
    pair: tuple[int, int] | None = None
    matrix_address, bias_address = ctypes.c_void_p(), ctypes.c_void_p()
    with EmptyTensorDescriptor() as matrix, EmptyTensorDescriptor() as bias:
        for part in weight_parts(spec):
            if pair != (part.pseudo_layer, part.linear_layer):
                # One call returns a matrix and its bias.
                pair = part.pseudo_layer, part.linear_layer
                matrix_address, bias_address = ctypes.c_void_p(), ctypes.c_void_p()
                handle.api.cudnnGetRNNWeightParams(
                    handle.ptr,
                    rnn.ptr,
                    part.pseudo_layer,
                    nbytes,
                    base,
                    part.linear_layer,
                    matrix.ptr,
                    matrix_address,
                    bias.ptr,
                    bias_address,
                )
            address, descriptor = matrix_address.value, matrix
            if part.bias:
                address, descriptor = bias_address.value, bias
            if address is None:
                raise LibraryError(f"cuDNN has no {part.name} in {spec}")
            _check_shape(handle, descriptor, part)
            if part.shape not in specs:
                specs[part.shape] = TensorSpec(part.shape, spec.dtype)
            places[part.name] = address - base, specs[part.shape]
    return places


def _check_shape(handle: Handle, descriptor: EmptyTensorDescriptor, part: WeightPart) -> None:
    """Check that cuDNN describes a part as (1, rows, columns); a bias has one column."""
    dtype, rank = ctypes.c_int(), ctypes.c_int()
    dims, strides = c_ints((0, 0, 0)), c_ints((0, 0, 0))
    handle.api.cudnnGetTensorNdDescriptor(descriptor.ptr, 3, dtype, rank, dims, strides)
    shape = tuple(dims[: rank.value])
    rows_and_columns = (*part.shape, 1)[:2]
    if shape != (1, *rows_and_columns):
        raise LibraryError(f"cuDNN gives {part.name} the shape {shape}, expected: {part.shape}")
