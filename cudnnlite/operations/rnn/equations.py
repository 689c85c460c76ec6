"""The equations of stacked RNN, LSTM and GRU layers as cuDNN defines them, forward and backward, in plain NumPy.

They are the numerics of the emulated device, and in float64 what results of a GPU are compared with. Throughout,

- sequences are ``(T, N, features)``; states are ``(layers * directions, N, features)``, at ``layer * directions +
  direction``; all have the dtype of the weights, float32 or float64;
- ``active[t, n]`` is ``t < lengths[n]``. What lies at other positions, be it NaN, influences nothing; results are 0 there;
- gates are stacked in cuDNN's order: LSTM i, f, g (the new memory), o; GRU r, z, n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cudnnlite._raw.enums import RNNInputMode, RNNMode
from cudnnlite.operations.rnn.cells import CELLS, Array, Clip, Now, States, clipped, split
from cudnnlite.specs import RNNSpec
from cudnnlite.specs.rnn_weights import DIRECTIONS

TapeKey = tuple[int, int, str]  # layer, direction, name
Tape = Mapping[TapeKey, Array]


def _flat(a: Array) -> Array:
    return a.reshape(-1, a.shape[-1])


class CellWeights(NamedTuple):
    """Weights of one layer and direction, or their gradients; None is a part that does not exist."""

    input: Array | None  # (gates * hidden size, input size); None: skip input
    recurrent: Array  # (gates * hidden size, output size)
    input_bias: Array | None  # (gates * hidden size,)
    recurrent_bias: Array | None  # (gates * hidden size,)
    projection: Array | None  # (output size, hidden size)


@dataclass(frozen=True)
class NetworkShape:
    """What is known of a network without its weights."""

    cell: RNNMode
    input_size: int
    hidden_size: int
    output_size: int  # projection size, or hidden size
    num_layers: int
    directions: int
    projected: bool = False  # LSTM only
    skip_input: bool = False  # layer 0 adds x to every gate as it is: its weights have no input

    @property
    def gates(self) -> int:
        """Gates of a cell: 1, 4 (LSTM) or 3 (GRU)."""
        return CELLS[self.cell].gates

    def layer_input_size(self, layer: int) -> int:
        """Features of what `layer` reads."""
        return self.directions * self.output_size if layer else self.input_size


def network_shape(spec: RNNSpec) -> NetworkShape:
    """Return what the equations know of a network."""
    return NetworkShape(
        spec.cell, spec.input_size, spec.hidden_size, spec.state_size, spec.num_layers, spec.directions,
        projected=spec.projects, skip_input=spec.input_mode == RNNInputMode.SKIP,
    )  # fmt: skip


@dataclass(frozen=True)
class Network:
    """A network, and the arithmetic it is computed in."""

    shape: NetworkShape
    weights: Sequence[Sequence[CellWeights]]  # [layer][direction]
    clip: Clip | None = None  # of an LSTM's c where it is read; cy is not clipped (as an H200 does it)
    product: Callable[[Array, Array], Array] = np.matmul  # of two matrices; may round its operands
    store: Callable[[Array], Array] = np.asarray  # rounds every h as a device does that keeps it in half precision


def network_of(spec: RNNSpec, values: dict[str, Array], dtype: Any = np.float64) -> Network:
    """Return the equations of a network, in a type, with its weights by name."""

    def stacked(names: str) -> Any:
        there = [values[name] for name in dict.fromkeys(map(names.format, spec.gates)) if name in values]
        return np.concatenate(there).astype(dtype) if there else None

    def cell(where: str) -> CellWeights:
        # in the order of the fields
        parts = ("input.{}", "recurrent.{}", "input.{}.bias", "recurrent.{}.bias", "projection")
        return CellWeights(*(stacked(f"{where}.{part}") for part in parts))

    directions = DIRECTIONS[: spec.directions]
    layers = [[cell(f"layer{layer}.{direction}") for direction in directions] for layer in range(spec.num_layers)]
    return Network(network_shape(spec), layers, clip=spec.clip_in_effect)


def tape_shapes(shape: NetworkShape, steps: int, batch: int) -> dict[TapeKey, tuple[int, ...]]:
    """Arrays that backward needs besides the weights, hx and cx, by layer, direction and name.

    The directions of a layer share its input, at direction 0. :func:`forward` writes all arrays but the gradients;
    :func:`backward_data` writes these for :func:`backward_weights`.
    """
    cell, hidden = CELLS[shape.cell], shape.hidden_size
    features = {"kept": cell.kept * hidden, "gate_gradients": cell.gates * hidden}
    features.update(zip(cell.states, (shape.output_size, hidden), strict=False))
    if shape.projected:
        features["hidden_gradients"] = shape.output_size
    shapes: dict[TapeKey, tuple[int, ...]] = {}
    for layer in range(shape.num_layers):
        shapes[layer, 0, "input"] = (steps, batch, shape.layer_input_size(layer))
        for direction in range(shape.directions):
            shapes |= {(layer, direction, name): (steps, batch, size) for name, size in features.items()}
    return shapes


@np.errstate(all="ignore")
def forward(
    network: Network, x: Array, active: Array, hx: Array | None = None, cx: Array | None = None, *,
    masks: Sequence[Array] | None = None, tape: Tape | None = None,
) -> tuple[Array, Array, Array | None]:  # fmt: skip
    """Run all layers over a batch of sequences: x is ``(T, N, input size)``, `active` ``(T, N)``.

    `hx`, `cx` are what every direction starts from, at its own end of the sequence; zeros without them.  Of dropout,
    ``masks[k - 1]``, ``(T, N, directions * output size)``, multiplies the input of layer k.  For a backward pass `tape` has
    arrays of :func:`tape_shapes`, overwritten.  Returns y, ``(T, N, directions * output size)``; hy; cy, None if the cell has
    no such state.
    """
    shape, off, y = network.shape, _inactive(active), x
    initial = _states(shape, x, hx, cx)
    final = [np.empty_like(s) for s in initial]
    shapes = tape_shapes(shape, *x.shape[:2])
    for layer in range(shape.num_layers):
        # without a tape the memory of a layer is free again after the next one
        part = tape or {key: np.empty(size, x.dtype) for key, size in shapes.items() if key[0] == layer}
        part[layer, 0, "input"][...] = y if masks is None or layer == 0 else y * masks[layer - 1]
        _clear(part[layer, 0, "input"], off)
        directions = [_Direction(network, layer, direction, off, part) for direction in range(shape.directions)]
        for one in directions:
            one.set(final, one.forward(one.at(initial)))
        y = np.concatenate([one.histories[0] for one in directions], axis=-1)
    return y, final[0], final[1] if len(final) > 1 else None


@np.errstate(all="ignore")
def backward_data(
    network: Network, active: Array, dy: Array, dhy: Array | None = None, dcy: Array | None = None, *,
    hx: Array | None = None, cx: Array | None = None, masks: Sequence[Array] | None = None, tape: Tape,
) -> tuple[Array, Array, Array | None]:  # fmt: skip
    """Gradients of x, hx and cx (None if there is no c) from those of y, hy and cy, which are zeros where left out.

    The rest is what :func:`forward` was given; the gradients in `tape` are overwritten.
    """
    shape, off = network.shape, _inactive(active)
    initial = _states(shape, dy, hx, cx)
    gradients = [s.copy() for s in _states(shape, dy, dhy, dcy)]
    for layer in reversed(range(shape.num_layers)):
        dx = np.zeros_like(tape[layer, 0, "input"])
        for direction, part in enumerate(split(dy, shape.directions)):
            one = _Direction(network, layer, direction, off, tape)
            one.set(gradients, one.backward(one.at(initial), part, one.at(gradients)))
            if one.weights.input is None:
                dx += sum(split(one.dgates, shape.gates))
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
    """Gradients of the weights, structured as these are; `tape` has been through :func:`backward_data`."""
    shape, off = network.shape, _inactive(active)
    initial = _states(shape, tape[0, 0, "input"], hx)
    layers, directions = range(shape.num_layers), range(shape.directions)
    each = [[_Direction(network, layer, direction, off, tape) for direction in directions] for layer in layers]
    return [[one.weight_gradients(one.at(initial)[0]) for one in layer] for layer in each]


class _Direction:
    """One direction of one layer at work; states are those of this one, but for :meth:`at` and :meth:`set`."""

    def __init__(self, network: Network, layer: int, direction: int, off: Array | None, tape: Tape) -> None:
        self.network, self.weights, self.off = network, network.weights[layer][direction], off
        self.cell = CELLS[network.shape.cell]
        self.tape = {name: array for (*key, name), array in tape.items() if key == [layer, direction]}
        self.x, self.kept, self.dgates = tape[layer, 0, "input"], self.tape["kept"], self.tape["gate_gradients"]
        self.histories = [self.tape[name] for name in self.cell.states]
        self.order = slice(None, None, -1 if direction else 1)
        self.index = layer * network.shape.directions + direction

    def at(self, states: States) -> States:
        """Of states of the whole network the views that belong here."""
        return [s[self.index] for s in states]

    def set(self, states: States, values: States) -> None:
        for target, value in zip(self.at(states), values, strict=True):
            target[...] = value

    def forward(self, states: States) -> States:
        """Return the states at the end."""
        network, weights, cell, kept, x = self.network, self.weights, self.cell, self.kept, self.x
        gates = kept[..., : cell.gates * network.shape.hidden_size]
        if weights.input is None:
            gates[...] = np.tile(x, cell.gates)
        else:
            gates[...] = network.product(_flat(x), weights.input.T).reshape(gates.shape)
        if weights.input_bias is not None:
            gates += weights.input_bias
        for t in range(len(x))[self.order]:
            recurrent = network.product(states[0], weights.recurrent.T)
            if weights.recurrent_bias is not None:
                recurrent += weights.recurrent_bias
            h, *rest = cell.forward(kept[t], recurrent, states, network.clip)
            if weights.projection is not None:
                h = network.product(h, weights.projection.T)
            states = self._choose(t, states, [network.store(h), *rest])
            for history, state in zip(self.histories, states, strict=True):
                history[t] = state
        for written in (kept, *self.histories):
            _clear(written, self.off)  # an infinity there, times a gradient of zero, would be NaN
        return states

    def backward(self, initial: States, dy: Array, gradients: States) -> States:
        """Return the gradients of the initial states."""
        network, weights, cell, kept, dgates = self.network, self.weights, self.cell, self.kept, self.dgates
        before = [self._before(*pair) for pair in zip(self.histories, initial, strict=True)]
        for t in reversed(range(len(dy))[self.order]):
            dh, *rest = gradients
            dh = dh + dy[t]
            if weights.projection is not None:
                self.tape["hidden_gradients"][t] = dh
                dh = network.product(dh, weights.projection)
            now = Now(kept[t], [a[t] for a in before], [a[t] for a in self.histories], [dh, *rest], network.clip)
            direct, *rest = cell.backward(now, out=dgates[t])
            through = network.product(cell.recurrent(kept[t], dgates[t]), weights.recurrent)
            gradients = self._choose(t, gradients, [direct + through, *rest])
        _clear(dgates, self.off)
        if weights.projection is not None:
            _clear(self.tape["hidden_gradients"], self.off)
        return gradients

    def weight_gradients(self, initial: Array) -> CellWeights:
        weights, product, dinput = self.weights, self.network.product, _flat(self.dgates)
        drecurrent = _flat(self.cell.recurrent(self.kept, self.dgates))
        projection = None
        if weights.projection is not None:
            unprojected = split(self.kept, 4)[3] * np.tanh(clipped(self.histories[1], self.network.clip))
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


def _states(shape: NetworkShape, like: Array, *given: Array | None) -> States:
    """Return the `given` states that the cell has, zeros for None, for sequences `like` these."""
    sizes = (shape.output_size, shape.hidden_size)[: len(CELLS[shape.cell].states)]
    leading = (shape.num_layers * shape.directions, like.shape[1])
    return [np.zeros((*leading, n), like.dtype) if s is None else s for s, n in zip(given, sizes, strict=False)]
