"""Emulated recurrent networks: the sizes of their spaces, forward, backward.

Stricter than hardware, which computes garbage instead: PERSIST_DYNAMIC must have been built for the batch, and backward
passes want the reserve space and the operands of the training forward pass that they belong to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnnlite._raw.enums import ForwardMode, WgradMode
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.descriptors.rnn import RNNDataDescriptor, read_rnn
from cudnnlite.dtypes import dtype_name, numpy_dtype
from cudnnlite.emulated.dropout import find_dropout
from cudnnlite.emulated.memory import POISON_FREED, Bytes
from cudnnlite.emulated.precision import round_tf32, to_output, wide_dtype
from cudnnlite.emulated.registry import RefusalError, Work, bad, emulates, unsupported
from cudnnlite.emulated.rnn_layout import reserve_places, weight_layout, weight_views, write_steps
from cudnnlite.emulated.spaces import Reserve, Spaces, checksum
from cudnnlite.emulated.support import multiplies_in_tf32
from cudnnlite.enums import DataType, MathType, RNNAlgo, RNNMode, Status
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.problems import rnn_equations as equations
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.rnn_rules import why_not
from cudnnlite.specs.rnn_weights import weight_parts

Array = NDArray[Any]


def _workspace_bytes(spec: RNNSpec, x: RNNDataSpec) -> int:
    """Return a size that is never 0 and differs between problems: NumPy needs no workspace, but callers must give it."""
    return 512 + 16 * x.batch * spec.hidden_size


def _rounding(spec: RNNSpec) -> Callable[[Array], Array] | None:
    """Return how the operands of products are rounded (for TF32: as an H200's errors of 4e-4 tell)."""
    if spec.dtype == DataType.FLOAT and spec.math_type == MathType.TENSOR_OP_ALLOW_CONVERSION:
        return lambda a: a.astype(np.float16).astype(np.float32)
    return round_tf32 if multiplies_in_tf32(spec.dtype, spec.math_type) else None


def _read_data(given: SimpleNamespace, spec: RNNSpec, name: str, vector_size: int) -> RNNDataSpec:
    data = RNNDataDescriptor.read(given.api.real, getattr(given, name))
    if not data.batch:
        raise bad(f"{name} was never set")
    if data.dtype != spec.dtype:
        raise bad(f"{name} is of {dtype_name(data.dtype)}, rnnDesc of {dtype_name(spec.dtype)}")
    if data.vector_size != vector_size:
        raise bad(f"{name} has vectors of {data.vector_size}; needed: {vector_size}")
    return data


def _allow(spec: RNNSpec, algorithm: RNNAlgo, **how: bool) -> None:
    if why := why_not(spec, algorithm, **how):
        raise unsupported(why)


class _Call(Spaces):
    """What a forward or backward call is given, read back and checked.  Nothing is written before all is read."""

    def __init__(self, given: SimpleNamespace, *, backward: bool) -> None:
        super().__init__(given)
        self.spec, self.algorithm, self.padded_io, dropout = read_rnn(self.api.real, given.rnnDesc)
        self.dropout = find_dropout(self.api, dropout.value)
        self.x = _read_data(given, self.spec, "xDesc", self.spec.input_size)
        self.y = _read_data(given, self.spec, "yDesc", self.spec.output_size)
        self.compute, self.storage = wide_dtype(self.spec.dtype), numpy_dtype(self.spec.dtype)
        self.active, self.rounding = equations.active_steps(self.x), _rounding(self.spec)
        self.shapes = {"h": self.spec.hidden_shape(self.x.batch)}  # of states
        if self.spec.cell == RNNMode.LSTM:
            self.shapes["c"] = self.spec.cell_shape(self.x.batch)
        for name in ("layout", "max_length", "batch", "lengths"):
            of_x, of_y = getattr(self.x, name), getattr(self.y, name)
            if of_x != of_y:
                raise bad(f"{name} is {of_x} in xDesc, {of_y} in yDesc")
        if self.x.needs_padded_io and not self.padded_io:
            raise bad(
                f"(1U << 0) != rnnDesc->paddingMode(): {self.x} wants CUDNN_RNN_PADDED_IO_ENABLED"
            )
        for kind, shape in self.shapes.items():
            if hasattr(given, f"{kind}Desc"):
                self._check_state(f"{kind}Desc", shape)
        if given.devSeqLengths:
            lengths = tuple(self.api.memory.ints(given.devSeqLengths, self.x.batch).tolist())
            if lengths != self.x.lengths:
                raise bad(f"devSeqLengths holds {lengths}, xDesc {self.x.lengths}")
        _allow(self.spec, self.algorithm, full=self.x.is_full, backward=backward)
        if self.algorithm == RNNAlgo.PERSIST_DYNAMIC:
            self._check_build(self.api.remembered.get(given.rnnDesc.value))

    def _check_state(self, name: str, shape: tuple[int, ...]) -> None:
        try:
            state = TensorDescriptor.read(self.api.real, getattr(self.given, name))
        except ArgumentError as error:  # it was never set
            raise bad(f"{name}: {error}") from error
        if state.shape != shape:
            raise bad(f"{name} has shape {state.shape}; needed: {shape}")
        if state.strides != (shape[1] * shape[2], shape[2], 1):
            raise bad(f"{name} has strides {state.strides}; it must have no gaps")
        if state.dtype != self.spec.dtype:
            raise bad(
                f"{name} is of {dtype_name(state.dtype)}, rnnDesc of {dtype_name(self.spec.dtype)}"
            )

    def _check_build(self, built: tuple[int, RNNSpec] | None) -> None:
        if built is None:
            raise bad(
                "PERSIST_DYNAMIC was not built: cudnnBuildRNNDynamic was not called since rnnDesc was set"
            )
        if built != (self.x.batch, self.spec):
            given = f"cudnnBuildRNNDynamic was given a batch of {built[0]} and {built[1]}"
            raise bad(f"{given}; this is a batch of {self.x.batch} and {self.spec}")

    def view(self, name: str, shape: tuple[int, ...]) -> Array:
        return (
            self.memory(name, math.prod(shape) * self.storage.itemsize)
            .view(self.storage)
            .reshape(shape)
        )

    def steps(self, name: str, data: RNNDataSpec) -> Array:
        """Copy sequences."""
        return equations.steps_of(self.view(name, data.shape), data)

    def states(self, name: str) -> list[Array | None]:
        """View the states of a name that has h in it, and those with c; None for null pointers."""
        shapes = {name.replace("h", kind): shape for kind, shape in self.shapes.items()}
        return [
            self.view(own, shape) if getattr(self.given, own) else None
            for own, shape in shapes.items()
        ]

    def read_states(self, name: str) -> tuple[Array, Array | None]:
        """Copy them in the type that is computed in; zeros for null pointers."""
        wide = [
            np.zeros(shape, self.compute) if values is None else values.astype(self.compute)
            for shape, values in zip(self.shapes.values(), self.states(name), strict=True)
        ]
        return wide[0], wide[1] if len(wide) > 1 else None

    def weights(self, name: str) -> Bytes:
        return self.space(name, "weightSpaceSize", weight_layout(self.spec)[1])

    def workspace(self) -> Bytes:
        return self.space("workSpace", "workSpaceSize", _workspace_bytes(self.spec, self.x))

    def reserve(self) -> Reserve:
        places = reserve_places(self.spec, self.x, masked=self.dropout is not None)
        sequences = self.x.with_vectors(
            self.x.vector_size
        )  # whose padding's fill is another's affair
        probability = None if self.dropout is None else self.dropout.probability
        problem = (self.spec, self.algorithm, self.padded_io, sequences.values(), probability)
        return Reserve(
            self.space("reserveSpace", "reserveSpaceSize", places.nbytes), places, problem
        )

    def network(self, space: Bytes | None) -> equations.Network:
        """Return the equations, with weights rounded as operands of products; values that do not matter without a space."""
        zeros = {part.name: np.zeros(part.shape, self.storage) for part in weight_parts(self.spec)}
        values = zeros if space is None else weight_views(self.spec, space)
        if self.rounding is not None:
            with np.errstate(all="ignore"):
                wide = {name: part.astype(self.compute) for name, part in values.items()}
                values = {
                    name: self.rounding(part) if part.ndim > 1 else part
                    for name, part in wide.items()
                }
        found = equations.network_of(self.spec, values, self.compute)
        rounded = {id(part) for part in parts_of(found)}

        def product(a: Array, b: Array) -> Array:
            if self.rounding is not None:  # weights, or views of them, already are, once a call
                a, b = (
                    m if id(m if m.base is None else m.base) in rounded else self.rounding(m)
                    for m in (a, b)
                )
            return np.asarray(np.matmul(a, b))

        def store(h: Array) -> Array:
            return to_output(h, self.storage).astype(self.compute, copy=False)

        return replace(found, product=product, store=store)

    def write(self, targets: list[Array | None], values: list[Array | None]) -> None:
        for target, result in zip(
            targets, values, strict=False
        ):  # of a cell without c there is one target
            if target is not None and result is not None:
                target[...] = to_output(result, self.storage)


def parts_of(network: equations.Network) -> list[Array | None]:
    """Return all arrays of the weights."""
    return [part for layer in network.weights for cell in layer for part in cell]


@emulates("cudnnSetRNNDescriptor_v8")
def set_rnn(given: SimpleNamespace) -> None:
    """Set the descriptor, and forget that it was built."""
    given.api.remembered.pop(given.rnnDesc.value, None)
    try:
        given.api.real.cudnnSetRNNDescriptor_v8(*given.arguments)
    except CudnnError as error:  # in cuDNN's words, which are often none
        raise RefusalError(Status(error.status), error.detail) from error


@emulates("cudnnBuildRNNDynamic")
def build_dynamic(given: SimpleNamespace) -> None:
    """Note what was built, the batch and the network: there is nothing to compile."""
    batch, (spec, algorithm, *_) = given.miniBatch, read_rnn(given.api.real, given.rnnDesc)
    if algorithm != RNNAlgo.PERSIST_DYNAMIC:
        raise bad(f"cudnnBuildRNNDynamic is for PERSIST_DYNAMIC, not {algorithm.name}")
    if batch < 1:
        raise bad(f"miniBatch={batch}; allowed: 1 or more")
    _allow(spec, algorithm)
    given.api.remembered[given.rnnDesc.value] = batch, spec


@emulates("cudnnGetRNNTempSpaceSizes")
def temp_space_sizes(given: SimpleNamespace) -> None:
    """Tell how much workspace is wanted, and for training how much reserve space."""
    spec, algorithm, _, dropout = read_rnn(given.api.real, given.rnnDesc)
    x, training = _read_data(given, spec, "xDesc", spec.input_size), _is_training(given.fwdMode)
    _allow(spec, algorithm)
    given.workSpaceSize[0] = _workspace_bytes(spec, x)
    given.reserveSpaceSize[0] = (
        reserve_places(spec, x, masked=bool(dropout.value)).nbytes if training else 0
    )


def _is_training(mode: int) -> bool:
    if mode not in list(ForwardMode):
        raise bad(
            f"fwdMode={mode}; allowed: {', '.join(f'{m.name} ({m.value})' for m in ForwardMode)}"
        )
    return mode == ForwardMode.TRAINING


@emulates("cudnnRNNForward")
def forward(given: SimpleNamespace) -> Work:
    """Compute y, hy and cy; for training also what the backward passes need."""
    call, training = _Call(given, backward=False), _is_training(given.fwdMode)

    def work() -> None:
        steps, (hidden, cell) = call.steps("x", call.x), call.read_states("hx")
        network = call.network(call.weights("weightSpace"))
        y_memory, targets, scratch = (
            call.view("y", call.y.shape),
            call.states("hy"),
            call.workspace(),
        )
        kept = call.reserve() if training else None
        masks, tape = (None, None) if kept is None else (kept.masks, kept.tape)
        if masks is not None and call.dropout is not None:
            call.dropout.check(call.api)

        scratch[:] = POISON_FREED
        if kept is not None:
            kept.begin()
        if masks is not None and call.dropout is not None:
            call.dropout.draw(call.api, masks)
        call.api.ran.add(f"recurrent {getattr(call.rounding, '__name__', None)}")
        result, *final = equations.forward(
            network,
            steps.astype(call.compute, copy=False),
            call.active,
            hidden,
            cell,
            masks=masks,
            tape=tape,
        )
        result = to_output(result, call.storage)
        write_steps(y_memory, call.y, result, call.y.padding_fill)
        call.write(targets, final)
        if kept is not None:
            sums = {
                "x": checksum(steps),
                "hx": checksum(hidden),
                "cx": checksum(cell),
                "y": checksum(result),
            }
            kept.finish(Reserve.FORWARD, weightSpace=checksum(*parts_of(network)), **sums)

    return work


@emulates("cudnnRNNBackwardData_v8")
def backward_data(given: SimpleNamespace) -> Work:
    """Compute dx, dhx and dcx, and what the gradients of the weights need."""
    call = _Call(given, backward=True)

    def work() -> None:
        y, dy = call.steps("y", call.y), call.steps("dy", call.y).astype(call.compute, copy=False)
        (hidden, cell), slopes = call.read_states("hx"), call.read_states("dhy")
        network = call.network(call.weights("weightSpace"))
        dx, targets, scratch, kept = (
            call.view("dx", call.x.shape),
            call.states("dhx"),
            call.workspace(),
            call.reserve(),
        )
        sums = {"y": checksum(y), "hx": checksum(hidden), "cx": checksum(cell)}
        kept.expect(Reserve.FORWARD, weightSpace=checksum(*parts_of(network)), **sums)

        scratch[:] = POISON_FREED
        kept.begin()
        result, *initial = equations.backward_data(
            network, call.active, dy, *slopes, hx=hidden, cx=cell, masks=kept.masks, tape=kept.tape
        )
        write_steps(dx, call.x, to_output(result, call.storage), 0)
        call.write(targets, initial)
        kept.finish(Reserve.BACKWARD_DATA)

    return work


@emulates("cudnnRNNBackwardWeights_v8")
def backward_weights(given: SimpleNamespace) -> Work:
    """Add the gradients of the weights to what is in `dweightSpace`."""
    if given.addGrad == WgradMode.SET:
        raise unsupported("addGrad=SET; allowed: ADD")
    if given.addGrad != WgradMode.ADD:
        raise bad(f"addGrad={given.addGrad}; allowed: ADD ({WgradMode.ADD.value})")
    given.cx = None  # nor is there a cDesc
    call = _Call(given, backward=True)

    def work() -> None:
        x, y, (hidden, _) = call.steps("x", call.x), call.steps("y", call.y), call.read_states("hx")
        space, scratch, kept = call.weights("dweightSpace"), call.workspace(), call.reserve()
        kept.expect(Reserve.BACKWARD_DATA, x=checksum(x), y=checksum(y), hx=checksum(hidden))

        scratch[:] = POISON_FREED
        gradients = equations.backward_weights(
            call.network(None), call.active, hx=hidden, tape=kept.tape
        )
        views = weight_views(call.spec, space)
        for part in weight_parts(call.spec):
            target, gates = views[part.name], gradients[part.layer][part.direction][part.field]
            assert gates is not None
            call.write([target], [target.astype(call.compute) + gates[part.rows(call.spec.gates)]])

    return work
