"""Emulated recurrent networks: the sizes of their spaces, forward, backward.

Stricter than hardware, which computes garbage instead: PERSIST_DYNAMIC must have been built for the batch, and backward
passes want the reserve space and the operands of the training forward pass that they belong to.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from cudnnlite._raw.enums import ForwardMode, WgradMode
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.descriptors.rnn import RNNDataDescriptor, read_rnn
from cudnnlite.dtypes import dtype_name, numpy_dtype
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.dropout import find_dropout
from cudnnlite.emulated.memory import POISON_FREED, Bytes
from cudnnlite.emulated.precision import round_tf32, to_output
from cudnnlite.emulated.registry import RefusalError, Work, emulates
from cudnnlite.emulated.rnn_layout import (
    Cells,
    active_steps,
    compute_dtype,
    empty_cells,
    flattened,
    read_steps,
    reserve_places,
    weight_layout,
    weight_views,
    write_steps,
)
from cudnnlite.emulated.spaces import Reserve, Spaces, bad, checksum
from cudnnlite.emulated.support import tf32_is_forbidden
from cudnnlite.enums import DataType, MathType, RNNAlgo, RNNMode, Status
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.operations.rnn import equations as rnn_equations
from cudnnlite.operations.rnn.equations import Network, network_shape
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.rnn_rules import why_not

Array = NDArray[Any]

# What cudnnBuildRNNDynamic was called for: the batch and the network, by the descriptor's address.
_builds: WeakKeyDictionary[EmulatedApi, dict[int, tuple[int, RNNSpec]]] = WeakKeyDictionary()


def _workspace_bytes(spec: RNNSpec, x: RNNDataSpec) -> int:
    """Return a size that is never 0 and differs between problems: NumPy needs no workspace, but callers must give it."""
    return 512 + 16 * x.batch * spec.hidden_size


def _rounding(spec: RNNSpec) -> Callable[[Array], Array] | None:
    """Return how the operands of products are rounded (for TF32: as an H200's errors of 4e-4 tell)."""
    if spec.dtype != DataType.FLOAT or spec.math_type == MathType.FMA:
        return None
    if spec.math_type == MathType.TENSOR_OP_ALLOW_CONVERSION:
        return lambda a: a.astype(np.float16).astype(np.float32)
    return None if tf32_is_forbidden() else round_tf32


def _read_data(api: EmulatedApi, spec: RNNSpec, descriptor: Any, name: str, vector_size: int) -> RNNDataSpec:
    data = RNNDataDescriptor.read(api.real, descriptor)
    if not data.batch:
        raise bad(f"{name} was never set")
    if data.dtype != spec.dtype:
        raise bad(f"{name} is of {dtype_name(data.dtype)}, rnnDesc of {dtype_name(spec.dtype)}")
    if data.vector_size != vector_size:
        raise bad(f"{name} has vectors of {data.vector_size}; needed: {vector_size}")
    return data


class _Call(Spaces):
    """What a forward or backward call is given, read back and checked.  Nothing is written before all is read."""

    def __init__(
        self, api: EmulatedApi, rnn: Any, lengths: Any, x: Any, y: Any, h: Any, c: Any = None, *, backward: bool
    ) -> None:
        self.api = api
        self.spec, self.algorithm, self.padded_io, self.dropout_pointer = read_rnn(api.real, rnn)
        self.dropout = find_dropout(api, self.dropout_pointer.value)
        self.x = _read_data(api, self.spec, x, "xDesc", self.spec.input_size)
        self.y = _read_data(api, self.spec, y, "yDesc", self.spec.output_size)
        self.shape, self.compute = network_shape(self.spec), compute_dtype(self.spec)
        self.has_cell_state = self.spec.cell == RNNMode.LSTM
        self.storage, self.active = numpy_dtype(self.spec.dtype), active_steps(self.x)
        self.h_shape, self.c_shape = self.spec.hidden_shape(self.x.batch), self.spec.cell_shape(self.x.batch)
        self._check_sequences()
        self._check_state(h, "hDesc", self.h_shape)
        if c is not None and self.has_cell_state:
            self._check_state(c, "cDesc", self.c_shape)
        self._check_lengths(lengths)
        why = why_not(self.spec, self.algorithm, full=self.x.is_full, backward=backward)
        if why:
            raise RefusalError(Status.NOT_SUPPORTED, why)
        if self.algorithm == RNNAlgo.PERSIST_DYNAMIC:
            self._check_build(rnn.value)

    def _check_sequences(self) -> None:
        for name in ("layout", "max_length", "batch", "lengths"):
            of_x, of_y = getattr(self.x, name), getattr(self.y, name)
            if of_x != of_y:
                raise bad(f"{name} is {of_x} in xDesc, {of_y} in yDesc")
        if self.x.needs_padded_io and not self.padded_io:
            raise bad(f"(1U << 0) != rnnDesc->paddingMode(): {self.x} wants CUDNN_RNN_PADDED_IO_ENABLED")

    def _check_state(self, descriptor: Any, name: str, shape: tuple[int, ...]) -> None:
        try:
            state = TensorDescriptor.read(self.api.real, descriptor)
        except ArgumentError as error:  # it was never set
            raise bad(f"{name}: {error}") from error
        if state.shape != shape:
            raise bad(f"{name} has shape {state.shape}; needed: {shape}")
        if state.strides != (shape[1] * shape[2], shape[2], 1):
            raise bad(f"{name} has strides {state.strides}; it must have no gaps")
        if state.dtype != self.spec.dtype:
            raise bad(f"{name} is of {dtype_name(state.dtype)}, rnnDesc of {dtype_name(self.spec.dtype)}")

    def _check_lengths(self, pointer: Any) -> None:
        if pointer:
            memory = self.api.memory.view(ctypes.addressof(pointer.contents), 4 * self.x.batch)
            lengths = tuple(memory.view(np.int32).tolist())
            if lengths != self.x.lengths:
                raise bad(f"devSeqLengths holds {lengths}, xDesc {self.x.lengths}")

    def _check_build(self, address: int) -> None:
        built = _builds.get(self.api, {}).get(address)
        if built is None:
            raise bad("PERSIST_DYNAMIC was not built: cudnnBuildRNNDynamic was not called since rnnDesc was set")
        if built != (self.x.batch, self.spec):
            given = f"cudnnBuildRNNDynamic was given a batch of {built[0]} and {built[1]}"
            raise bad(f"{given}; this is a batch of {self.x.batch} and {self.spec}")

    def sequences(self, address: int | None, data: RNNDataSpec, name: str) -> Bytes:
        return self.memory(address, data.tensor().nbytes, name)

    def state(self, address: int | None, shape: tuple[int, ...], name: str) -> Array | None:
        """View a state; None for the null pointer."""
        if not address:
            return None
        memory = self.memory(address, math.prod(shape) * self.storage.itemsize, name)
        return memory.view(self.storage).reshape(shape)

    def states(self, h: int | None, c: int | None, names: tuple[str, str]) -> tuple[Array | None, Array | None]:
        """View a hidden state, and a cell state if there is such a thing."""
        cell = self.state(c, self.c_shape, names[1]) if self.has_cell_state else None
        return self.state(h, self.h_shape, names[0]), cell

    def read_states(self, h: int | None, c: int | None, names: tuple[str, str]) -> tuple[Array, Array | None]:
        """Copy them in the type that is computed in; zeros for null pointers."""
        hidden, cell = self.states(h, c, names)
        wide = self._wide(hidden, self.h_shape)
        return wide, self._wide(cell, self.c_shape) if self.has_cell_state else None

    def _wide(self, values: Array | None, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape, self.compute) if values is None else values.astype(self.compute)

    def weights(self, address: int | None, nbytes: int, name: str) -> Bytes:
        return self.space(address, nbytes, weight_layout(self.spec).nbytes, name)

    def workspace(self, address: int | None, nbytes: int) -> Bytes:
        return self.space(address, nbytes, _workspace_bytes(self.spec, self.x), "workSpace")

    def reserve(self, address: int | None, nbytes: int) -> Reserve:
        places = reserve_places(self.spec, self.x, masked=self.dropout is not None)
        sequences = self.x.with_vectors(self.x.vector_size)  # whose padding's fill is another's affair
        probability = None if self.dropout is None else self.dropout.probability
        problem = (self.spec, self.algorithm, self.padded_io, sequences.values(), probability)
        return Reserve(self.space(address, nbytes, places.nbytes, "reserveSpace"), places, problem)

    def read_cells(self, space: Bytes) -> tuple[Cells, Array]:
        """Return the weights, and the one array that all the matrices are views of, rounded as operands of products."""
        cells, matrices = empty_cells(self.spec, self.compute)
        for stored, target in weight_views(self.spec, space, cells):
            target[...] = stored
        rounding = _rounding(self.spec)
        if rounding is not None:
            with np.errstate(all="ignore"):
                matrices[:] = rounding(matrices)
        return cells, matrices

    def network(self, cells: Cells, matrices: Array) -> Network:
        rounding = _rounding(self.spec)

        def product(a: Array, b: Array) -> Array:
            if rounding is not None:
                a, b = (m if m.base is matrices else rounding(m) for m in (a, b))  # weights already are, once a call
            return np.asarray(np.matmul(a, b))

        def store(h: Array) -> Array:
            return to_output(h, self.storage).astype(self.compute, copy=False)

        return Network(self.shape, cells, self.spec.clip_in_effect, product, store)

    def write(self, target: Array | None, values: Array | None) -> None:
        if target is not None and values is not None:
            target[...] = to_output(values, self.storage)


@emulates("cudnnSetRNNDescriptor_v8")
def set_rnn(
    api: EmulatedApi, rnn: Any, algorithm: int, cell: int, bias: int, direction: int, input_mode: int, dtype: int,
    compute: int, math_type: int, input_size: int, hidden_size: int, projection_size: int, layers: int,
    dropout: Any, flags: int,
) -> None:  # fmt: skip
    """Set the descriptor, and forget that it was built."""
    _builds.get(api, {}).pop(rnn.value, None)
    try:
        api.real.cudnnSetRNNDescriptor_v8(
            rnn, algorithm, cell, bias, direction, input_mode, dtype, compute, math_type, input_size, hidden_size,
            projection_size, layers, dropout, flags,
        )  # fmt: skip
    except CudnnError as error:  # in cuDNN's words, which are often none
        raise RefusalError(Status(error.status), error.detail) from error


@emulates("cudnnDestroyRNNDescriptor")
def destroy_rnn(api: EmulatedApi, rnn: Any) -> None:
    """Destroy the descriptor, and forget that it was built: another may get its address."""
    _builds.get(api, {}).pop(rnn.value, None)
    api.real.cudnnDestroyRNNDescriptor(rnn)


@emulates("cudnnBuildRNNDynamic")
def build_dynamic(api: EmulatedApi, handle: Any, rnn: Any, batch: int) -> None:
    """Note what was built: there is nothing to compile."""
    spec, algorithm, *_ = read_rnn(api.real, rnn)
    if algorithm != RNNAlgo.PERSIST_DYNAMIC:
        raise bad(f"cudnnBuildRNNDynamic is for PERSIST_DYNAMIC, not {algorithm.name}")
    if batch < 1:
        raise bad(f"miniBatch={batch}; allowed: 1 or more")
    why = why_not(spec, algorithm)
    if why:
        raise RefusalError(Status.NOT_SUPPORTED, why)
    _builds.setdefault(api, {})[rnn.value] = batch, spec


@emulates("cudnnGetRNNTempSpaceSizes")
def temp_space_sizes(
    api: EmulatedApi, handle: Any, rnn: Any, mode: int, x_desc: Any, workspace_size: Any, reserve_size: Any
) -> None:
    """Tell how much workspace is wanted, and for training how much reserve space."""
    reading = read_rnn(api.real, rnn)
    x = _read_data(api, reading.spec, x_desc, "xDesc", reading.spec.input_size)
    training = _is_training(mode)
    why = why_not(reading.spec, reading.algorithm)
    if why:
        raise RefusalError(Status.NOT_SUPPORTED, why)
    workspace_size[0] = _workspace_bytes(reading.spec, x)
    reserve_size[0] = reserve_places(reading.spec, x, masked=bool(reading.dropout.value)).nbytes if training else 0


def _is_training(mode: int) -> bool:
    if mode not in list(ForwardMode):
        raise bad(f"fwdMode={mode}; allowed: {', '.join(f'{m.name} ({m.value})' for m in ForwardMode)}")
    return mode == ForwardMode.TRAINING


@emulates("cudnnRNNForward")
def forward(
    api: EmulatedApi, handle: Any, rnn: Any, mode: int, lengths: Any, x_desc: Any, x: int, y_desc: Any, y: int,
    h_desc: Any, hx: int, hy: int, c_desc: Any, cx: int, cy: int, weight_bytes: int, weights: int,
    workspace_bytes: int, workspace: int, reserve_bytes: int, reserve: int,
) -> Work:  # fmt: skip
    """Compute y, hy and cy; for training also what the backward passes need."""
    call = _Call(api, rnn, lengths, x_desc, y_desc, h_desc, c_desc, backward=False)
    training = _is_training(mode)

    def work() -> None:
        steps = read_steps(call.sequences(x, call.x, "x"), call.x)
        hidden, cell = call.read_states(hx, cx, ("hx", "cx"))
        cells, matrices = call.read_cells(call.weights(weights, weight_bytes, "weightSpace"))
        y_memory = call.sequences(y, call.y, "y")
        targets = call.states(hy, cy, ("hy", "cy"))
        scratch = call.workspace(workspace, workspace_bytes)
        kept = call.reserve(reserve, reserve_bytes) if training else None
        masks, tape = (None, None) if kept is None else (kept.masks, kept.tape)
        if masks is not None and call.dropout is not None:
            call.dropout.check(api)

        scratch[:] = POISON_FREED
        if kept is not None:
            kept.begin()
        if masks is not None and call.dropout is not None:
            call.dropout.draw(api, masks)
        wide = steps.astype(call.compute, copy=False)
        network = call.network(cells, matrices)
        api.ran.add(f"recurrent {getattr(_rounding(call.spec), '__name__', None)}")
        result, *final = rnn_equations.forward(network, wide, call.active, hidden, cell, masks=masks, tape=tape)
        result = to_output(result, call.storage)
        write_steps(y_memory, call.y, result, call.y.padding_fill)
        for target, values in zip(targets, final, strict=True):
            call.write(target, values)
        if kept is not None:
            sums = {"x": checksum(steps), "hx": checksum(hidden), "cx": checksum(cell), "y": checksum(result)}
            kept.finish(Reserve.FORWARD, weightSpace=checksum(*flattened(cells)), **sums)

    return work


@emulates("cudnnRNNBackwardData_v8")
def backward_data(
    api: EmulatedApi, handle: Any, rnn: Any, lengths: Any, y_desc: Any, y: int, dy: int, x_desc: Any, dx: int,
    h_desc: Any, hx: int, dhy: int, dhx: int, c_desc: Any, cx: int, dcy: int, dcx: int, weight_bytes: int,
    weights: int, workspace_bytes: int, workspace: int, reserve_bytes: int, reserve: int,
) -> Work:  # fmt: skip
    """Compute dx, dhx and dcx, and what the gradients of the weights need."""
    call = _Call(api, rnn, lengths, x_desc, y_desc, h_desc, c_desc, backward=True)

    def work() -> None:
        y_steps = read_steps(call.sequences(y, call.y, "y"), call.y)
        dy_steps = read_steps(call.sequences(dy, call.y, "dy"), call.y).astype(call.compute, copy=False)
        hidden, cell = call.read_states(hx, cx, ("hx", "cx"))
        dhidden, dcell = call.read_states(dhy, dcy, ("dhy", "dcy"))
        cells, matrices = call.read_cells(call.weights(weights, weight_bytes, "weightSpace"))
        dx_memory = call.sequences(dx, call.x, "dx")
        targets = call.states(dhx, dcx, ("dhx", "dcx"))
        scratch = call.workspace(workspace, workspace_bytes)
        kept = call.reserve(reserve, reserve_bytes)
        sums = {"y": checksum(y_steps), "hx": checksum(hidden), "cx": checksum(cell)}
        kept.expect(Reserve.FORWARD, weightSpace=checksum(*flattened(cells)), **sums)

        scratch[:] = POISON_FREED
        kept.begin()
        result, *initial = rnn_equations.backward_data(
            call.network(cells, matrices), call.active, dy_steps, dhidden, dcell,
            hx=hidden, cx=cell, masks=kept.masks, tape=kept.tape,
        )  # fmt: skip
        write_steps(dx_memory, call.x, to_output(result, call.storage), 0)
        for target, values in zip(targets, initial, strict=True):
            call.write(target, values)
        kept.finish(Reserve.BACKWARD_DATA)

    return work


@emulates("cudnnRNNBackwardWeights_v8")
def backward_weights(
    api: EmulatedApi, handle: Any, rnn: Any, mode: int, lengths: Any, x_desc: Any, x: int, h_desc: Any, hx: int,
    y_desc: Any, y: int, weight_bytes: int, dweights: int, workspace_bytes: int, workspace: int,
    reserve_bytes: int, reserve: int,
) -> Work:  # fmt: skip
    """Add the gradients of the weights to what is in `dweights`."""
    if mode == WgradMode.SET:
        raise RefusalError(Status.NOT_SUPPORTED, "addGrad=SET; allowed: ADD")
    if mode != WgradMode.ADD:
        raise bad(f"addGrad={mode}; allowed: ADD ({WgradMode.ADD.value})")
    call = _Call(api, rnn, lengths, x_desc, y_desc, h_desc, backward=True)

    def work() -> None:
        x_steps = read_steps(call.sequences(x, call.x, "x"), call.x)
        y_steps = read_steps(call.sequences(y, call.y, "y"), call.y)
        hidden, _ = call.read_states(hx, None, ("hx", ""))
        space = call.weights(dweights, weight_bytes, "dweightSpace")
        scratch = call.workspace(workspace, workspace_bytes)
        kept = call.reserve(reserve, reserve_bytes)
        kept.expect(Reserve.BACKWARD_DATA, x=checksum(x_steps), y=checksum(y_steps), hx=checksum(hidden))

        scratch[:] = POISON_FREED
        network = call.network(
            *empty_cells(call.spec, call.compute)
        )  # what weights there are; their values do not matter
        gradients = rnn_equations.backward_weights(network, call.active, hx=hidden, tape=kept.tape)
        for target, values in weight_views(call.spec, space, gradients):
            call.write(target, target.astype(call.compute) + values)

    return work
