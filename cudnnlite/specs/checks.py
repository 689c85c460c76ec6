"""Checks that shape rules of several operations share."""

from __future__ import annotations

from cudnnlite.errors import ArgumentError
from cudnnlite.specs.tensor import TensorSpec


def check_same_shapes(expected: TensorSpec, **specs: TensorSpec) -> None:
    """Raise ArgumentError, naming the argument, unless all have the expected shape."""
    for name, spec in specs.items():
        if spec.shape != expected.shape:
            raise ArgumentError(f"{name} has shape {spec.shape}; needed: {expected.shape}")
