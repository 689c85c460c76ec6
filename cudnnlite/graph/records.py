"""The parts of a graph as frozen values: tensors and operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from cudnnlite.arguments import cut
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.node_attributes import type_name
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import view_strides

Shape = tuple[int, ...]
Groups = tuple[tuple[str, tuple[int, ...]], ...]  # numbers of tensors, by the attributes


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of a graph.

    Attributes
    ----------
    shape, strides : tuple of int
        The sizes of the axes, and their strides in elements.
    dtype : DataType
        The data type of the values.
    name : str
        The name of a tensor in memory; empty for a virtual tensor, which is never in memory.
    value : float or None
        A number that is passed by value with each call.
    view_of : int or None
        The number of another tensor in memory, if this one is a view of it.
    array_axes : tuple of (shape, strides), or None
        The axes of an output's arrays, if operations see the output in another shape.
    """

    shape: Shape
    dtype: DataType
    strides: Shape
    name: str = ""
    value: float | None = None
    view_of: int | None = None
    array_axes: tuple[Shape, Shape] | None = None

    @property
    def spec(self) -> TensorSpec:
        """The spec of the tensor's arrays."""
        shape, strides = self.array_axes or (self.shape, self.strides)
        return TensorSpec(shape, self.dtype, strides=strides)

    def with_array(self, shape: Shape, strides: Shape) -> TensorRecord:
        """Return the record of a tensor whose arrays have these sizes and strides.

        ArgumentError if the same memory has no view in the shape that operations see.
        """
        if shape == self.shape:
            return replace(self, strides=strides, array_axes=None)
        array = TensorSpec(shape, self.dtype, strides=strides)
        tensor_strides: Shape | None = self.strides  # no values lie anywhere
        if array.size:
            tensor_strides = view_strides(shape, array.strides, self.shape)
        if array.size != prod(self.shape) or tensor_strides is None:
            raise ArgumentError(
                f"{cut(self.name)} is {array}; needed: an array with a view in the shape {self.shape}"
            )
        return replace(self, strides=tensor_strides, array_axes=(shape, array.strides))

    def __str__(self) -> str:
        name = cut(self.name) or "virtual"
        if self.value is not None:
            return f"{name}={self.value:g}"
        shape, strides = self.array_axes or (self.shape, self.strides)
        sizes = "x".join(map(str, shape))
        gaps = "" if strides == packed_strides(shape) else f" strides {strides}"
        view = f" as {'x'.join(map(str, self.shape))}" if self.array_axes else ""
        return f"{name} {sizes} {type_name(self.dtype)}{gaps}{view}"


@dataclass(frozen=True)
class Node:
    """One operation of a graph.

    Attributes
    ----------
    kind : str
        cuDNN's name for it: "MATMUL" for ``OPERATION_MATMUL``.
    attributes : tuple of (str, object)
        The attributes by cuDNN's names, with those of the descriptor that configures the operation.
    reads, writes : tuple of (str, tuple of int)
        The numbers of the tensors, by the attributes that take them.
    """

    kind: str
    attributes: tuple[tuple[str, Any], ...]
    reads: Groups
    writes: Groups

    @property
    def read_numbers(self) -> tuple[int, ...]:
        """The numbers of all tensors that it reads."""
        return tuple(number for _, numbers in self.reads for number in numbers)

    @property
    def written_numbers(self) -> tuple[int, ...]:
        """The numbers of all tensors that it writes."""
        return tuple(number for _, numbers in self.writes for number in numbers)


def packed_strides(shape: Sequence[int]) -> Shape:
    """Return the strides of C order without gaps."""
    if not shape:
        return ()
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))
