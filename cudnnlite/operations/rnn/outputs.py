"""What the calls of an RNN return: outputs, gradients, and the reserve space between the two."""

from __future__ import annotations

from typing import Any, NamedTuple

from cudnnlite.arguments import integers, shown
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNDataLayout, RNNMode
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.operands import on_device
from cudnnlite.plans.stateful_plan import TrainingReserve
from cudnnlite.problems.operation import all_of
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.tensor import called


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
    data: RNNDataSpec
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


def written_of(out: Any, count: int) -> Any:
    """Return what an earlier call returned, given as `out`, as the arrays that are written, of which there are so many."""
    if isinstance(out, RNNTrainingOutput):
        out = tuple(out)[:3]  # its reserve space is an argument of its own
    if isinstance(out, (tuple, list)) and len(out) == 3 and count == 2 and out[2] is None:
        out = out[:2]  # an RNNOutput of a network without cell states
    return out


def without_sequences(
    handle: Handle,
    spec: RNNSpec,
    x: TensorSpec,
    lengths: Any,
    layout: RNNDataLayout,
    hx: Any,
    cx: Any,
    out: Any,
) -> RNNOutput | None:
    """Return the outputs for no sequences, without a call: cuDNN has none for that; None where x is no such input."""
    steps = {RNNDataLayout.SEQ_MAJOR_UNPACKED: 0, RNNDataLayout.BATCH_MAJOR_UNPACKED: 1}.get(layout)
    if (
        x.rank != 3
        or steps is None
        or x.shape[steps] == 0
        or x.shape[2] != spec.input_size
        or x.dtype != spec.dtype
    ):
        return None
    if lengths is not None and len(integers(lengths, "lengths", 1)):
        raise ArgumentError(f"lengths={shown(lengths)} has entries for a batch of 0")
    states = spec.num_layers * spec.directions
    shapes = {"y": (*x.shape[:2], spec.output_size), "hy": (states, 0, spec.state_size)}
    if spec.cell == RNNMode.LSTM:
        shapes["cy"] = states, 0, spec.hidden_size
    out = written_of(out, len(shapes))
    all_of(out, tuple(shapes))
    lies = {"y": "batch_major" if steps else "sequence_major"}
    specs = {
        name: TensorSpec(shape, spec.dtype, lies.get(name, "states"))
        for name, shape in shapes.items()
    }
    given = [
        (f"out[{name!r}]", array, name)
        for name, array in zip(specs, out or (), strict=out is not None)
    ]
    given += [
        (name, array, there)
        for name, array, there in (("hx", hx, "hy"), ("cx", cx, "cy"))
        if array is not None
    ]
    arrays_given = {
        argument: (on_device(handle, array, argument), specs.get(name))
        for argument, array, name in given
    }
    for argument, (array, wanted) in arrays_given.items():
        if wanted is None or (array.shape, array.spec.dtype) != (wanted.shape, wanted.dtype):
            own = array.spec if wanted is None else called(array.spec, wanted.layout)
            raise ArgumentError(f"{argument} is {own}; needed: {wanted or 'none but for an LSTM'}")
    written = [array for argument, (array, _) in arrays_given.items() if argument.startswith("out")]
    y, hy, *cy = written or [
        arrays.empty(handle.device, handle.stream, each) for each in specs.values()
    ]
    return RNNOutput(y, hy, cy[0] if cy else None)
