"""What the calls of an RNN return: outputs, gradients, and the reserve space between the two."""

from __future__ import annotations

from typing import Any, NamedTuple

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.errors import ArgumentError, ClosedError
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.search.results import AlgorithmResult
from cudnnlite.sizes import format_size
from cudnnlite.specs import RNNDataSpec, RNNSpec


class RNNOutput(NamedTuple):
    """What a forward call returns.

    Attributes
    ----------
    y : DeviceArray
        The last layer's output at every step, laid out as x; vectors of `RNNSpec.output_size`.
    hy : DeviceArray
        The last hidden state of every layer and direction, (num_layers * directions, batch, state_size): layer0.forward,
        layer0.backward, layer1.forward, ...
    cy : DeviceArray or None
        LSTM only: the last cell states, (num_layers * directions, batch, hidden_size).
    """

    y: DeviceArray
    hy: DeviceArray
    cy: DeviceArray | None


class RNNTrainingOutput(NamedTuple):
    """What a forward call in training returns: `RNNOutput` and the reserve space.

    Attributes
    ----------
    y, hy, cy
        As in `RNNOutput`.
    reserve : RNNReserve
        What the backward passes need.
    """

    y: DeviceArray
    hy: DeviceArray
    cy: DeviceArray | None
    reserve: RNNReserve


class RNNGradients(NamedTuple):
    """What the backward pass over the data returns.

    Attributes
    ----------
    dx : DeviceArray
        Laid out as x; 0 beyond a sequence's end.
    dhx : DeviceArray
        Shaped as hx.
    dcx : DeviceArray or None
        LSTM only; shaped as cx.
    """

    dx: DeviceArray
    dhx: DeviceArray
    dcx: DeviceArray | None


class ForwardCall(NamedTuple):
    """What a training call was given, and what it wrote: the backward passes need it again."""

    plan: Any
    spec: RNNSpec
    data: RNNDataSpec
    choice: AlgorithmResult
    weights: RNNWeights
    x: DeviceArray
    hx: DeviceArray | None
    cx: DeviceArray | None
    y: DeviceArray


class RNNReserve:
    """The reserve space of one training call, and all that the backward passes must be given again.

    It keeps the operands of the forward call alive; none of them may be overwritten before the backward passes are done.
    Passed to another training call as `reserve`, its memory is used again.

    Attributes
    ----------
    array : DeviceArray
        The reserve space: bytes, opaque.
    nbytes : int
        Its size.
    """

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self._call: ForwardCall | None = None
        self._has_gradients = False

    @property
    def nbytes(self) -> int:
        """The size of the reserve space in bytes."""
        return self.array.nbytes

    @property
    def call(self) -> ForwardCall:
        """The forward call that filled it."""
        if self._call is None:
            raise ClosedError("this RNNReserve holds no forward call: that failed, or the reserve was closed")
        return self._call

    def begin(self) -> None:
        """Note that a plan's call is about to write here: one that fails leaves nothing to go on from."""
        self._call = None

    def finish(self, call: ForwardCall, *, has_gradients: bool = False) -> None:
        """Note the forward call that this is of, and whether the backward pass over the data was here since."""
        self._call, self._has_gradients = call, has_gradients

    def recall(self, *, has_gradients: bool) -> ForwardCall:
        """Return the forward call, for the one backward pass or the other; ArgumentError if it is not that one's turn."""
        call = self.call
        if self._has_gradients and not has_gradients:
            raise ArgumentError("reserve was overwritten by a backward pass over the data; run the forward pass again")
        if has_gradients and not self._has_gradients:
            raise ArgumentError("reserve has no gradients yet: rnn_backward_data comes before rnn_backward_weights")
        return call

    def close(self) -> None:
        """Give up the memory and the operands; harmless when called again."""
        self._call = None
        self.array.close()

    def __repr__(self) -> str:
        return f"<RNNReserve of {format_size(self.nbytes)}>"
