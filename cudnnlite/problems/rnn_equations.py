"""The equations of stacked RNN, LSTM and GRU layers as cuDNN defines them, in NumPy.

The emulated device computes with them.  In float64 they are the reference for a GPU's results.

- Sequences are ``(T, N, features)``.
- States are ``(layers * directions, N, features)``.  The index is ``layer * directions +
  direction``.
- All arrays have the dtype of the weights, float32 or float64.
- ``active[t, n]`` is ``t < lengths[n]``.  Values at other positions have no influence, even NaN.
  Results are 0 there.
- Gates are stacked in cuDNN's order: LSTM i, f, g (the new memory), o; GRU r, z, n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.enums import RNNDataLayout
from cudnnlite.problems.rnn_cells import CELLS, Array, States, StepInputs, clipped, split
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.rnn_weights import weight_parts

# Layer, direction and name of an array.
TapeKey = tuple[int, int, str]
# The arrays that a forward pass records for the backward pass.
Tape = Mapping[TapeKey, Array]


def _flat(a: Array) -> Array:
    """Return sequences as a matrix: a row for each step of each sequence."""
    return a.reshape(-1, a.shape[-1])


class CellWeights(NamedTuple):
    """The weights of one layer and direction, or their gradients.

    The order is that of `WeightPart.field`.  None stands for a part that the network does not have.
    """

    # (gates * hidden size, input size); None with skip input.
    input: Array | None
    # (gates * hidden size, output size)
    recurrent: Array
    # (gates * hidden size,)
    input_bias: Array | None
    # (gates * hidden size,)
    recurrent_bias: Array | None
    # (output size, hidden size)
    projection: Array | None


@dataclass(frozen=True)
class Network:
    """A network, and the arithmetic that computes it."""

    spec: RNNSpec
    # [layer][direction]
    weights: Sequence[Sequence[CellWeights]]
    # The product of two matrices.  It may round its operands.
    product: Callable[[Array, Array], Array] = np.matmul
    # Applied to every h.  It rounds where a device stores h in half precision.
    store: Callable[[Array], Array] = np.asarray


def network_of(spec: RNNSpec, values: dict[str, Array], dtype: Any = np.float64) -> Network:
    """Return a network that computes in a type, from its weights by name."""
    stacks: dict[tuple[int, int, int], list[Array]] = {}
    for part in weight_parts(spec):
        stacks.setdefault((part.layer, part.direction, part.field), []).append(values[part.name])

    def cell(layer: int, direction: int) -> CellWeights:
        parts: list[Any] = []
        for field in range(len(CellWeights._fields)):
            stack = stacks.get((layer, direction, field))
            parts.append(None if stack is None else np.concatenate(stack).astype(dtype))
        return CellWeights(*parts)

    layers, directions = range(spec.num_layers), range(spec.directions)
    return Network(spec, [[cell(layer, direction) for direction in directions] for layer in layers])


def active_steps(data: RNNDataSpec) -> Array:
    """Return an array (T, N) of bools: whether sequence n has step t."""
    return np.asarray(np.arange(data.max_length)[:, None] < data.lengths)


def sequence_major(values: Array, data: RNNDataSpec) -> Array:
    """Return a view with the axis of steps before that of sequences.

    `values` have the layout of `data`.  Packed values are returned unchanged.
    """
    if data.layout == RNNDataLayout.BATCH_MAJOR_UNPACKED:
        steps: Array = values.swapaxes(0, 1)
        return steps
    return values


def steps_of(values: Array, data: RNNDataSpec) -> Array:
    """Return sequences as a new array (T, N, vector), with zeros after the end of each.

    `values` have the layout of `data`, and vectors of any size.
    """
    values, active = sequence_major(values, data), active_steps(data)
    steps = np.zeros((*active.shape, values.shape[-1]), values.dtype)
    # Packed values have the order of `steps[active]`: step by step, and in a step by sequence.
    steps[active] = values if data.is_packed else values[active]
    return steps


def tape_shapes(spec: RNNSpec, steps: int, batch: int) -> dict[TapeKey, tuple[int, ...]]:
    """Return the shapes of the arrays of a tape, by layer, direction and name.

    A backward pass needs them besides the weights, hx and cx.  The directions of a layer share its
    input, which is at direction 0.  :func:`forward` writes all arrays but the gradients, which
    :func:`backward_data` writes for :func:`backward_weights`.
    """
    cell, hidden = CELLS[spec.cell], spec.hidden_size
    features = {
        "activations": cell.activation_parts * hidden,
        "gate_gradients": len(spec.gates) * hidden,
    }
    features.update(zip(cell.states, (spec.state_size, hidden), strict=False))
    if spec.projects:
        features["hidden_gradients"] = spec.state_size
    shapes: dict[TapeKey, tuple[int, ...]] = {}
    for layer in range(spec.num_layers):
        shapes[layer, 0, "input"] = (steps, batch, spec.layer_input_size(layer))
        for direction in range(spec.directions):
            shapes |= {
                (layer, direction, name): (steps, batch, size) for name, size in features.items()
            }
    return shapes


@np.errstate(all="ignore")
def forward(
    network: Network,
    x: Array,
    active: Array,
    hx: Array | None = None,
    cx: Array | None = None,
    *,
    masks: Sequence[Array] | None = None,
    tape: Tape | None = None,
) -> tuple[Array, Array, Array | None]:
    """Run all layers over a batch of sequences, and return y, hy and cy.

    Parameters
    ----------
    network : Network
        The network.
    x : array
        ``(T, N, input size)``.
    active : array of bool
        ``(T, N)``.
    hx, cx : array, optional
        The initial states of every direction, each at its own end of the sequence; zeros if not
        given.
    masks : sequence of array, optional
        Dropout: ``masks[k - 1]``, ``(T, N, directions * output size)``, multiplies the input of
        layer k.
    tape : mapping, optional
        Arrays of :func:`tape_shapes`, overwritten; a backward pass needs it.

    Returns
    -------
    tuple
        y, ``(T, N, directions * output size)``; hy; cy, or None if the cell has no such state.
    """
    spec, inactive, y = network.spec, _inactive(active), x
    initial = _initial_states(spec, x, hx, cx)
    final = [np.empty_like(state) for state in initial]
    shapes = tape_shapes(spec, *x.shape[:2])
    for layer in range(spec.num_layers):
        # Without a tape each layer has arrays of its own, which are freed after the next layer.
        layer_tape = tape or {
            key: np.empty(shape, x.dtype) for key, shape in shapes.items() if key[0] == layer
        }
        layer_input = layer_tape[layer, 0, "input"]
        layer_input[...] = y if masks is None or layer == 0 else y * masks[layer - 1]
        _clear(layer_input, inactive)
        directions = [
            _Direction(network, layer, index, inactive, layer_tape)
            for index in range(spec.directions)
        ]
        for direction in directions:
            direction.write_states(final, direction.forward(direction.states_of(initial)))
        y = np.concatenate([direction.histories[0] for direction in directions], axis=-1)
    return y, final[0], final[1] if len(final) > 1 else None


@np.errstate(all="ignore")
def backward_data(
    network: Network,
    active: Array,
    dy: Array,
    dhy: Array | None = None,
    dcy: Array | None = None,
    *,
    hx: Array | None = None,
    cx: Array | None = None,
    masks: Sequence[Array] | None = None,
    tape: Tape,
) -> tuple[Array, Array, Array | None]:
    """Return the gradients of x, hx and cx; the last is None if the cell has no c.

    `dy`, `dhy` and `dcy` are the gradients of y, hy and cy; the last two are zeros if not given.
    The other arguments are those of :func:`forward`.  The gradients in `tape` are overwritten.
    """
    spec, inactive = network.spec, _inactive(active)
    initial = _initial_states(spec, dy, hx, cx)
    gradients = [state.copy() for state in _initial_states(spec, dy, dhy, dcy)]
    for layer in reversed(range(spec.num_layers)):
        dx = np.zeros_like(tape[layer, 0, "input"])
        for index, direction_dy in enumerate(split(dy, spec.directions)):
            direction = _Direction(network, layer, index, inactive, tape)
            state_gradients = direction.backward(
                direction.states_of(initial), direction_dy, direction.states_of(gradients)
            )
            direction.write_states(gradients, state_gradients)
            dgates, weights = direction.dgates, direction.weights.input
            if weights is None:
                dx += sum(split(dgates, len(spec.gates)))
            else:
                dx += network.product(_flat(dgates), weights).reshape(dx.shape)
        if masks is not None and layer > 0:
            dx *= masks[layer - 1]
        dy = dx
    _clear(dx, inactive)  # infinite weights make NaN of zeros
    return dx, gradients[0], gradients[1] if len(gradients) > 1 else None


@np.errstate(all="ignore")
def backward_weights(
    network: Network, active: Array, *, hx: Array | None = None, tape: Tape
) -> list[list[CellWeights]]:
    """Return the gradients of the weights, in the structure of ``network.weights``.

    :func:`backward_data` must have written the gradients in `tape` before.
    """
    spec, inactive = network.spec, _inactive(active)
    initial = _initial_states(spec, tape[0, 0, "input"], hx)

    def gradients(layer: int, index: int) -> CellWeights:
        direction = _Direction(network, layer, index, inactive, tape)
        hidden, *_ = direction.states_of(initial)
        return direction.weight_gradients(hidden)

    return [
        [gradients(layer, index) for index in range(spec.directions)]
        for layer in range(spec.num_layers)
    ]


class _Direction:
    """The computation of one direction of one layer.

    :meth:`states_of` and :meth:`write_states` take the states of the whole network.  All other
    methods take those of this direction.
    """

    def __init__(
        self, network: Network, layer: int, direction: int, inactive: Array | None, tape: Tape
    ) -> None:
        self.network = network
        self.weights = network.weights[layer][direction]
        self.inactive = inactive
        self.cell = CELLS[network.spec.cell]
        # An LSTM's c is clipped where it is read.  cy is not clipped, as on an H200.
        self.clip = network.spec.clip_in_effect
        self.tape = {
            name: array for (*key, name), array in tape.items() if key == [layer, direction]
        }
        self.x = tape[layer, 0, "input"]
        self.activations = self.tape["activations"]
        self.dgates = self.tape["gate_gradients"]
        # The states after each step.
        self.histories = [self.tape[name] for name in self.cell.states]
        # The steps in the order in which this direction takes them.
        self.order = slice(None, None, -1 if direction else 1)
        self.index = layer * network.spec.directions + direction

    def states_of(self, network_states: States) -> States:
        """Return views of this direction's part of the network's states."""
        return [state[self.index] for state in network_states]

    def write_states(self, network_states: States, values: States) -> None:
        """Write this direction's part of the network's states."""
        for target, value in zip(self.states_of(network_states), values, strict=True):
            target[...] = value

    def forward(self, states: States) -> States:
        """Return the states after the last step, from the initial ones."""
        network, weights, x = self.network, self.weights, self.x
        activations = self.activations
        gates = activations[..., : len(weights.recurrent)]
        if weights.input is None:
            gates[...] = np.tile(x, len(network.spec.gates))
        else:
            gates[...] = network.product(_flat(x), weights.input.T).reshape(gates.shape)
        if weights.input_bias is not None:
            gates += weights.input_bias
        for t in range(len(x))[self.order]:
            recurrent = network.product(states[0], weights.recurrent.T)
            if weights.recurrent_bias is not None:
                recurrent += weights.recurrent_bias
            h, *rest = self.cell.forward(activations[t], recurrent, states, self.clip)
            if weights.projection is not None:
                h = network.product(h, weights.projection.T)
            states = self._update_active(t, states, [network.store(h), *rest])
            for history, state in zip(self.histories, states, strict=True):
                history[t] = state
        # An infinity at an inactive step, times a gradient of zero, would be NaN.
        for array in (activations, *self.histories):
            _clear(array, self.inactive)
        return states

    def backward(self, initial: States, dy: Array, gradients: States) -> States:
        """Return the gradients of the initial states."""
        network, weights, cell = self.network, self.weights, self.cell
        activations, dgates = self.activations, self.dgates
        old_histories = [
            self._states_before(history, state)
            for history, state in zip(self.histories, initial, strict=True)
        ]
        for t in reversed(range(len(dy))[self.order]):
            dh, *rest = gradients
            dh = dh + dy[t]
            if weights.projection is not None:
                self.tape["hidden_gradients"][t] = dh
                dh = network.product(dh, weights.projection)
            inputs = StepInputs(
                activations[t],
                old_states=[history[t] for history in old_histories],
                new_states=[history[t] for history in self.histories],
                gradients=[dh, *rest],
                clip=self.clip,
            )
            dh_direct, *rest = cell.backward(inputs, out=dgates[t])
            drecurrent = cell.recurrent(activations[t], dgates[t])
            dh_recurrent = network.product(drecurrent, weights.recurrent)
            gradients = self._update_active(t, gradients, [dh_direct + dh_recurrent, *rest])
        _clear(dgates, self.inactive)
        if weights.projection is not None:
            _clear(self.tape["hidden_gradients"], self.inactive)
        return gradients

    def weight_gradients(self, initial: Array) -> CellWeights:
        """Return the gradients of the weights; `initial` is the initial h."""
        weights, product = self.weights, self.network.product
        dinput = _flat(self.dgates)
        drecurrent = _flat(self.cell.recurrent(self.activations, self.dgates))
        projection = None
        if weights.projection is not None:
            # Only an LSTM projects: o * tanh(c) is h before its projection.
            *_, o = split(self.activations, 4)
            unprojected = o * np.tanh(clipped(self.histories[1], self.clip))
            projection = product(_flat(self.tape["hidden_gradients"]).T, _flat(unprojected))
        return CellWeights(
            None if weights.input is None else product(dinput.T, _flat(self.x)),
            product(drecurrent.T, _flat(self._states_before(self.histories[0], initial))),
            None if weights.input_bias is None else dinput.sum(axis=0),
            None if weights.recurrent_bias is None else drecurrent.sum(axis=0),
            projection,
        )

    def _update_active(self, t: int, old: States, new: States) -> States:
        """Return the new states of sequences that have step `t`, and the old states of others."""
        if self.inactive is None:
            return new
        is_inactive = self.inactive[t, :, None]
        return [
            np.where(is_inactive, old_state, new_state)
            for old_state, new_state in zip(old, new, strict=True)
        ]

    def _states_before(self, history: Array, initial: Array) -> Array:
        """Return the states before each step from those after it; zeros at inactive steps."""
        states = np.empty_like(history)
        previous = history[self.order][:-1]
        if self.inactive is not None:
            # The reverse direction of a short sequence starts after some inactive steps.
            previous = np.where(self.inactive[self.order][:-1, :, None], initial, previous)
        states_in_order = states[self.order]
        states_in_order[0] = initial
        states_in_order[1:] = previous
        _clear(states, self.inactive)
        return states


def _inactive(active: Array) -> Array | None:
    """Return where sequences have no step; None if all sequences have all steps."""
    return None if active.all() else ~active


def _clear(array: Array, inactive: Array | None) -> None:
    """Write zeros at inactive steps."""
    if inactive is not None:
        array[inactive] = 0


def _initial_states(
    spec: RNNSpec, sequences: Array, h: Array | None, c: Array | None = None
) -> States:
    """Return the states that the cell has, with zeros for None.

    The batch size and the dtype are those of `sequences`.
    """
    batch = sequences.shape[1]
    states = [np.zeros(spec.hidden_shape(batch), sequences.dtype) if h is None else h]
    if "cell" in CELLS[spec.cell].states:
        states.append(np.zeros(spec.cell_shape(batch), sequences.dtype) if c is None else c)
    return states
