"""Pooling, forward and backward, as declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import Operation, gradient_of
from cudnnlite.specs.layers import PoolingSpec


def _complete(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with padding in numbers."""
    return {"pooling": options["pooling"].for_shapes(specs["x"].shape)}


def _check(specs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse scalars where a graph pools, which has none."""
    pooling = options["pooling"].for_shapes(specs["x"].shape)
    if pooling.is_symmetric:
        return
    for name, plain in {"alpha": 1.0, "beta": 0.0}.items():
        if options[name] != plain:
            raise ArgumentError(
                f"{name}={options[name]}; allowed with padding={pooling.padding}, which differs "
                f"at the two ends of an axis: {plain}"
            )


FORWARD = Operation(
    "pooling_forward",
    "cudnnPoolingForward",
    reads=("x",),
    writes=("y",),
    infer=lambda x, pooling: pooling.output_spec(x),
    options={"pooling": PoolingSpec},
    check=_check,
    complete=_complete,
)


BACKWARD = gradient_of(FORWARD, "cudnnPoolingBackward", ("y", "dy", "x"), complete=_complete)
