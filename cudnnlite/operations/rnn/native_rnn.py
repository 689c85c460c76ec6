"""`NativeRNN`: the descriptors of a network and its sequences, and the sizes of its memory."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any, NamedTuple

from cudnnlite._raw.enums import ForwardMode
from cudnnlite.descriptors import DropoutDescriptor, RNNDataDescriptor, RNNDescriptor
from cudnnlite.descriptors.rnn import RNNStateDescriptor
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNAlgo, RNNDataLayout, RNNMode
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError, WorkspaceLimitError
from cudnnlite.operations.layers.dropout import DropoutState
from cudnnlite.operations.rnn.sequences import data_spec
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.sizes import format_size
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.rnn_rules import why_not


class RNNPlanKey(NamedTuple):
    """The key of an RNN plan: plain values, so that equal keys find the same plan."""

    spec: RNNSpec
    # Algorithm and math type, without measurements.
    choice: AlgorithmResult
    batch: int
    layout: RNNDataLayout
    # Whether sequences may be shorter than the longest one.
    padded_io: bool
    training: bool
    # As `exact_key` has it: NaN and zeros are texts.
    padding_fill: float | str
    dropout_state: DropoutState | None
    workspace_limit: int | None
    # Whether a rule or a tuner made the choice, and not the caller.
    is_guess: bool
    # Whether calls are launched as CUDA graphs.
    replay: bool

    def computes_as(self, other: RNNPlanKey) -> bool:
        """Whether this key's plan can use a reserve space that the other key's plan filled."""
        return self == other or self._of_computation() == other._of_computation()

    def _of_computation(self) -> RNNPlanKey:
        return self._replace(is_guess=False, replay=False)


class NativeRNN:
    """The descriptors of a plan.

    Parameters
    ----------
    handle : Handle
        The handle that makes the calls.
    key : RNNPlanKey
        The key of the plan.
    stack : ExitStack
        The owner of the descriptors.

    Attributes
    ----------
    data : RNNDataSpec or None
        The sequences that the descriptors describe.
    hidden, cell, y : TensorSpec
        The specs of the states, and of the output for these sequences.
    workspace, reserve : int
        The bytes of workspace and reserve space for these sequences.
    """

    def __init__(self, handle: Handle, key: RNNPlanKey, stack: ExitStack) -> None:
        self.handle = handle
        self.key = key
        self._stack = stack
        spec = key.spec
        self.lstm = spec.cell == RNNMode.LSTM
        self.mode = ForwardMode.TRAINING if key.training else ForwardMode.INFERENCE
        self.hidden = hidden_spec(spec, key.batch)
        self.cell = cell_spec(spec, key.batch)
        self.data: RNNDataSpec | None = None
        self.x_desc: RNNDataDescriptor
        self.y_desc: RNNDataDescriptor
        self._has_data_descriptors = False
        self.y: TensorSpec
        self.workspace = 0
        self.reserve = 0
        self.rnn = self._describe_network()
        self.h_desc = stack.enter_context(RNNStateDescriptor(self.hidden)).ptr
        self.c_desc = None
        if self.lstm:
            self.c_desc = stack.enter_context(RNNStateDescriptor(self.cell)).ptr
        size = ctypes.c_size_t()
        handle.api.cudnnGetRNNWeightSpaceSize(handle.ptr, self.rnn.ptr, size)
        self.weight_bytes = size.value
        if key.choice.algorithm == RNNAlgo.PERSIST_DYNAMIC:
            # Without this call the forward call returns SUCCESS, and wrong results.
            handle.api.cudnnBuildRNNDynamic(handle.ptr, self.rnn.ptr, key.batch)

    def _describe_network(self) -> RNNDescriptor:
        key, state = self.key, self.key.dropout_state
        dropout = None
        if state is not None:
            dropout = self._stack.enter_context(
                DropoutDescriptor(self.handle, key.spec.dropout, state.array, state.seed)
            )
        return self._stack.enter_context(
            RNNDescriptor(
                key.spec.replace(math_type=key.choice.math_type),
                RNNAlgo(key.choice.algorithm),
                padded_io=key.padded_io,
                dropout=dropout,
                api=self.handle.api,
            )
        )

    def check_data(self, x: TensorSpec, lengths: Any) -> RNNDataSpec:
        """Return the sequences of `x` and `lengths`; ArgumentError if they do not fit the plan."""
        key = self.key
        data = data_spec(key.spec, x, lengths, key.layout)
        if data.batch != key.batch:
            raise ArgumentError(
                f"x={x} has {data.batch} sequences; the plan was made for {key.batch}"
            )
        if not (data.is_full or data.is_packed or key.padded_io):
            raise ArgumentError(
                f"lengths={data.lengths} differ; the plan was made for sequences of full length"
            )
        return data

    def describe_data(self, data: RNNDataSpec) -> None:
        """Describe sequences to cuDNN, and get the sizes of workspace and reserve space.

        WorkspaceLimitError if the workspace exceeds the limit.
        """
        handle, key = self.handle, self.key
        y = data.with_vectors(key.spec.output_size, float(key.padding_fill))
        # An error below must not leave sequences that the descriptors do not have.
        self.data = None
        if not self._has_data_descriptors:
            self.x_desc = self._stack.enter_context(RNNDataDescriptor(data))
            self.y_desc = self._stack.enter_context(RNNDataDescriptor(y))
            self._has_data_descriptors = True
        else:
            self.x_desc.set(data)
            self.y_desc.set(y)
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        handle.api.cudnnGetRNNTempSpaceSizes(
            handle.ptr, self.rnn.ptr, self.mode, self.x_desc.ptr, workspace, reserve
        )
        self.workspace = workspace.value
        self.reserve = reserve.value
        if self.exceeds_limit:
            assert key.workspace_limit is not None
            raise WorkspaceLimitError(
                f"{key.choice.algorithm} needs a workspace of {format_size(self.workspace)}; "
                f"the limit is {format_size(key.workspace_limit)}"
            )
        self.y = y.tensor()
        self.data = data

    @property
    def exceeds_limit(self) -> bool:
        """Whether the last described sequences need more workspace than the limit."""
        limit = self.key.workspace_limit
        return limit is not None and self.workspace > limit


def hidden_spec(spec: RNNSpec, batch: int) -> TensorSpec:
    """Return the spec of hx and hy."""
    return TensorSpec(spec.hidden_shape(batch), spec.dtype, "states")


def cell_spec(spec: RNNSpec, batch: int) -> TensorSpec:
    """Return the spec of cx and cy."""
    return TensorSpec(spec.cell_shape(batch), spec.dtype, "states")


def explain(error: CudnnError, key: RNNPlanKey, data: RNNDataSpec | None) -> None:
    """Add the network, the algorithm and the sequences to an error's message.

    To a refusal, add the reason too, because cuDNN does not return it.
    """
    error.involving(
        rnn=key.spec,
        algorithm=f"{key.choice.algorithm} with {key.choice.math_type} math",
    )
    if data is not None:
        error.involving(x=data)
    if not isinstance(error, NotSupportedError):
        return
    is_full = data is None or data.is_full
    is_backward = "Backward" in error.function
    algorithm = RNNAlgo(key.choice.algorithm)
    reason = why_not(key.spec, algorithm, full=is_full, backward=is_backward)
    if reason and reason != error.detail:
        error.notes += (reason,)
