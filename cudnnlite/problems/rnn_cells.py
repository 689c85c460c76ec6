"""One step of each kind of recurrent cell, forward and backward, in NumPy.

The matrix products are in `rnn_equations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cudnnlite._raw.enums import RNNMode

Array = NDArray[Any]
# The states of one layer and direction: h, and for an LSTM c.
States = Sequence[Array]
Clip = tuple[float, float]
Elementwise = Callable[[Array], Array]


def split(a: Array, count: int) -> list[Array]:
    """Return views of equal parts of the last axis."""
    return list(np.split(a, count, axis=-1))


def _sigmoid(a: Array) -> Array:
    """Return the logistic function.

    Where ``exp(-a)`` overflows, 1 / infinity is still the right result.  The negation is not in
    place: ``np.negative(a, out=a)`` of NumPy 2.4 negates the wrong values of a strided view, such
    as the gates of a cell with hidden size 1.
    """
    return np.asarray(1 / (1 + np.exp(-a)))


def _sigmoid_slope(s: Array) -> Array:
    """Return the derivative of the logistic function where it has the value `s`."""
    return np.asarray(s * (1 - s))


def _tanh_slope(t: Array) -> Array:
    """Return the derivative of tanh where it has the value `t`."""
    return np.asarray(1 - t * t)


class StepInputs(NamedTuple):
    """The inputs of a backward step of a cell."""

    # The activations that the forward step wrote.
    activations: Array
    # The states before the step.
    old_states: States
    # The states after the step.
    new_states: States
    # The gradients of `new_states`.
    gradients: States
    clip: Clip | None


class Cell:
    """One step of a kind of cell, without its matrix products.

    The base class is the cell with a single gate, ``activate(W x + R h + biases)``.
    """

    # The width of `activations` in multiples of the hidden size: the gates, and whatever else a
    # backward step needs.
    activation_parts = 1
    states: tuple[str, ...] = ("hidden",)

    def __init__(self, activate: Elementwise = np.tanh, slope: Elementwise = _tanh_slope) -> None:
        self._activate, self._slope = activate, slope

    def forward(
        self, activations: Array, recurrent: Array, states: States, clip: Clip | None
    ) -> States:
        """Return the next states, and write the activations.

        On entry the gates of `activations` hold ``W x + b_W``; `recurrent` is ``R h + b_R``.
        """
        activations[...] = self._activate(activations + recurrent)
        return [activations]

    def backward(self, inputs: StepInputs, out: Array) -> list[Array]:
        """Return the gradients of the states before the step.

        The gradients of the gates' input terms are written to `out`.  The part of h's gradient that
        goes through the matrix R is not included.
        """
        np.multiply(inputs.gradients[0], self._slope(inputs.activations), out=out)
        return [np.zeros_like(out)]

    def recurrent(self, activations: Array, dgates: Array) -> Array:
        """Return the gradients of the gates' recurrent terms from those of their input terms."""
        return dgates


class _Lstm(Cell):
    activation_parts = 4
    states = ("hidden", "cell")

    def forward(
        self, activations: Array, recurrent: Array, states: States, clip: Clip | None
    ) -> States:
        activations += recurrent
        i, f, g, o = split(activations, 4)
        g[...] = np.tanh(g)
        for gate in (i, f, o):
            gate[...] = _sigmoid(gate)
        c = f * clipped(states[1], clip) + i * g
        return [o * np.tanh(clipped(c, clip)), c]

    def backward(self, inputs: StepInputs, out: Array) -> list[Array]:
        i, f, g, o = split(inputs.activations, 4)
        di, df, dg, do = split(out, 4)
        dh, dc = inputs.gradients
        old_c, new_c = inputs.old_states[1], inputs.new_states[1]
        t = np.tanh(clipped(new_c, inputs.clip))
        dc = dc + _clip_gradient(dh * o * _tanh_slope(t), new_c, inputs.clip)
        np.multiply(dc * g, _sigmoid_slope(i), out=di)
        np.multiply(dc * clipped(old_c, inputs.clip), _sigmoid_slope(f), out=df)
        np.multiply(dc * i, _tanh_slope(g), out=dg)
        np.multiply(dh * t, _sigmoid_slope(o), out=do)
        return [np.zeros_like(inputs.old_states[0]), _clip_gradient(dc * f, old_c, inputs.clip)]


def clipped(c: Array, clip: Clip | None) -> Array:
    """Return c with its values clipped, if the network clips; unchanged otherwise."""
    return c if clip is None else np.clip(c, *clip)


def _clip_gradient(gradient: Array, c: Array, clip: Clip | None) -> Array:
    """Return the gradient of c from that of ``clipped(c, clip)``: 0 where the value was clipped."""
    if clip is None:
        return gradient
    return np.where((c <= clip[0]) | (c >= clip[1]), 0, gradient)


class _Gru(Cell):
    # r, z, n, and the recurrent term of n, which r multiplies.
    activation_parts = 4

    def forward(
        self, activations: Array, recurrent: Array, states: States, clip: Clip | None
    ) -> States:
        r, z, n, term = split(activations, 4)
        to_r, to_z, term[...] = split(recurrent, 3)
        r[...] = _sigmoid(r + to_r)
        z[...] = _sigmoid(z + to_z)
        n[...] = np.tanh(n + r * term)
        return [(1 - z) * n + z * states[0]]

    def backward(self, inputs: StepInputs, out: Array) -> list[Array]:
        r, z, n, term = split(inputs.activations, 4)
        dr, dz, dn = split(out, 3)
        (h,), (dh,) = inputs.old_states, inputs.gradients
        np.multiply(dh * (1 - z), _tanh_slope(n), out=dn)
        np.multiply(dh * (h - n), _sigmoid_slope(z), out=dz)
        np.multiply(dn * term, _sigmoid_slope(r), out=dr)
        return [dh * z]

    def recurrent(self, activations: Array, dgates: Array) -> Array:
        dr, dz, dn = split(dgates, 3)
        r, *_ = split(activations, 4)
        return np.concatenate((dr, dz, dn * r), axis=-1)


CELLS: Mapping[RNNMode, Cell] = {
    RNNMode.RELU: Cell(lambda a: np.maximum(a, 0), lambda h: h > 0),
    RNNMode.TANH: Cell(),
    RNNMode.LSTM: _Lstm(),
    RNNMode.GRU: _Gru(),
}
