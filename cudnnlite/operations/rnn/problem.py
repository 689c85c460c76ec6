"""`RNNProblem`: a network and its sequences, their descriptors, and the sizes that cuDNN wants for them."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, NamedTuple

from cudnnlite._raw.enums import ForwardMode
from cudnnlite.arguments import instance_of, one_of
from cudnnlite.descriptors import DropoutDescriptor, RNNDataDescriptor, RNNDescriptor
from cudnnlite.descriptors.rnn import RNNStateDescriptor
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import RNNAlgo, RNNDataLayout, RNNMode
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError, WorkspaceLimitError
from cudnnlite.operations.layers.dropout import DropoutState, check_states
from cudnnlite.operations.rnn.choice import heuristic, parse_algorithm
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.sizes import format_size
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.rnn_data import AXES, parse_fill
from cudnnlite.specs.rnn_rules import why_not
from cudnnlite.specs.tensor import called


class RNNRequest(NamedTuple):
    """What an RNN plan is made for: plain values, so that equal requests find the same plan."""

    spec: RNNSpec
    choice: AlgorithmResult
    batch: int
    layout: RNNDataLayout
    padded: bool
    training: bool
    padding_fill: float
    dropout_state: DropoutState | None
    workspace_limit: int | None
    guessed: bool  # whether the heuristic made the choice


class RNNProblem:
    """The descriptors of a request; `stack` owns them."""

    def __init__(self, handle: Handle, request: RNNRequest, stack: ExitStack) -> None:
        self.handle, self.request = handle, request
        spec, batch, own = request.spec, request.batch, stack.enter_context
        self.lstm = spec.cell == RNNMode.LSTM
        self.mode = ForwardMode.TRAINING if request.training else ForwardMode.INFERENCE
        self.hidden = TensorSpec(spec.hidden_shape(batch), spec.dtype, "states")
        self.cell = TensorSpec(spec.cell_shape(batch), spec.dtype, "states")
        self.data: RNNDataSpec | None = None
        self.x_desc: RNNDataDescriptor
        self.y_desc: RNNDataDescriptor
        self._has_descriptors = False
        self.y: TensorSpec
        self.workspace = self.reserve = 0
        state = request.dropout_state
        dropout = (
            None
            if state is None
            else own(DropoutDescriptor(handle, spec.dropout, state.array, state.seed))
        )
        chosen = spec.replace(math_type=request.choice.math_type)
        algorithm = RNNAlgo(request.choice.algorithm)
        self.rnn = own(
            RNNDescriptor(
                chosen, algorithm, padded_io=request.padded, dropout=dropout, api=handle.api
            )
        )
        self.h_desc = own(RNNStateDescriptor(self.hidden)).ptr
        self.c_desc = own(RNNStateDescriptor(self.cell)).ptr if self.lstm else None
        self._stack = stack
        size = ctypes.c_size_t()
        handle.api.cudnnGetRNNWeightSpaceSize(handle.ptr, self.rnn.ptr, size)
        self.weight_bytes = size.value
        if algorithm == RNNAlgo.PERSIST_DYNAMIC:
            # without this the calls return SUCCESS and garbage
            handle.api.cudnnBuildRNNDynamic(handle.ptr, self.rnn.ptr, batch)

    def check_data(self, x: TensorSpec, lengths: Any) -> RNNDataSpec:
        """Return what `x` and `lengths` describe; ArgumentError where the request was for something else."""
        request = self.request
        data = data_spec(request.spec, x, lengths, request.layout)
        if data.batch != request.batch:
            raise ArgumentError(
                f"x={x} has {data.batch} sequences; the plan was made for {request.batch}"
            )
        if not (data.is_full or data.is_packed or request.padded):
            raise ArgumentError(
                f"lengths={data.lengths} differ; the plan was made for sequences of full length"
            )
        return data

    def tell_data(self, data: RNNDataSpec) -> None:
        """Describe the sequences to cuDNN, and ask for the sizes; WorkspaceLimitError if they are more than allowed."""
        handle, request, own = self.handle, self.request, self._stack.enter_context
        y = data.with_vectors(request.spec.output_size, request.padding_fill)
        self.data = None  # until all of it is done
        if not self._has_descriptors:
            self.x_desc, self.y_desc = own(RNNDataDescriptor(data)), own(RNNDataDescriptor(y))
            self._has_descriptors = True
        else:
            self.x_desc.set(data)
            self.y_desc.set(y)
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        handle.api.cudnnGetRNNTempSpaceSizes(
            handle.ptr, self.rnn.ptr, self.mode, self.x_desc.ptr, workspace, reserve
        )
        self.workspace, self.reserve = workspace.value, reserve.value
        limit = request.workspace_limit
        if limit is not None and workspace.value > limit:
            raise WorkspaceLimitError(
                f"{request.choice.algorithm} needs a workspace of {format_size(workspace.value)}; the limit is "
                f"{format_size(limit)}"
            )
        self.y, self.data = y.tensor(), data


def explain(error: CudnnError, request: RNNRequest, data: RNNDataSpec | None) -> None:
    """Add the request to an error's message; to a refusal also the reason, which cuDNN keeps to itself."""
    error.involving(
        rnn=request.spec,
        algorithm=f"{request.choice.algorithm} with {request.choice.math_type} math",
    )
    if data is not None:
        error.involving(x=data)
    if isinstance(error, NotSupportedError):
        full = data is None or data.is_full
        backward = "Backward" in error.function
        reason = why_not(
            request.spec, RNNAlgo(request.choice.algorithm), full=full, backward=backward
        )
        error.notes += (reason,) if reason and reason != error.detail else ()


def data_spec(spec: RNNSpec, x: TensorSpec, lengths: Any, layout: RNNDataLayout) -> RNNDataSpec:
    """Return what an input's spec and lengths describe; ArgumentError if it is no input of that network, or has gaps."""
    instance_of(x, TensorSpec, "x")
    return _full_data(spec, x, layout) if lengths is None else _data(spec, x, lengths, layout)


def _data(spec: RNNSpec, x: TensorSpec, lengths: Any, layout: RNNDataLayout) -> RNNDataSpec:
    rank = 2 if layout == RNNDataLayout.SEQ_MAJOR_PACKED else 3
    if x.rank != rank or x.size == 0:
        zero = ", none of them 0 (rnn_forward alone takes N = 0, in inference, not packed; else leave the call out)"
        zero *= x.rank == rank
        raise ArgumentError(
            f"x has shape {x.shape}; allowed in this layout: {AXES[layout].format(spec.input_size)}{zero}"
        )
    if x.dtype != spec.dtype or x.shape[-1] != spec.input_size:
        own = called(
            x, "batch_major" if layout == RNNDataLayout.BATCH_MAJOR_UNPACKED else "sequence_major"
        )
        dtype = dtype_name(spec.dtype)
        hint = f"; handle.array(x, dtype={dtype!r}) converts" * (x.dtype != spec.dtype)
        raise ArgumentError(f"x is {own}; {spec} wants vectors of {spec.input_size}, {dtype}{hint}")
    if not x.fits("NCW" if rank == 3 else "packed"):
        raise ArgumentError(
            f"x is {x}: it must be packed in C order (for (N, T, vector) there is layout='batch_major')"
        )
    return RNNDataSpec(x.shape, lengths, x.dtype, layout)


@lru_cache(maxsize=64)  # each call asks, and it takes 20 us of the host's time
def _full_data(spec: RNNSpec, x: TensorSpec, layout: RNNDataLayout) -> RNNDataSpec:
    return _data(spec, x, None, layout)


def make_request(
    handle: Handle,
    spec: RNNSpec,
    data: RNNDataSpec,
    training: Any,
    algorithm: Any,
    padding_fill: float,
    dropout_state: Any,
    workspace_limit: int | None,
    padded: bool = False,
) -> RNNRequest:
    """Return what a plan is made for, from arguments as the user gives them."""
    one_of(training, "training", True, False)
    drops = training and spec.dropout > 0 and spec.num_layers > 1
    if drops and dropout_state is None:
        raise ArgumentError(
            f"dropout_state=None; {spec} drops {spec.dropout:g}: training needs a DropoutState(handle, seed)"
        )
    if drops:
        check_states(handle, dropout_state)
    elif dropout_state is not None:  # which nobody reads
        instance_of(
            dropout_state, DropoutState, "dropout_state", ": dnn.DropoutState(handle, seed)"
        )
    asked = parse_algorithm(algorithm, spec, data.batch)
    found = heuristic(spec, data, full=data.is_full and not padded) if asked is None else asked
    choice = AlgorithmResult(
        found.algorithm, found.math_type, deterministic=None, replay=found.replay
    )
    padded_io, state = (
        data.needs_padded_io or (padded and not data.is_packed),
        dropout_state if drops else None,
    )
    fill, guessed = parse_fill(padding_fill, spec.dtype), asked is None
    return RNNRequest(
        spec,
        choice,
        data.batch,
        data.layout,
        padded_io,
        training,
        fill,
        state,
        workspace_limit,
        guessed,
    )
