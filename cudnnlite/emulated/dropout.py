"""Emulated dropout: its descriptors, the masks that recurrent networks draw from their states, and the layer.

The states are all there is: a seed and a count of draws, in emulated memory.  Copying the bytes saves and restores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.operation import Array, Call, bits_bytes, computes
from cudnnlite.emulated.registry import RefusalError, bad, check_size, emulates, null
from cudnnlite.emulated.remembered import remember, remembered
from cudnnlite.enums import Status

_STATES_BYTES = 4096
_MAGIC = 0x53455441_5453_0D0D
_HEADER = np.dtype([("magic", "u8"), ("seed", "u8"), ("draws", "u8")])


@dataclass(frozen=True)
class Dropout:
    """What a dropout descriptor was set to."""

    probability: float
    states: int
    seed: int

    def check(self, api: EmulatedApi) -> None:
        """Refuse if masks cannot be drawn."""
        if self.probability:
            _header(api, self.states)

    @property
    def scale(self) -> float:
        """What the values that are kept are multiplied by; with a probability of 1 none is kept."""
        return 1 / ((1 - self.probability) or 1)

    def draw(self, api: EmulatedApi, masks: Sequence[NDArray[Any]]) -> None:
        """Fill masks with 0 and 1 / (1 - probability), of a probability of 1 with 0, and advance the states."""
        if not self.probability:
            for mask in masks:
                mask[...] = 1
            return
        header = _header(api, self.states)
        generator = default_rng([int(header["seed"][0]), int(header["draws"][0])])
        for mask in masks:
            np.multiply(generator.random(mask.shape) >= self.probability, self.scale, out=mask)
        header["draws"] += 1


def find_dropout(api: EmulatedApi, descriptor: int | None) -> Dropout | None:
    """Return what the live descriptor at an address was set to; None for the null pointer."""
    return remembered(api, descriptor) if descriptor else None


def _header(api: EmulatedApi, states: int) -> NDArray[Any]:
    """Return the states' header (one record) in emulated memory."""
    header = api.memory.view(states, _STATES_BYTES)[: _HEADER.itemsize].view(_HEADER)
    if header["magic"][0] != _MAGIC:
        raise RefusalError(
            Status.EXECUTION_FAILED,
            f"the dropout states at {states:#x} were not filled by cudnnSetDropoutDescriptor",
        )
    return header


@emulates("cudnnDropoutGetStatesSize")
def states_size(given: SimpleNamespace) -> None:
    """Tell how large the states are."""
    given.sizeInBytes[0] = _STATES_BYTES


def _set(given: SimpleNamespace, *, fill: bool) -> None:
    """Set the descriptor, and start its states from the seed or leave them as they are; without dropout it needs none."""
    if not given.dropoutDesc.value:
        raise null("dropoutDesc")
    if not 0 <= given.dropout <= 1:
        raise bad(f"dropout={given.dropout}; allowed: from 0 to 1")
    if given.states:
        check_size("states", given.stateSizeInBytes, _STATES_BYTES)
    if not given.states and (given.dropout or given.stateSizeInBytes):
        raise null("states")
    if given.states:
        memory = given.api.memory.view(given.states, _STATES_BYTES)
        if fill:
            memory[:] = 0
            memory[: _HEADER.itemsize].view(_HEADER)[0] = (_MAGIC, given.seed, 0)
    remember(given.api, given.dropoutDesc, Dropout, given.dropout, given.states or 0, given.seed)


emulates("cudnnSetDropoutDescriptor")(partial(_set, fill=True))
emulates("cudnnRestoreDropoutDescriptor")(partial(_set, fill=False))


@emulates("cudnnGetDropoutDescriptor")
def get_dropout(given: SimpleNamespace) -> None:
    """Tell what the descriptor was set to."""
    dropout = find_dropout(given.api, given.dropoutDesc.value)
    if dropout is None:
        raise null("dropoutDesc")
    given.dropout[0], given.states[0], given.seed[0] = (
        dropout.probability,
        dropout.states or None,
        dropout.seed,
    )


@computes("dropout", ranks=(4, 5, 6), refused=Status.NOT_SUPPORTED)
def forward(x: Array, dropout: Dropout, call: Call) -> Array:
    """Return what is kept, scaled; which that is, a bit for each value, goes into the reserve space."""
    reserve, mask = call.reserve(bits_bytes(x.size)), np.empty(x.shape, x.dtype)
    dropout.draw(call.api, [mask])
    reserve[:] = np.packbits(mask != 0)
    return np.where(mask != 0, x * mask, 0)


@computes("dropout_gradient", ranks=(4, 5, 6), refused=Status.NOT_SUPPORTED)
def backward(dy: Array, dropout: Dropout, call: Call) -> Array:
    """Return the gradient of x: what was kept, scaled."""
    return np.where(call.kept_bits(dy.shape), dy * dy.dtype.type(dropout.scale), 0)
