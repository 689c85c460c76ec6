"""Dropout, forward and backward, as declarations."""

from __future__ import annotations

from typing import Any

from cudnnlite.enums import DataType
from cudnnlite.problems.operation import Operation, check_alike
from cudnnlite.specs.layers import DropoutSpec

# The fields that both directions have.
_COMMON: dict[str, Any] = {
    "options": {"dropout": DropoutSpec},
    "dtypes": (DataType.FLOAT, DataType.DOUBLE, DataType.HALF),
    "check": check_alike,
    "reserve": "cudnnDropoutGetReserveSpaceSize",
}

FORWARD = Operation(
    "dropout",
    "cudnnDropoutForward",
    reads=("x",),
    writes=("y",),
    infer=lambda x, **_: x,
    in_place=frozenset({"x"}),
    names={"xdesc": "xDesc", "ydesc": "yDesc"},
    **_COMMON,
)


BACKWARD = Operation(
    "dropout_gradient",
    "cudnnDropoutBackward",
    reads=("dy",),
    writes=("dx",),
    infer=lambda dy, **_: dy,
    in_place=frozenset({"dy"}),
    call_operands=("dy", "reserve"),
    names={"xdesc": "dxDesc", "dydesc": "dyDesc", "dxdesc": "dxDesc"},
    **_COMMON,
)
