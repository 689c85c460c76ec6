"""None for an operand that an operation needs is refused by name: the call, its plan, its graph."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from fuzz.subjects import Things, subject

import cudnnlite as dnn
from cudnnlite.plans.function import OperationFunction

OPERATIONS = [
    name
    for name in dnn.__all__
    if isinstance(function := getattr(dnn, name), OperationFunction) and hasattr(function, "graph")
]


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Things]:
    """What calls are made of."""
    things = Things(tmp_path_factory.mktemp("things"))
    yield things
    things.close()


def required_arrays(name: str, legal: dict[str, Any]) -> list[str]:
    """Return the arguments without a default that are arrays."""
    parameters = inspect.signature(getattr(dnn, name)).parameters
    return [
        argument
        for argument, parameter in parameters.items()
        if parameter.default is parameter.empty
        and isinstance(legal.get(argument), (dnn.DeviceArray, dnn.TensorSpec))
    ]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("verb", ["", ".plan", ".graph"])
def test_none_for_a_required_operand_is_refused_by_name(name, verb, things):
    call, legal, _ = subject(things, name + verb)
    operands = required_arrays(name, legal)
    assert operands
    for operand in operands:
        with pytest.raises((dnn.ArgumentError, dnn.ArrayTypeError), match=rf"^{operand}\b.*None"):
            call(**legal | {operand: None})


def test_none_for_all_operands_is_refused_by_name(own_handle):
    with pytest.raises(dnn.ArrayTypeError, match=r"^a of type NoneType"):
        dnn.matmul(own_handle, None, None)
