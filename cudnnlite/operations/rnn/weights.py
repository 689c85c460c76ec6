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
from cudnnlite.plans.host_arrays import HasStateDict
from cudnnlite.plans.named_weights import EmptyTensorDescriptor, NamedWeights
from cudnnlite.specs import RNNSpec, TensorSpec
from cudnnlite.specs.rnn_weights import WeightPart, weight_parts

Array = np.ndarray[Any, Any]


class RNNWeights(NamedWeights):
    """The weights of an RNN: one buffer, zero at first, with views of its parts by name.

    The names are ``layer0.forward.input.i``, ``layer0.forward.recurrent.i``, the same two with
    ``.bias`` appended, and ``layer0.forward.projection``; a bidirectional network also has
    ``layer0.backward...``.  The gates of an LSTM are i, f, g, o, those of a GRU are r, z, n, and
    that of a plain network is h.  ``weights[name] = values`` writes a view; ``weights[name]``
    returns a DeviceArray that shares the memory.

    Parameters
    ----------
    handle : Handle
        The weights are in the memory of the handle's device.
    spec : RNNSpec
        The network; the weights have its dtype.

    Attributes
    ----------
    spec : RNNSpec
        The network.  The weights also fit networks that differ from it in math type, compute type,
        clipping or dropout.
    kind : RNNSpec
        The spec without the fields that weights do not depend on.  Weights of the same kind fit the
        same networks.
    array : DeviceArray
        The whole buffer, in a layout of cuDNN's own.

    Raises
    ------
    ArgumentError, NotSupportedError
        cuDNN does not support the network.
    DeviceMemoryError
        There is not enough device memory.

    Notes
    -----
    C functions: `cudnnGetRNNWeightSpaceSize`, and `cudnnGetRNNWeightParams`, which returns the
    address of each matrix.

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
        instance_of(handle, Handle, "handle", "; it comes first: RNNWeights(handle, spec)")._use()
        instance_of(spec, RNNSpec, "spec")
        with RNNDescriptor(spec, api=handle.api) as descriptor:
            size = ctypes.c_size_t()
            handle.api.cudnnGetRNNWeightSpaceSize(handle.ptr, descriptor.ptr, size)
            super().__init__(handle, spec, spec.weights_of(), size.value)
            self._places = _read_layout(handle, descriptor, spec, self.array.ptr, size.value)

    @classmethod
    def from_torch(
        cls,
        handle: Handle,
        spec: RNNSpec,
        state_dict: Mapping[str, Any] | HasStateDict,
        *,
        prefix: str = "",
    ) -> RNNWeights:
        """Make weights from the `state_dict()` of a `torch.nn.LSTM`, `GRU` or `RNN`.

        Parameters
        ----------
        handle, spec
            As in `RNNWeights`.
        state_dict : mapping of str to tensor, or module
            PyTorch tensors, on any device, or NumPy arrays; or the module that has them.
        prefix : str
            The prefix of the names in a larger model, for instance "encoder.lstm.".  Names without
            the prefix are ignored.

        Raises
        ------
        ArgumentError
            A tensor is missing, unknown, or has the wrong shape; or a bias that the spec does not
            have is not zero.
        """
        return cls.from_arrays(handle, spec, rnn_formats.from_torch(spec, state_dict, prefix))

    def to_torch(self) -> dict[str, Array]:
        """Return a state_dict for a `torch.nn.LSTM`, `GRU` or `RNN`, as NumPy arrays.

        The call waits for the copy from the device.  PyTorch has two biases or none; if the spec
        has one, the other is zeros.
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
            hidden_size); for several layers, lists with an array of each node.
        B : array_like, or list of them, optional
            (directions, 2 * gates * hidden_size); zeros if not given.

        Raises
        ------
        ArgumentError
            A wrong number of layers, or a wrong shape.

        Notes
        -----
        ONNX's GRU agrees with cuDNN's only if its attribute ``linear_before_reset`` is 1.  This
        cannot be checked, because the weights do not say it.
        """
        return cls.from_arrays(handle, spec, rnn_formats.from_onnx(spec, W, R, B))

    @classmethod
    def from_keras(cls, handle: Handle, spec: RNNSpec, weights: Any) -> RNNWeights:
        """Make weights from the arrays that `get_weights()` of Keras layers returns.

        The layers are `LSTM`, `GRU`, `SimpleRNN` or `Bidirectional`.

        Parameters
        ----------
        handle, spec
            As in `RNNWeights`.
        weights : list of arrays, or list of such lists
            For each layer, and forward before backward: (input, gates * hidden_size), (hidden_size,
            gates * hidden_size), and the bias, (gates * hidden_size,) or, for a GRU, (2, gates *
            hidden_size).

        Raises
        ------
        ArgumentError
            A wrong number of arrays, a wrong shape, or a GRU with ``reset_after=False``, which
            cuDNN does not have.
        """
        return cls.from_arrays(handle, spec, rnn_formats.from_keras(spec, weights))


def _read_layout(
    handle: Handle, rnn: RNNDescriptor, spec: RNNSpec, base: int, nbytes: int
) -> dict[str, tuple[int, TensorSpec]]:
    """Return the offset and spec of each matrix and bias, as cuDNN has them."""
    places: dict[str, tuple[int, TensorSpec]] = {}
    # A deep network has many parts, but of few shapes, which share a spec.
    specs: dict[tuple[int, ...], TensorSpec] = {}
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
