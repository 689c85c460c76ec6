"""Activations, forward and backward, as declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnnlite.enums import ActivationMode
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import Operation, check_alike, gradient_of
from cudnnlite.specs.layers import ActivationSpec


def _check(specs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if options["activation"].mode == ActivationMode.IDENTITY:
        raise ArgumentError("activation=IDENTITY; cuDNN has it in fused convolutions only")


def _check_backward(specs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    check_alike(specs)
    _check(specs, options)


FORWARD = Operation(
    "activation_forward",
    "cudnnActivationForward",
    reads=("x",),
    writes=("y",),
    infer=lambda x, **_: x,
    options={"activation": ActivationSpec},
    in_place=frozenset({"x"}),
    check=_check,
)


BACKWARD = gradient_of(
    FORWARD,
    "cudnnActivationBackward",
    ("y", "dy", "x"),
    in_place=frozenset({"dy"}),
    check=_check_backward,
)
