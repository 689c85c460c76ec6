"""What the calls of an RNN return: outputs, gradients, and the reserve space between the two."""

from __future__ import annotations

from typing import Any, NamedTuple

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.operations.plan_by_hand import TrainingReserve
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.search.results import AlgorithmResult
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
    cy: DeviceArray | Any  # None but for an LSTM, whose users need not be asked


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
    cy: DeviceArray | Any  # None but for an LSTM, whose users need not be asked
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
    dcx: DeviceArray | Any


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


class RNNReserve(TrainingReserve[ForwardCall]):
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

    _passes = ("rnn_forward", "rnn_backward_data", "rnn_backward_weights")
