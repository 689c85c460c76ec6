"""`PrefixCheck`: what an algorithm computes over the first steps, against a reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.enums import MathType, RNNDataLayout
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.rnn.outputs import RNNTrainingOutput
from cudnnlite.operations.rnn.plan import RNNPlan
from cudnnlite.problems import rnn_equations
from cudnnlite.search.accuracy import Errors, relative_errors, why_wrong
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec

Array = np.ndarray[Any, Any]

_STEPS = 4
_SEQUENCES = 4


class PrefixCheck:
    """Runs plans over the first steps of all sequences and compares a few of these with `rnn_equations` in float64.

    `operands` are what the plans are called with: weights, x, hx and cx; `data` are the sequences in `x`.
    """

    def __init__(self, operands: Sequence[Any], data: RNNDataSpec) -> None:
        steps = min(_STEPS, data.max_length)
        self._steps = steps
        self._weights, x, self._hx, self._cx = operands
        lengths = tuple(min(length, steps) for length in data.lengths)
        self._x = _first_steps(x, data, lengths, steps)
        self._data = RNNDataSpec(self._x.shape, lengths, data.dtype, data.layout)
        self._sequences = np.unique(np.linspace(0, data.batch - 1, _SEQUENCES).astype(int))
        self._expected: list[Array] | None = None

    def errors_of(self, plan: RNNPlan[Any]) -> Errors:
        """Return the errors of a plan's y, hy and cy over the first steps."""
        out = plan(self._weights, self._x, self._hx, self._cx, lengths=self._data.lengths)
        if isinstance(out, RNNTrainingOutput):
            plan.backward_data(out.reserve, out.y)  # what cannot go back cannot train
        if self._expected is None:  # after the first plan has accepted the operands
            self._expected = self._reference(plan.spec)
            if not all(np.isfinite(values).all() for values in self._expected):
                raise ArgumentError(
                    "x, hx, cx or weights hold values that are not finite; nothing can be checked with them"
                )
        y = self._steps_of(out.y)
        got = [
            y,
            *(state.numpy()[:, self._sequences] for state in (out.hy, out.cy) if state is not None),
        ]
        return relative_errors(got, self._expected)

    def why_wrong(self, error: float, math_type: MathType) -> str:
        """Return why a candidate with that error cannot be used; empty if it can."""
        why = why_wrong(error, self._data.dtype, math_type)
        return f"{why} over the first {self._steps} steps" if why else ""

    def _steps_of(self, array: DeviceArray) -> Array:
        """Return the steps of the chosen sequences in float64."""
        return rnn_equations.steps_of(array.numpy(), self._data)[:, self._sequences].astype(
            np.float64
        )

    def _reference(self, spec: RNNSpec) -> list[Array]:
        chosen = self._sequences
        hx, cx = (
            None if s is None else s.numpy()[:, chosen].astype(np.float64)
            for s in (self._hx, self._cx)
        )
        network = rnn_equations.network_of(spec, self._weights.numpy())
        active = rnn_equations.active_steps(self._data)[:, chosen]
        y, hy, cy = rnn_equations.forward(network, self._steps_of(self._x), active, hx, cx)
        return [y, hy] if cy is None else [y, hy, cy]


def _first_steps(
    x: DeviceArray, data: RNNDataSpec, lengths: tuple[int, ...], steps: int
) -> DeviceArray:
    """Return the first steps of all sequences: a view, but for batch-major data, where they do not lie together."""
    if data.layout == RNNDataLayout.BATCH_MAJOR_UNPACKED:
        return arrays.from_host(
            x.device, x.stream, np.ascontiguousarray(x.numpy()[:, :steps]), dtype=data.dtype
        )
    shape = (
        (sum(lengths), data.vector_size)
        if data.is_packed
        else (steps, data.batch, data.vector_size)
    )
    return arrays.part_of(x, TensorSpec(shape, data.dtype))
