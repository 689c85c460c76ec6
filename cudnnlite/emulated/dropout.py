"""Emulated dropout: its descriptors, the layer, and the masks that recurrent networks draw.

The states hold a seed and a count of draws, in emulated memory.  Copying the bytes saves and
restores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from cudnnlite.emulated.descriptor_state import (
    descriptor_state,
    destroy_descriptor,
    store_state,
)
from cudnnlite.emulated.operation_call import Array, Call, computes, nbytes_of_bits
from cudnnlite.emulated.registry import (
    EmulationState,
    RefusalError,
    bad_parameter,
    check_size,
    emulates,
    null_pointer,
)
from cudnnlite.enums import Status
from cudnnlite.problems import dropout as declarations

_STATES_BYTES = 4096
_MAGIC = 0x53455441_5453_0D0D
_HEADER = np.dtype([("magic", "u8"), ("seed", "u8"), ("draws", "u8")])


@dataclass(frozen=True)
class Dropout:
    """The state that a dropout descriptor was set to."""

    probability: float
    states: int
    seed: int

    def check(self, api: EmulationState) -> None:
        """Refuse if masks cannot be drawn."""
        if self.probability:
            _states_header(api, self.states)

    @property
    def scale(self) -> float:
        """The factor of the values that are not dropped; with a probability of 1 there are none."""
        return 1 / ((1 - self.probability) or 1)

    def draw(self, api: EmulationState, masks: Sequence[NDArray[Any]]) -> None:
        """Fill masks with zeros and `scale`, and advance the states.

        With a probability of 1 the masks hold zeros alone; with 0 they hold ones, and the states
        are not read.
        """
        if not self.probability:
            for mask in masks:
                mask[...] = 1
            return
        header = _states_header(api, self.states)
        generator = default_rng([int(header["seed"][0]), int(header["draws"][0])])
        for mask in masks:
            np.multiply(generator.random(mask.shape) >= self.probability, self.scale, out=mask)
        header["draws"] += 1


def find_dropout(api: EmulationState, descriptor: int | None) -> Dropout | None:
    """Return what the live descriptor at an address was set to; None for the null pointer."""
    if not descriptor:
        return None
    dropout: Dropout = descriptor_state(api, descriptor)
    return dropout


def _states_header(api: EmulationState, states: int) -> NDArray[Any]:
    """Return the states' header (one record) in emulated memory."""
    header = api.memory.view(states, _STATES_BYTES)[: _HEADER.itemsize].view(_HEADER)
    if header["magic"][0] != _MAGIC:
        raise RefusalError(
            Status.EXECUTION_FAILED,
            f"the dropout states at {states:#x} were not filled by cudnnSetDropoutDescriptor",
        )
    return header


@emulates("cudnnDropoutGetStatesSize")
def states_size(c_call: SimpleNamespace) -> None:
    """`cudnnDropoutGetStatesSize`: write the size of the states."""
    c_call.sizeInBytes[0] = _STATES_BYTES


def _check_settings(c_call: SimpleNamespace) -> None:
    """Refuse settings that are not allowed; without dropout there may be no states."""
    if not c_call.dropoutDesc.value:
        raise null_pointer("dropoutDesc")
    if not 0 <= c_call.dropout <= 1:
        raise bad_parameter(f"dropout={c_call.dropout}; allowed: from 0 to 1")
    if c_call.states:
        check_size("states", c_call.stateSizeInBytes, _STATES_BYTES)
    elif c_call.dropout or c_call.stateSizeInBytes:
        raise null_pointer("states")


def _store_settings(c_call: SimpleNamespace) -> None:
    states = c_call.states or 0
    store_state(c_call.api, c_call.dropoutDesc, Dropout, c_call.dropout, states, c_call.seed)


@emulates("cudnnSetDropoutDescriptor")
def set_descriptor(c_call: SimpleNamespace) -> None:
    """`cudnnSetDropoutDescriptor`: set a descriptor, and start its states from the seed."""
    _check_settings(c_call)
    if c_call.states:
        states = c_call.api.memory.view(c_call.states, _STATES_BYTES)
        states[:] = 0
        states[: _HEADER.itemsize].view(_HEADER)[0] = (_MAGIC, c_call.seed, 0)
    _store_settings(c_call)


@emulates("cudnnRestoreDropoutDescriptor")
def restore_descriptor(c_call: SimpleNamespace) -> None:
    """`cudnnRestoreDropoutDescriptor`: set a descriptor, and leave its states as they are."""
    _check_settings(c_call)
    if c_call.states:
        c_call.api.memory.view(c_call.states, _STATES_BYTES)
    _store_settings(c_call)


@emulates("cudnnGetDropoutDescriptor")
def get_descriptor(c_call: SimpleNamespace) -> None:
    """`cudnnGetDropoutDescriptor`: write what a descriptor was set to."""
    dropout = find_dropout(c_call.api, c_call.dropoutDesc.value)
    if dropout is None:
        raise null_pointer("dropoutDesc")
    c_call.dropout[0] = dropout.probability
    c_call.states[0] = dropout.states or None
    c_call.seed[0] = dropout.seed


@emulates("cudnnDestroyDropoutDescriptor")
def destroy(c_call: SimpleNamespace) -> None:
    """`cudnnDestroyDropoutDescriptor`: destroy a descriptor and its state."""
    destroy_descriptor(c_call, "cudnnDestroyDropoutDescriptor")


@computes(declarations.FORWARD, ranks=(4, 5, 6), refusal_status=Status.NOT_SUPPORTED)
def forward(x: Array, dropout: Dropout, call: Call) -> Array:
    """`cudnnDropoutForward`: return the scaled values, and zeros for those that are dropped.

    The reserve space has a bit for each value.
    """
    reserve = call.reserve(nbytes_of_bits(x.size))
    mask = np.empty(x.shape, x.dtype)
    dropout.draw(call.api, [mask])
    reserve[:] = np.packbits(mask != 0)
    return np.where(mask != 0, x * mask, 0)


@computes(declarations.BACKWARD, ranks=(4, 5, 6), refusal_status=Status.NOT_SUPPORTED)
def backward(dy: Array, dropout: Dropout, call: Call) -> Array:
    """`cudnnDropoutBackward`: return the gradient of x, scaled as the values were."""
    return np.where(call.reserved_bits(dy.shape), dy * dy.dtype.type(dropout.scale), 0)
