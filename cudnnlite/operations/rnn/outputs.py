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
        The last hidden state of every layer and direction, (num_layers * directions, batch,
        state_size): layer0.forward, layer0.backward, layer1.forward, ...
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
    """The operands of a training call, and what it wrote: the backward passes need them again."""

    key: Any  # the RNNPlanKey
    data: RNNDataSpec
    weights: RNNWeights
    x: DeviceArray
    hx: DeviceArray | None
    cx: DeviceArray | None
    y: DeviceArray


class RNNReserve(TrainingReserve[ForwardCall]):
    """The reserve space of one training call, and all that the backward passes need again.

    It keeps the operands of the forward call alive; none of them may be overwritten before the
    backward passes are done. Passed to another training call as `reserve`, its memory is used
    again.

    Attributes
    ----------
    array : DeviceArray
        The reserve space: bytes, opaque.
    nbytes : int
        Its size.
    """

    _passes = ("rnn_forward", "rnn_backward_data", "rnn_backward_weights")


def written_of(out: Any, count: int) -> Any:
    """Return `out` as the arrays that are written, of which there are so many.

    It may be what an earlier call returned.
    """
    if isinstance(out, RNNTrainingOutput):
        out = tuple(out)[:3]  # its reserve space is an argument of its own
    is_triple = isinstance(out, (tuple, list)) and len(out) == 3
    if is_triple and count == 2 and out[2] is None:
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
    """Return the outputs for no sequences, without a call: cuDNN has none for that.

    None where x is no such input.
    """
    if not _has_no_sequences(spec, x, layout):
        return None
    if lengths is not None and len(integers(lengths, "lengths", 1)):
        raise ArgumentError(f"lengths={shown(lengths)} has entries for a batch of 0")
    specs = _empty_specs(spec, x, layout)
    names = tuple(specs)
    states = [("hx", hx, specs["hy"]), ("cx", cx, specs.get("cy"))]
    for argument, state, expected in states:
        if state is not None:
            _empty_operand(handle, state, argument, expected)
    out = written_of(out, len(specs))
    if out is None:
        outputs = [arrays.empty(handle.device, handle.stream, spec) for spec in specs.values()]
    else:
        outputs = [
            _empty_operand(handle, array, f"out[{name!r}]", specs[name])
            for name, array in zip(names, all_of(out, names), strict=True)
        ]
    cy = outputs[2] if len(outputs) == 3 else None
    return RNNOutput(outputs[0], outputs[1], cy)


def _has_no_sequences(spec: RNNSpec, x: TensorSpec, layout: RNNDataLayout) -> bool:
    """Whether an input has steps, and a batch of 0."""
    if x.rank != 3 or layout == RNNDataLayout.SEQ_MAJOR_PACKED:
        return False
    steps_axis = 1 if layout == RNNDataLayout.BATCH_MAJOR_UNPACKED else 0
    has_vectors = x.shape[2] == spec.input_size and x.dtype == spec.dtype
    return has_vectors and x.shape[steps_axis] != 0


def _empty_specs(spec: RNNSpec, x: TensorSpec, layout: RNNDataLayout) -> dict[str, TensorSpec]:
    """Return the specs of the outputs for a batch of 0, by name."""
    y_layout = "sequence_major"
    if layout == RNNDataLayout.BATCH_MAJOR_UNPACKED:
        y_layout = "batch_major"
    states = spec.num_layers * spec.directions
    specs = {
        "y": TensorSpec((*x.shape[:2], spec.output_size), spec.dtype, y_layout),
        "hy": TensorSpec((states, 0, spec.state_size), spec.dtype, "states"),
    }
    if spec.cell == RNNMode.LSTM:
        specs["cy"] = TensorSpec((states, 0, spec.hidden_size), spec.dtype, "states")
    return specs


def _empty_operand(
    handle: Handle, array: Any, argument: str, expected: TensorSpec | None
) -> DeviceArray:
    operand = on_device(handle, array, argument)
    if expected is None:
        raise ArgumentError(f"{argument} is {operand.spec}; needed: none but for an LSTM")
    if (operand.shape, operand.spec.dtype) != (expected.shape, expected.dtype):
        raise ArgumentError(
            f"{argument} is {called(operand.spec, expected.layout)}; needed: {expected}"
        )
    return operand
