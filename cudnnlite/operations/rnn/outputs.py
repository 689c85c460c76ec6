"""The results of the calls of an RNN: outputs, gradients, and the reserve space."""

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
    """The results of a forward call.

    Attributes
    ----------
    y : DeviceArray
        The last layer's output at every step, laid out as x but with vectors of
        `RNNSpec.output_size`.
    hy : DeviceArray
        The last hidden states, (num_layers * directions, batch, state_size), in the order
        layer0.forward, layer0.backward, layer1.forward, ...
    cy : DeviceArray or None
        LSTM only: the last cell states, (num_layers * directions, batch, hidden_size).
    """

    y: DeviceArray
    hy: DeviceArray
    # None unless the network is an LSTM.  The type is Any, so that users of an LSTM need no check.
    cy: DeviceArray | Any


class RNNTrainingOutput(NamedTuple):
    """The results of a forward call in training: `RNNOutput` and the reserve space.

    Attributes
    ----------
    y, hy, cy
        As in `RNNOutput`.
    reserve : RNNReserve
        The reserve space, for the backward passes.
    """

    y: DeviceArray
    hy: DeviceArray
    # None unless the network is an LSTM.  The type is Any, so that users of an LSTM need no check.
    cy: DeviceArray | Any
    reserve: RNNReserve


class RNNGradients(NamedTuple):
    """The results of the backward pass over the data.

    Attributes
    ----------
    dx : DeviceArray
        The gradient of x, laid out as x; 0 beyond a sequence's end.
    dhx : DeviceArray
        The gradient of hx.
    dcx : DeviceArray or None
        LSTM only: the gradient of cx.
    """

    dx: DeviceArray
    dhx: DeviceArray
    dcx: DeviceArray | Any


class ForwardCall(NamedTuple):
    """The operands and the output of a training call, which the backward passes need again."""

    # An RNNPlanKey.
    key: Any
    data: RNNDataSpec
    weights: RNNWeights
    x: DeviceArray
    hx: DeviceArray | None
    cx: DeviceArray | None
    y: DeviceArray


class RNNReserve(TrainingReserve[ForwardCall]):
    """The reserve space of one training call, with the operands that the backward passes need.

    It keeps the operands of the forward call alive.  They must not be overwritten before the
    backward passes are done.  A later training call that has it as `reserve` uses its memory again.

    Attributes
    ----------
    array : DeviceArray
        The bytes of the reserve space, in a format of cuDNN's own.
    nbytes : int
        Its size.
    """

    _passes = ("rnn_forward", "rnn_backward_data", "rnn_backward_weights")


def output_arrays(out: Any, count: int) -> Any:
    """Return the arrays of an `out` argument, of a call that writes `count` arrays.

    `out` may be the result of an earlier call.
    """
    if isinstance(out, RNNTrainingOutput):
        # Its reserve space is passed as another argument.
        out = tuple(out)[:3]
    is_triple = isinstance(out, (tuple, list)) and len(out) == 3
    if is_triple and count == 2 and out[2] is None:
        # It is an RNNOutput of a network without cell states.
        out = out[:2]
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
    """Return the outputs for a batch of 0, without a call of cuDNN, which takes no such batch.

    None if `x` has sequences, or is no input of the network.
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
    out = output_arrays(out, len(specs))
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
    """Whether an input has steps and a batch of 0."""
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
