"""Emulated recurrent networks: their descriptors, the sizes of their spaces, forward, backward.

Stricter than hardware, which computes garbage instead: PERSIST_DYNAMIC must have been built for the
batch, and backward passes need the reserve space and the operands of the training forward pass that
they belong to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnnlite._raw.enums import ForwardMode, WgradMode
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.descriptors.rnn import RNNDataDescriptor, read_rnn
from cudnnlite.dtypes import dtype_name, numpy_dtype
from cudnnlite.emulated.descriptor_state import destroy_descriptor
from cudnnlite.emulated.dropout import find_dropout
from cudnnlite.emulated.memory import POISON_FREED, Bytes
from cudnnlite.emulated.precision import round_tf32, to_output, wide_dtype
from cudnnlite.emulated.registry import RefusalError, Work, bad_parameter, emulates, unsupported
from cudnnlite.emulated.rnn_layout import reserve_layout, weight_layout, weight_views, write_steps
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
    """Return a size that is never 0 and differs between problems.

    NumPy needs no workspace, but callers must provide it.
    """
    return 512 + 16 * x.batch * spec.hidden_size


def _rounding(spec: RNNSpec) -> Callable[[Array], Array] | None:
    """Return how the operands of products are rounded, None if they are not.

    An H200 rounds to TF32, which its errors of 4e-4 show.
    """
    if spec.dtype == DataType.FLOAT and spec.math_type == MathType.TENSOR_OP_ALLOW_CONVERSION:
        return lambda a: a.astype(np.float16).astype(np.float32)
    return round_tf32 if multiplies_in_tf32(spec.dtype, spec.math_type) else None


def _read_data(
    c_call: SimpleNamespace, spec: RNNSpec, argument: str, vector_size: int
) -> RNNDataSpec:
    data = RNNDataDescriptor.read(c_call.api.real, getattr(c_call, argument))
    if not data.batch:
        raise bad_parameter(f"{argument} was never set")
    if data.dtype != spec.dtype:
        raise bad_parameter(
            f"{argument} is of {dtype_name(data.dtype)}, rnnDesc of {dtype_name(spec.dtype)}"
        )
    if data.vector_size != vector_size:
        raise bad_parameter(f"{argument} has vectors of {data.vector_size}; needed: {vector_size}")
    return data


def _check_support(spec: RNNSpec, algorithm: RNNAlgo, **conditions: bool) -> None:
    """Refuse what an H200 refuses."""
    reason = why_not(spec, algorithm, **conditions)
    if reason:
        raise unsupported(reason)


class _RNNCall(Spaces):
    """The arguments of a forward or backward call, read back and checked.

    Nothing is written before all is read.
    """

    def __init__(self, c_call: SimpleNamespace, *, is_backward: bool) -> None:
        super().__init__(c_call)
        rnn = read_rnn(self.api.real, c_call.rnnDesc)
        self.spec, self.algorithm, self.padded_io, dropout = rnn
        self.dropout = find_dropout(self.api, dropout.value)
        self.x = _read_data(c_call, self.spec, "xDesc", self.spec.input_size)
        self.y = _read_data(c_call, self.spec, "yDesc", self.spec.output_size)
        self.dtype = wide_dtype(self.spec.dtype)  # of the computation
        self.storage_dtype = numpy_dtype(self.spec.dtype)
        self.active = equations.active_steps(self.x)
        self.rounding = _rounding(self.spec)
        self.state_shapes = {"h": self.spec.hidden_shape(self.x.batch)}
        if self.spec.cell == RNNMode.LSTM:
            self.state_shapes["c"] = self.spec.cell_shape(self.x.batch)
        self._check_sequences()
        for name, shape in self.state_shapes.items():
            if hasattr(c_call, f"{name}Desc"):
                self._check_state(f"{name}Desc", shape)
        self._check_device_lengths()
        _check_support(self.spec, self.algorithm, full=self.x.is_full, backward=is_backward)
        if self.algorithm == RNNAlgo.PERSIST_DYNAMIC:
            self._check_build()

    def _check_sequences(self) -> None:
        """Refuse sequences that do not fit together, or to the descriptor."""
        for name in ("layout", "max_length", "batch", "lengths"):
            x_value, y_value = getattr(self.x, name), getattr(self.y, name)
            if x_value != y_value:
                raise bad_parameter(f"{name} is {x_value} in xDesc, {y_value} in yDesc")
        if self.x.needs_padded_io and not self.padded_io:
            raise bad_parameter(
                f"(1U << 0) != rnnDesc->paddingMode(): {self.x} wants CUDNN_RNN_PADDED_IO_ENABLED"
            )

    def _check_state(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse the descriptor of a state that does not fit."""
        try:
            state = TensorDescriptor.read(self.api.real, getattr(self.c_call, name))
        except ArgumentError as error:
            # The descriptor was never set.
            raise bad_parameter(f"{name}: {error}") from error
        if state.shape != shape:
            raise bad_parameter(f"{name} has shape {state.shape}; needed: {shape}")
        if state.strides != (shape[1] * shape[2], shape[2], 1):
            raise bad_parameter(f"{name} has strides {state.strides}; it must have no gaps")
        if state.dtype != self.spec.dtype:
            raise bad_parameter(
                f"{name} is of {dtype_name(state.dtype)}, rnnDesc of {dtype_name(self.spec.dtype)}"
            )

    def _check_device_lengths(self) -> None:
        """Refuse lengths on the device that are not the descriptor's."""
        if not self.c_call.devSeqLengths:
            return
        lengths = self.api.memory.ints(self.c_call.devSeqLengths, self.x.batch)
        on_device = tuple(lengths.tolist())
        if on_device != self.x.lengths:
            raise bad_parameter(f"devSeqLengths holds {on_device}, xDesc {self.x.lengths}")

    def _check_build(self) -> None:
        """Refuse PERSIST_DYNAMIC that was not built, or was built for something else."""
        build = self.api.descriptor_states.get(self.c_call.rnnDesc.value)
        if build is None:
            raise bad_parameter(
                "PERSIST_DYNAMIC was not built: cudnnBuildRNNDynamic was not called since rnnDesc "
                "was set"
            )
        batch, spec = build
        if (batch, spec) != (self.x.batch, self.spec):
            raise bad_parameter(
                f"cudnnBuildRNNDynamic was given a batch of {batch} and {spec}; "
                f"this is a batch of {self.x.batch} and {self.spec}"
            )

    def view(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return a view of an operand."""
        memory = self.memory(name, math.prod(shape) * self.storage_dtype.itemsize)
        return memory.view(self.storage_dtype).reshape(shape)

    def steps(self, name: str, data: RNNDataSpec) -> Array:
        """Return a copy of sequences, (T, N, vector)."""
        return equations.steps_of(self.view(name, data.shape), data)

    def states(self, name: str) -> list[Array | None]:
        """Return views of the states of a name with an h, and those with a c instead.

        None stands for null pointers.
        """
        views: list[Array | None] = []
        for letter, shape in self.state_shapes.items():
            argument = name.replace("h", letter)
            views.append(self.view(argument, shape) if getattr(self.c_call, argument) else None)
        return views

    def read_states(self, name: str) -> tuple[Array, Array | None]:
        """Return copies in the type that is computed in, zeros for null pointers.

        The second one is None if the cell has no c.
        """
        copies = []
        for shape, state in zip(self.state_shapes.values(), self.states(name), strict=True):
            if state is None:
                copies.append(np.zeros(shape, self.dtype))
            else:
                copies.append(state.astype(self.dtype))
        return copies[0], copies[1] if len(copies) > 1 else None

    def weights(self, name: str) -> Bytes:
        """Return a view of a weight space."""
        _, nbytes = weight_layout(self.spec)
        return self.space(name, "weightSpaceSize", nbytes)

    def workspace(self) -> Bytes:
        """Return a view of the workspace."""
        return self.space("workSpace", "workSpaceSize", _workspace_bytes(self.spec, self.x))

    def reserve(self) -> Reserve:
        """Return the reserve space."""
        layout = reserve_layout(self.spec, self.x, has_dropout=self.dropout is not None)
        memory = self.space("reserveSpace", "reserveSpaceSize", layout.nbytes)
        # `with_vectors` drops the padding's fill, which may be another one in the backward passes.
        sequences = self.x.with_vectors(self.x.vector_size).values()
        probability = None if self.dropout is None else self.dropout.probability
        problem = (self.spec, self.algorithm, self.padded_io, sequences, probability)
        return Reserve(memory, layout, problem)

    def network(self, space: Bytes | None) -> equations.Network:
        """Return the equations, with weights rounded as operands of products.

        Without a space the weights are zeros, which do not matter.
        """
        if space is None:
            weights = {
                part.name: np.zeros(part.shape, self.storage_dtype)
                for part in weight_parts(self.spec)
            }
        else:
            weights = weight_views(self.spec, space)
        if self.rounding is not None:
            weights = self._rounded_weights(weights, self.rounding)
        network = equations.network_of(self.spec, weights, self.dtype)
        return replace(network, product=self._product_with(network), store=self._rounded)

    def _rounded_weights(
        self, weights: dict[str, Array], rounding: Callable[[Array], Array]
    ) -> dict[str, Array]:
        """Return the weights in the type that is computed in, the matrices rounded."""
        rounded = {}
        with np.errstate(all="ignore"):
            for name, part in weights.items():
                values = part.astype(self.dtype)
                rounded[name] = rounding(values) if values.ndim > 1 else values
        return rounded

    def _product_with(self, network: equations.Network) -> Callable[[Array, Array], Array]:
        """Return what multiplies matrices, of which weights are not rounded again."""
        rounding = self.rounding
        weight_ids = {id(part) for part in weight_arrays(network)}

        def rounded(matrix: Array) -> Array:
            # A matrix of weights may be a view of an array of the network.
            owner = matrix if matrix.base is None else matrix.base
            if rounding is None or id(owner) in weight_ids:
                return matrix
            return rounding(matrix)

        def product(a: Array, b: Array) -> Array:
            return np.asarray(np.matmul(rounded(a), rounded(b)))

        return product

    def _rounded(self, h: Array) -> Array:
        """Return a state with the precision of its storage."""
        return to_output(h, self.storage_dtype).astype(self.dtype, copy=False)

    def write(self, targets: Sequence[Array | None], values: Sequence[Array | None]) -> None:
        """Write states or gradients; None is left out, and so is the c of a cell that has none."""
        for target, result in zip(targets, values, strict=False):
            if target is not None and result is not None:
                target[...] = to_output(result, self.storage_dtype)


def weight_arrays(network: equations.Network) -> list[Array | None]:
    """Return all arrays of the weights."""
    return [part for layer in network.weights for cell in layer for part in cell]


@emulates("cudnnSetRNNDescriptor_v8")
def set_descriptor(c_call: SimpleNamespace) -> None:
    """`cudnnSetRNNDescriptor_v8`: set a descriptor, which then is not built."""
    c_call.api.descriptor_states.pop(c_call.rnnDesc.value, None)
    try:
        c_call.api.real.cudnnSetRNNDescriptor_v8(*c_call.arguments)
    except CudnnError as error:
        # The message is cuDNN's own, and often empty.
        raise RefusalError(Status(error.status), error.detail) from error


@emulates("cudnnDestroyRNNDescriptor")
def destroy(c_call: SimpleNamespace) -> None:
    """`cudnnDestroyRNNDescriptor`: destroy a descriptor and its state."""
    destroy_descriptor(c_call, "cudnnDestroyRNNDescriptor")


@emulates("cudnnBuildRNNDynamic")
def build_dynamic(c_call: SimpleNamespace) -> None:
    """`cudnnBuildRNNDynamic`: store batch and network; there is nothing to compile."""
    spec, algorithm, *_ = read_rnn(c_call.api.real, c_call.rnnDesc)
    batch = c_call.miniBatch
    if algorithm != RNNAlgo.PERSIST_DYNAMIC:
        raise bad_parameter(f"cudnnBuildRNNDynamic is for PERSIST_DYNAMIC, not {algorithm.name}")
    if batch < 1:
        raise bad_parameter(f"miniBatch={batch}; allowed: 1 or more")
    _check_support(spec, algorithm)
    c_call.api.descriptor_states[c_call.rnnDesc.value] = batch, spec


@emulates("cudnnGetRNNTempSpaceSizes")
def temp_space_sizes(c_call: SimpleNamespace) -> None:
    """`cudnnGetRNNTempSpaceSizes`: write the workspace, and for training the reserve space."""
    spec, algorithm, _, dropout = read_rnn(c_call.api.real, c_call.rnnDesc)
    x = _read_data(c_call, spec, "xDesc", spec.input_size)
    is_training = _is_training(c_call.fwdMode)
    _check_support(spec, algorithm)
    c_call.workSpaceSize[0] = _workspace_bytes(spec, x)
    reserve_bytes = 0
    if is_training:
        reserve_bytes = reserve_layout(spec, x, has_dropout=bool(dropout.value)).nbytes
    c_call.reserveSpaceSize[0] = reserve_bytes


def _is_training(mode: int) -> bool:
    if mode not in list(ForwardMode):
        allowed = ", ".join(f"{member.name} ({member.value})" for member in ForwardMode)
        raise bad_parameter(f"fwdMode={mode}; allowed: {allowed}")
    return mode == ForwardMode.TRAINING


@emulates("cudnnRNNForward")
def forward(c_call: SimpleNamespace) -> Work:
    """`cudnnRNNForward`: compute y, hy and cy; for training also the reserve space."""
    call = _RNNCall(c_call, is_backward=False)
    is_training = _is_training(c_call.fwdMode)

    def work() -> None:
        steps = call.steps("x", call.x)
        hidden, cell = call.read_states("hx")
        network = call.network(call.weights("weightSpace"))
        y_memory = call.view("y", call.y.shape)
        targets = call.states("hy")
        scratch = call.workspace()
        reserve = call.reserve() if is_training else None
        masks = None if reserve is None else reserve.masks
        dropout = None if masks is None else call.dropout
        if dropout is not None:
            dropout.check(call.api)

        scratch[:] = POISON_FREED
        if reserve is not None:
            reserve.begin()
        if dropout is not None and masks is not None:
            dropout.draw(call.api, masks)
        call.api.kernels_run.add(f"recurrent {getattr(call.rounding, '__name__', None)}")
        result, *final_states = equations.forward(
            network,
            steps.astype(call.dtype, copy=False),
            call.active,
            hidden,
            cell,
            masks=masks,
            tape=None if reserve is None else reserve.tape,
        )
        result = to_output(result, call.storage_dtype)
        write_steps(y_memory, call.y, result, call.y.padding_fill)
        call.write(targets, final_states)
        if reserve is not None:
            reserve.finish(
                Reserve.FORWARD,
                weightSpace=checksum(*weight_arrays(network)),
                x=checksum(steps),
                hx=checksum(hidden),
                cx=checksum(cell),
                y=checksum(result),
            )

    return work


@emulates("cudnnRNNBackwardData_v8")
def backward_data(c_call: SimpleNamespace) -> Work:
    """`cudnnRNNBackwardData_v8`: compute dx, dhx and dcx, before the weights' gradients."""
    call = _RNNCall(c_call, is_backward=True)

    def work() -> None:
        y = call.steps("y", call.y)
        dy = call.steps("dy", call.y).astype(call.dtype, copy=False)
        hidden, cell = call.read_states("hx")
        state_gradients = call.read_states("dhy")
        network = call.network(call.weights("weightSpace"))
        dx_memory = call.view("dx", call.x.shape)
        targets = call.states("dhx")
        scratch = call.workspace()
        reserve = call.reserve()
        reserve.expect(
            Reserve.FORWARD,
            weightSpace=checksum(*weight_arrays(network)),
            y=checksum(y),
            hx=checksum(hidden),
            cx=checksum(cell),
        )

        scratch[:] = POISON_FREED
        reserve.begin()
        dx, *initial_gradients = equations.backward_data(
            network,
            call.active,
            dy,
            *state_gradients,
            hx=hidden,
            cx=cell,
            masks=reserve.masks,
            tape=reserve.tape,
        )
        write_steps(dx_memory, call.x, to_output(dx, call.storage_dtype), 0)
        call.write(targets, initial_gradients)
        reserve.finish(Reserve.BACKWARD_DATA)

    return work


@emulates("cudnnRNNBackwardWeights_v8")
def backward_weights(c_call: SimpleNamespace) -> Work:
    """`cudnnRNNBackwardWeights_v8`: add the gradients of the weights to `dweightSpace`."""
    if c_call.addGrad == WgradMode.SET:
        raise unsupported("addGrad=SET; allowed: ADD")
    if c_call.addGrad != WgradMode.ADD:
        raise bad_parameter(f"addGrad={c_call.addGrad}; allowed: ADD ({WgradMode.ADD.value})")
    # The C function has neither cx nor cDesc.
    c_call.cx = None
    call = _RNNCall(c_call, is_backward=True)

    def work() -> None:
        x, y = call.steps("x", call.x), call.steps("y", call.y)
        hidden, _ = call.read_states("hx")
        space = call.weights("dweightSpace")
        scratch = call.workspace()
        reserve = call.reserve()
        reserve.expect(Reserve.BACKWARD_DATA, x=checksum(x), y=checksum(y), hx=checksum(hidden))

        scratch[:] = POISON_FREED
        gradients = equations.backward_weights(
            call.network(None), call.active, hx=hidden, tape=reserve.tape
        )
        views = weight_views(call.spec, space)
        for part in weight_parts(call.spec):
            target = views[part.name]
            gates = gradients[part.layer][part.direction][part.field]
            assert gates is not None
            gradient = gates[part.rows(call.spec.gates)]
            call.write([target], [target.astype(call.dtype) + gradient])

    return work
