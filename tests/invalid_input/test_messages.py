"""A call with an invalid argument raises one of our exceptions, which names the argument."""

from __future__ import annotations

import pytest

import cudnnlite as dnn

from . import convolution, devices, layers, raw, recurrent, specs, tuning

REFUSALS = (dnn.ArgumentError, dnn.ArrayTypeError, dnn.NotSupportedError)
TABLES = {
    "specs": specs.CASES,
    "devices": devices.CASES,
    "convolution": convolution.CASES,
    "layers": layers.CASES,
    "recurrent": recurrent.CASES,
    "tuning": tuning.CASES,
    "raw": raw.CASES,
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("room", "name"), [(room, name) for room, cases in TABLES.items() for name in cases]
)
def test_the_message_names_the_invalid_argument(
    own_handle: dnn.Handle, room: str, name: str
) -> None:
    call, message = TABLES[room][name]
    with pytest.raises(REFUSALS, match=message):
        call(own_handle)


def test_one_sequence_of_the_most_steps_is_valid() -> None:
    most_steps = 2**31 - 1
    assert dnn.RNNDataSpec((most_steps, 1, 1)).lengths == (most_steps,)
