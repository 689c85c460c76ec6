"""The parts of an RNN's weights: their names, what cuDNN calls them, and their shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cudnnlite.enums import RNNBiasMode, RNNInputMode
from cudnnlite.specs.rnn import RNNSpec

DIRECTIONS = ("forward", "backward")
PROJECTION = 8  # its linear layer number, behind the eight of the gates


class WeightPart(NamedTuple):
    """One matrix or bias."""

    # Such as "layer0.forward.input.i", "layer0.forward.input.i.bias", "layer1.backward.projection".
    name: str
    layer: int
    direction: int  # 0 forward, 1 backward
    gate: str  # "i", ...; empty for the projection
    recurrent: bool  # whether it belongs to the hidden state, not to the input
    pseudo_layer: int  # cuDNN's numbers for the pair of matrix and bias
    linear_layer: int
    bias: bool  # which of the two it is
    # (hidden_size, input) of a matrix, (hidden_size,) of a bias, (projection_size, hidden_size).
    shape: tuple[int, ...]

    @property
    def field(self) -> int:
        """The number of its stack in its layer and direction.

        The stacks are input, recurrent, their biases in that order, and projection.
        """
        if not self.gate:
            return 4
        return self.recurrent + 2 * self.bias

    def rows(self, gates: Sequence[str]) -> slice:
        """Return its rows in its stack, with the gates in that order."""
        start = 0
        if self.gate:
            start = gates.index(self.gate) * self.shape[0]
        return slice(start, start + self.shape[0])


def weight_parts(spec: RNNSpec) -> Iterator[WeightPart]:
    """Yield every matrix and bias of a network by layer and direction, input before recurrent."""
    has_bias = (
        spec.bias in (RNNBiasMode.DOUBLE, RNNBiasMode.SINGLE_INP),
        spec.bias in (RNNBiasMode.DOUBLE, RNNBiasMode.SINGLE_REC),
    )
    for pseudo_layer in range(spec.num_layers * spec.directions):
        layer, direction = divmod(pseudo_layer, spec.directions)
        where = f"layer{layer}.{DIRECTIONS[direction]}"
        for recurrent in (False, True):
            columns = spec.state_size if recurrent else spec.layer_input_size(layer)
            skipped = not recurrent and layer == 0 and spec.input_mode == RNNInputMode.SKIP
            for number, gate in enumerate(spec.gates):
                name = f"{where}.{'recurrent' if recurrent else 'input'}.{gate}"
                place = (
                    layer,
                    direction,
                    gate,
                    recurrent,
                    pseudo_layer,
                    number + recurrent * len(spec.gates),
                )
                if not skipped:
                    yield WeightPart(name, *place, False, (spec.hidden_size, columns))
                if has_bias[recurrent]:
                    yield WeightPart(f"{name}.bias", *place, True, (spec.hidden_size,))
        if spec.projects:
            place = (layer, direction, "", True, pseudo_layer, PROJECTION)
            yield WeightPart(
                f"{where}.projection", *place, False, (spec.state_size, spec.hidden_size)
            )
