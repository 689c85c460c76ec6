"""`PrefixCheck`: compares an algorithm's results over the first steps with a float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudnnlite import DeviceArray, RNNPlan, RNNSpec, TensorSpec
from cudnnlite.devices import arrays
from cudnnlite.enums import RNNDataLayout
from cudnnlite.errors import ArgumentError
from cudnnlite.problems import rnn_equations
from cudnnlite.specs import RNNDataSpec
from cudnnlite.types import RNNTrainingOutput

Array = np.ndarray[Any, Any]

# Little is compared, because the float64 reference runs on the host.
_MAX_STEPS = 4
_MAX_SEQUENCES = 4


class PrefixCheck:
    """Runs plans over the first steps of all sequences, and compares a few sequences in float64.

    The reference is `rnn_equations`.

    Parameters
    ----------
    operands : sequence
        The operands of the plans: weights, x, hx and cx.
    data : RNNDataSpec
        The sequences in x.

    Attributes
    ----------
    steps : int
        The number of steps that are compared.
    """

    def __init__(self, operands: Sequence[Any], data: RNNDataSpec) -> None:
        steps = min(_MAX_STEPS, data.max_length)
        self.steps = steps
        self._weights, x, self._hx, self._cx = operands
        lengths = tuple(min(length, steps) for length in data.lengths)
        self._x = _first_steps(x, data, lengths, steps)
        self._data = RNNDataSpec(self._x.shape, lengths, data.dtype, data.layout)
        self._sequences = np.unique(np.linspace(0, data.batch - 1, _MAX_SEQUENCES).astype(int))
        self._expected: list[Array] | None = None

    def run_with_reference(self, plan: RNNPlan[Any]) -> tuple[list[Array], list[Array]]:
        """Run a plan over the first steps; return its y, hy and cy, and the expected ones."""
        out = plan(self._weights, self._x, self._hx, self._cx, lengths=self._data.lengths)
        if isinstance(out, RNNTrainingOutput):
            # cuDNN may refuse an algorithm only in the backward pass, with an exception here.
            plan.backward_data(out.reserve, out.y)
        if self._expected is None:
            # The reference needs valid operands, and the first plan has checked them.
            self._expected = self._reference(plan.spec)
            if not all(np.isfinite(values).all() for values in self._expected):
                raise ArgumentError(
                    "x, hx, cx or weights hold values that are not finite; "
                    "nothing can be checked with them"
                )
        results = [self._steps_of(out.y), out.hy.numpy()[:, self._sequences]]
        if out.cy is not None:
            results.append(out.cy.numpy()[:, self._sequences])
        return results, self._expected

    def _steps_of(self, array: DeviceArray) -> Array:
        """Return the steps of the compared sequences in float64."""
        steps: Array = rnn_equations.steps_of(array.numpy(), self._data)
        return steps[:, self._sequences].astype(np.float64)

    def _reference(self, spec: RNNSpec) -> list[Array]:
        network = rnn_equations.network_of(spec, self._weights.numpy())
        active = rnn_equations.active_steps(self._data)[:, self._sequences]
        x = self._steps_of(self._x)
        hx, cx = self._state_of(self._hx), self._state_of(self._cx)
        y, hy, cy = rnn_equations.forward(network, x, active, hx, cx)
        if cy is None:
            return [y, hy]
        return [y, hy, cy]

    def _state_of(self, state: DeviceArray | None) -> Array | None:
        """Return the state of the compared sequences in float64."""
        if state is None:
            return None
        return state.numpy()[:, self._sequences].astype(np.float64)


def _first_steps(
    x: DeviceArray, data: RNNDataSpec, lengths: tuple[int, ...], steps: int
) -> DeviceArray:
    """Return the first steps of all sequences: a view of `x`, or a copy if it is batch-major."""
    if data.layout == RNNDataLayout.BATCH_MAJOR_UNPACKED:
        return arrays.from_host(
            x.device, x.stream, np.ascontiguousarray(x.numpy()[:, :steps]), dtype=data.dtype
        )
    shape: tuple[int, ...] = (steps, data.batch, data.vector_size)
    if data.is_packed:
        shape = (sum(lengths), data.vector_size)
    return arrays.part_of(x, TensorSpec(shape, data.dtype))
