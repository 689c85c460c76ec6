"""One step of each recurrent cell in NumPy, forward and backward, without its matrix products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cudnnlite._raw.enums import RNNMode

Array = NDArray[Any]
States = Sequence[Array]  # of one layer and direction: h, and of an LSTM c
Clip = tuple[float, float]
Activation = Callable[[Array], Array]


def split(a: Array, count: int) -> list[Array]:
    """Return views of equal parts of the last axis."""
    return list(np.split(a, count, axis=-1))


def _sigmoid(a: Array) -> Array:
    """Where ``exp(-a)`` overflows, 1 / infinity is the right answer all the same.

    Not in place: of a strided view, such as the gates of a cell of hidden size 1, NumPy negates the
    wrong values (docs/contributing/numpy_negative.md).
    """
    return np.asarray(1 / (1 + np.exp(-a)))


def _sigmoid_slope(s: Array) -> Array:
    return np.asarray(s * (1 - s))


def _tanh_slope(t: Array) -> Array:
    return np.asarray(1 - t * t)


class Now(NamedTuple):
    """What a backward step of a cell reads."""

    saved: Array
    before: States
    after: States
    gradients: States  # of the states after the step
    clip: Clip | None


class Cell:
    """One step of a cell, without its matrix products.

    This one has the single gate act(W x + R h + biases).
    """

    # Features on the tape, in multiples of the hidden size: the gates, and what backward needs too.
    saved = 1
    states: tuple[str, ...] = ("hidden",)

    def __init__(self, activate: Activation = np.tanh, slope: Activation = _tanh_slope) -> None:
        self._activate, self._slope = activate, slope

    def forward(self, saved: Array, recurrent: Array, states: States, clip: Clip | None) -> States:
        """Return the next states.

        `saved` has ``W x + b_W`` in its gates; `recurrent` is ``R h + b_R``.
        """
        saved[...] = self._activate(saved + recurrent)
        return [saved]

    def backward(self, now: Now, out: Array) -> list[Array]:
        """Write the gradients of the gates' input terms, and return those of the states before.

        That of h lacks its matrix product.
        """
        np.multiply(now.gradients[0], self._slope(now.saved), out=out)
        return [np.zeros_like(out)]

    def recurrent(self, saved: Array, dgates: Array) -> Array:
        """Return the gradients of the gates' recurrent terms from those of their input terms."""
        return dgates


class _Lstm(Cell):
    saved = 4
    states = ("hidden", "cell")

    def forward(self, saved: Array, recurrent: Array, states: States, clip: Clip | None) -> States:
        saved += recurrent
        i, f, g, o = split(saved, 4)
        g[...] = np.tanh(g)
        for gate in (i, f, o):
            gate[...] = _sigmoid(gate)
        c = f * clipped(states[1], clip) + i * g
        return [o * np.tanh(clipped(c, clip)), c]

    def backward(self, now: Now, out: Array) -> list[Array]:
        (i, f, g, o), (di, df, dg, do) = split(now.saved, 4), split(out, 4)
        c, (dh, dc) = now.after[1], now.gradients
        before, t = clipped(now.before[1], now.clip), np.tanh(clipped(c, now.clip))
        dc = dc + _passed(dh * o * _tanh_slope(t), c, now.clip)
        np.multiply(dc * g, _sigmoid_slope(i), out=di)
        np.multiply(dc * before, _sigmoid_slope(f), out=df)
        np.multiply(dc * i, _tanh_slope(g), out=dg)
        np.multiply(dh * t, _sigmoid_slope(o), out=do)
        return [np.zeros_like(now.before[0]), _passed(dc * f, now.before[1], now.clip)]


def clipped(c: Array, clip: Clip | None) -> Array:
    """Return c within its limits."""
    return c if clip is None else np.clip(c, *clip)


def _passed(gradient: Array, c: Array, clip: Clip | None) -> Array:
    """Return the gradient that passes through `_clipped`: none where it clipped."""
    return gradient if clip is None else np.where((c <= clip[0]) | (c >= clip[1]), 0, gradient)


class _Gru(Cell):
    saved = 4  # r, z, n, and the recurrent term of n, which r multiplies

    def forward(self, saved: Array, recurrent: Array, states: States, clip: Clip | None) -> States:
        r, z, n, term = split(saved, 4)
        to_r, to_z, term[...] = split(recurrent, 3)
        r[...] = _sigmoid(r + to_r)
        z[...] = _sigmoid(z + to_z)
        n[...] = np.tanh(n + r * term)
        return [(1 - z) * n + z * states[0]]

    def backward(self, now: Now, out: Array) -> list[Array]:
        (r, z, n, term), (dr, dz, dn) = split(now.saved, 4), split(out, 3)
        (h,), (dh,) = now.before, now.gradients
        np.multiply(dh * (1 - z), _tanh_slope(n), out=dn)
        np.multiply(dh * (h - n), _sigmoid_slope(z), out=dz)
        np.multiply(dn * term, _sigmoid_slope(r), out=dr)
        return [dh * z]

    def recurrent(self, saved: Array, dgates: Array) -> Array:
        dr, dz, dn = split(dgates, 3)
        return np.concatenate((dr, dz, dn * split(saved, 4)[0]), axis=-1)


CELLS: Mapping[RNNMode, Cell] = {
    RNNMode.RELU: Cell(lambda a: np.maximum(a, 0), lambda h: h > 0),
    RNNMode.TANH: Cell(),
    RNNMode.LSTM: _Lstm(),
    RNNMode.GRU: _Gru(),
}
