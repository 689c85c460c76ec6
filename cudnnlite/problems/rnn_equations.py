"""The equations of stacked RNN, LSTM and GRU layers as cuDNN defines them, in NumPy.

They are the numerics of the emulated device, and in float64 what results of a GPU are compared
with. Throughout,

- sequences are ``(T, N, features)``;
- states are ``(layers * directions, N, features)``, at ``layer * directions + direction``;
- all have the dtype of the weights, float32 or float64;
- ``active[t, n]`` is ``t < lengths[n]``.  Values at other positions, NaN too, are not used; results
  are 0 there;
- gates are stacked in cuDNN's order: LSTM i, f, g (the new memory), o; GRU r, z, n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.enums import RNNDataLayout
from cudnnlite.problems.rnn_cells import CELLS, Array, Now, States, clipped, split
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.rnn_weights import weight_parts

TapeKey = tuple[int, int, str]  # layer, direction, name
Tape = Mapping[TapeKey, Array]


def _flat(a: Array) -> Array:
    return a.reshape(-1, a.shape[-1])


class CellWeights(NamedTuple):
    """Weights of one layer and direction, or their gradients.

    In the order of `WeightPart.field`; None for a part that there is not.
    """

    input: Array | None  # (gates * hidden size, input size); None: skip input
    recurrent: Array  # (gates * hidden size, output size)
    input_bias: Array | None  # (gates * hidden size,)
    recurrent_bias: Array | None  # (gates * hidden size,)
    projection: Array | None  # (output size, hidden size)


@dataclass(frozen=True)
class Network:
    """A network, and the arithmetic it is computed in."""

    spec: RNNSpec
    weights: Sequence[Sequence[CellWeights]]  # [layer][direction]
    product: Callable[[Array, Array], Array] = np.matmul  # of two matrices; may round its operands
    store: Callable[[Array], Array] = (
        np.asarray
    )  # rounds every h as a device does that keeps it in half precision


def network_of(spec: RNNSpec, values: dict[str, Array], dtype: Any = np.float64) -> Network:
    """Return the equations of a network, in a type, with its weights by name."""
    stacks: dict[tuple[int, int, int], list[Array]] = {}
    for part in weight_parts(spec):
        stacks.setdefault((part.layer, part.direction, part.field), []).append(values[part.name])

    def cell(layer: int, direction: int) -> CellWeights:
        there = (stacks.get((layer, direction, field)) for field in range(len(CellWeights._fields)))
        parts: list[Any] = [
            None if stack is None else np.concatenate(stack).astype(dtype) for stack in there
        ]
        return CellWeights(*parts)

    layers, directions = range(spec.num_layers), range(spec.directions)
    return Network(spec, [[cell(layer, direction) for direction in directions] for layer in layers])


def active_steps(data: RNNDataSpec) -> Array:
    """Return (T, N): whether a sequence has a step."""
    return np.asarray(np.arange(data.max_length)[:, None] < data.lengths)


def sequence_major(values: Array, data: RNNDataSpec) -> Array:
    """Return values with the steps before the sequences, as a view; packed values as they are."""
    return values.swapaxes(0, 1) if data.layout == RNNDataLayout.BATCH_MAJOR_UNPACKED else values


def steps_of(values: Array, data: RNNDataSpec) -> Array:
    """Return sequences as a new ``(T, N, vector)``, with zeros beyond their ends.

    `values` have the layout of `data`; their vectors may have any size.
    """
    values, active = sequence_major(values, data), active_steps(data)
    steps = np.zeros((*active.shape, values.shape[-1]), values.dtype)
    # packed sequences, too, go through the steps, and within a step through the sequences
    steps[active] = values if data.is_packed else values[active]
    return steps


def tape_shapes(spec: RNNSpec, steps: int, batch: int) -> dict[TapeKey, tuple[int, ...]]:
    """Arrays that backward needs besides the weights, hx and cx, by layer, direction and name.

    The directions of a layer share its input, at direction 0. :func:`forward` writes all arrays but
    the gradients; :func:`backward_data` writes these for :func:`backward_weights`.
    """
    cell, hidden = CELLS[spec.cell], spec.hidden_size
    features = {"saved": cell.saved * hidden, "gate_gradients": len(spec.gates) * hidden}
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
    """Run all layers over a batch of sequences: x is ``(T, N, input size)``, `active` ``(T, N)``.

    `hx`, `cx` are what every direction starts from, at its own end of the sequence; zeros without
    them.  Of dropout, ``masks[k - 1]``, ``(T, N, directions * output size)``, multiplies the input
    of layer k.  For a backward pass `tape` has arrays of :func:`tape_shapes`, overwritten.  Returns
    y, ``(T, N, directions * output size)``; hy; cy, None if the cell has no such state.
    """
    spec, off, y = network.spec, _inactive(active), x
    initial = _states(spec, x, hx, cx)
    final = [np.empty_like(s) for s in initial]
    shapes = tape_shapes(spec, *x.shape[:2])
    for layer in range(spec.num_layers):
        # without a tape the memory of a layer is free again after the next one
        part = tape or {
            key: np.empty(size, x.dtype) for key, size in shapes.items() if key[0] == layer
        }
        part[layer, 0, "input"][...] = y if masks is None or layer == 0 else y * masks[layer - 1]
        _clear(part[layer, 0, "input"], off)
        directions = [
            _Direction(network, layer, direction, off, part) for direction in range(spec.directions)
        ]
        for one in directions:
            one.set(final, one.forward(one.at(initial)))
        y = np.concatenate([one.histories[0] for one in directions], axis=-1)
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
    """Return the gradients of x, hx and cx, from those of y, hy and cy.

    That of cx is None if the cell has no c.  Gradients that are left out are zeros.  The other
    arguments are those of :func:`forward`; the gradients in `tape` are overwritten.
    """
    spec, off = network.spec, _inactive(active)
    initial = _states(spec, dy, hx, cx)
    gradients = [s.copy() for s in _states(spec, dy, dhy, dcy)]
    for layer in reversed(range(spec.num_layers)):
        dx = np.zeros_like(tape[layer, 0, "input"])
        for direction, part in enumerate(split(dy, spec.directions)):
            one = _Direction(network, layer, direction, off, tape)
            one.set(gradients, one.backward(one.at(initial), part, one.at(gradients)))
            if one.weights.input is None:
                dx += sum(split(one.dgates, len(spec.gates)))
            else:
                dx += network.product(_flat(one.dgates), one.weights.input).reshape(dx.shape)
        if masks is not None and layer > 0:
            dx *= masks[layer - 1]
        dy = dx
    _clear(dx, off)  # weights may be infinite
    return dx, gradients[0], gradients[1] if len(gradients) > 1 else None


@np.errstate(all="ignore")
def backward_weights(
    network: Network, active: Array, *, hx: Array | None = None, tape: Tape
) -> list[list[CellWeights]]:
    """Return the gradients of the weights, in the same lists; after :func:`backward_data`."""
    spec, off = network.spec, _inactive(active)
    initial = _states(spec, tape[0, 0, "input"], hx)
    layers, directions = range(spec.num_layers), range(spec.directions)
    each = [
        [_Direction(network, layer, direction, off, tape) for direction in directions]
        for layer in layers
    ]
    return [[one.weight_gradients(one.at(initial)[0]) for one in layer] for layer in each]


class _Direction:
    """One direction of one layer at work.

    States are its own, but in :meth:`at` and :meth:`set`, which take those of all layers.
    """

    def __init__(
        self, network: Network, layer: int, direction: int, off: Array | None, tape: Tape
    ) -> None:
        self.network, self.weights, self.off = network, network.weights[layer][direction], off
        self.cell = CELLS[network.spec.cell]
        # of an LSTM's c where it is read; cy is not clipped (as an H200 does it)
        self.clip = network.spec.clip_in_effect
        self.tape = {
            name: array for (*key, name), array in tape.items() if key == [layer, direction]
        }
        self.x, self.saved, self.dgates = (
            tape[layer, 0, "input"],
            self.tape["saved"],
            self.tape["gate_gradients"],
        )
        self.histories = [self.tape[name] for name in self.cell.states]
        self.order = slice(None, None, -1 if direction else 1)
        self.index = layer * network.spec.directions + direction

    def at(self, states: States) -> States:
        """Of states of the whole network the views that belong here."""
        return [s[self.index] for s in states]

    def set(self, states: States, values: States) -> None:
        for target, value in zip(self.at(states), values, strict=True):
            target[...] = value

    def forward(self, states: States) -> States:
        """Return the states at the end."""
        network, weights, cell, saved, x = self.network, self.weights, self.cell, self.saved, self.x
        gates = saved[..., : len(weights.recurrent)]
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
            h, *rest = cell.forward(saved[t], recurrent, states, self.clip)
            if weights.projection is not None:
                h = network.product(h, weights.projection.T)
            states = self._choose(t, states, [network.store(h), *rest])
            for history, state in zip(self.histories, states, strict=True):
                history[t] = state
        for written in (saved, *self.histories):
            _clear(written, self.off)  # an infinity there, times a gradient of zero, would be NaN
        return states

    def backward(self, initial: States, dy: Array, gradients: States) -> States:
        """Return the gradients of the initial states."""
        network, weights, cell, saved, dgates = (
            self.network,
            self.weights,
            self.cell,
            self.saved,
            self.dgates,
        )
        before = [self._before(*pair) for pair in zip(self.histories, initial, strict=True)]
        for t in reversed(range(len(dy))[self.order]):
            dh, *rest = gradients
            dh = dh + dy[t]
            if weights.projection is not None:
                self.tape["hidden_gradients"][t] = dh
                dh = network.product(dh, weights.projection)
            now = Now(
                saved[t],
                [a[t] for a in before],
                [a[t] for a in self.histories],
                [dh, *rest],
                self.clip,
            )
            direct, *rest = cell.backward(now, out=dgates[t])
            through = network.product(cell.recurrent(saved[t], dgates[t]), weights.recurrent)
            gradients = self._choose(t, gradients, [direct + through, *rest])
        _clear(dgates, self.off)
        if weights.projection is not None:
            _clear(self.tape["hidden_gradients"], self.off)
        return gradients

    def weight_gradients(self, initial: Array) -> CellWeights:
        weights, product, dinput = self.weights, self.network.product, _flat(self.dgates)
        drecurrent = _flat(self.cell.recurrent(self.saved, self.dgates))
        projection = None
        if weights.projection is not None:
            unprojected = split(self.saved, 4)[3] * np.tanh(clipped(self.histories[1], self.clip))
            projection = product(_flat(self.tape["hidden_gradients"]).T, _flat(unprojected))
        return CellWeights(
            None if weights.input is None else product(dinput.T, _flat(self.x)),
            product(drecurrent.T, _flat(self._before(self.histories[0], initial))),
            None if weights.input_bias is None else dinput.sum(axis=0),
            None if weights.recurrent_bias is None else drecurrent.sum(axis=0),
            projection,
        )

    def _choose(self, t: int, old: States, new: States) -> States:
        """Keep the `old` states of sequences that step `t` is not part of."""
        if self.off is None:
            return new
        return [np.where(self.off[t, :, None], a, b) for a, b in zip(old, new, strict=True)]

    def _before(self, history: Array, initial: Array) -> Array:
        """States before each step from those after it; zeros where there is no step."""
        before = np.empty_like(history)
        previous = history[self.order][:-1]
        if self.off is not None:  # the backward direction of a short sequence starts late
            previous = np.where(self.off[self.order][:-1, :, None], initial, previous)
        before[self.order][0], before[self.order][1:] = initial, previous
        _clear(before, self.off)
        return before


def _inactive(active: Array) -> Array | None:
    return None if active.all() else ~active


def _clear(a: Array, off: Array | None) -> None:
    if off is not None:
        a[off] = 0


def _states(spec: RNNSpec, like: Array, *given: Array | None) -> States:
    """Return the `given` states that the cell has, zeros for None, for sequences `like` these."""
    shapes = (spec.hidden_shape(like.shape[1]), spec.cell_shape(like.shape[1]))[
        : len(CELLS[spec.cell].states)
    ]
    return [
        np.zeros(shape, like.dtype) if s is None else s
        for s, shape in zip(given, shapes, strict=False)
    ]
