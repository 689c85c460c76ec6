"""Operands of products as cuDNN has them: batches of matrices, with three axes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from cudnnlite.arguments import real_number
from cudnnlite.dtypes import AnyDtype, mixed_types, parse_dtype
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import runs

Shape = tuple[int, ...]
FLOAT8 = (DataType.FP8_E4M3, DataType.FP8_E5M2)


class MatrixGraph:
    """A graph of products whose operands and result may have any number of batch axes.

    Attributes
    ----------
    graph : Graph
        The graph to which the methods add tensors and operations.
    batch : tuple of int
        The sizes of the result's axes before its rows and columns.

    Parameters
    ----------
    specs : mapping of str to TensorSpec
        All operands.
    first, second : str
        The names of the operands that are multiplied.

    Raises
    ------
    ArgumentError
        An operand is no matrix, or the batches or types do not fit together.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], first: str, second: str) -> None:
        self.graph = Graph()
        self._specs = specs
        for name in (first, second):
            if specs[name].rank < 2:
                raise ArgumentError(
                    f"{name} has shape {specs[name].shape}; needed: (..., rows, columns)"
                )
        first_spec, second_spec = specs[first], specs[second]
        both_float8 = first_spec.dtype in FLOAT8 and second_spec.dtype in FLOAT8
        if second_spec.dtype != first_spec.dtype and not both_float8:
            raise ArgumentError(mixed_types(second, second_spec.dtype, first, first_spec.dtype))
        try:
            self.batch = tuple(np.broadcast_shapes(first_spec.shape[:-2], second_spec.shape[:-2]))
        except ValueError:
            raise ArgumentError(
                f"{second} has shape {second_spec.shape}; needed beside {first} of shape "
                f"{first_spec.shape}: batches that are equal, or 1"
            ) from None
        self.tensors = {
            name: self.graph.input(name, spec.shape, spec.dtype, spec.strides)
            for name, spec in specs.items()
        }

    def matrices(self, name: str) -> GraphTensor:
        """Return an operand with one batch axis, of the size of all batches or 1: a view."""
        spec, tensor = self._specs[name], self.tensors[name]
        if spec.rank == 3 and len(self.batch) <= 1:
            return tensor
        sizes, strides = spec.shape[-2:], spec.strides[-2:]
        if spec.rank == 1:
            sizes, strides = (1, *sizes), (spec.shape[0], *strides)
        axes = runs(spec.shape[:-2], spec.strides[:-2]) or [(1, prod(sizes))]
        if len(axes) > 1 or axes[0][0] not in (1, prod(self.batch)):
            raise ArgumentError(
                f"{name} is {spec}; needed: one matrix, or one for each of the batch "
                f"{self.batch}, whose axes lie in memory as one"
            )
        ((size, stride),) = axes
        return self.graph.view(tensor, (size, *sizes), (stride, *strides))

    def join_batch(self, name: str, axis: int, *, is_left: bool) -> GraphTensor:
        """Join the matrices of an operand along an axis, and return them as one matrix, a view.

        The axis is the inner one of a product, which has this operand on its left or right.
        """
        spec = self._specs[name]
        outer_axis = -3 - axis  # the other one of -1 and -2
        axes = runs((*spec.shape[:-2], spec.shape[axis]), (*spec.strides[:-2], spec.strides[axis]))
        inner_size = prod(self.batch) * spec.shape[axis]
        if [size for size, _ in axes] != [inner_size]:
            raise ArgumentError(
                f"{name} is {spec}; needed for a gradient that is summed over the batch "
                f"{self.batch}: matrices of all of it, whose axis {axis} lies in memory as one "
                "with those of the batch"
            )
        ((_, inner_stride),) = axes
        shape, strides = [spec.shape[outer_axis]], [spec.strides[outer_axis]]
        place = 1 if is_left else 0
        shape.insert(place, inner_size)
        strides.insert(place, inner_stride)
        return self.graph.view(self.tensors[name], (1, *shape), (prod(shape), *strides))

    def number(self, name: str) -> GraphTensor:
        """Return an operand of one float32 value as a factor of products: a view."""
        spec = self._specs[name]
        if spec.size != 1 or spec.dtype != DataType.FLOAT:
            raise ArgumentError(f"{name} is {spec}; needed: one value of float32")
        return self.graph.view(self.tensors[name], (1, 1, 1), (1, 1, 1))

    def output(self, name: str, result: GraphTensor, batch: Shape, dtype: AnyDtype | None) -> Graph:
        """Make a result an output with all its batch axes, and return the graph."""
        if dtype is None:
            dtype = next(iter(self._specs.values())).dtype
            # Rounding to float8 needs a factor that only the caller knows.
            dtype = DataType.FLOAT if dtype in FLOAT8 else dtype
        self.graph.output(name, result, dtype, shape=(*batch, *result.shape[-2:]))
        return self.graph


def parse_alpha(alpha: object) -> dict[str, float]:
    """Return the numbers that a call passes by value: none for 1, which multiplies nothing."""
    factor = real_number(alpha, "alpha")
    return {} if factor == 1.0 else {"alpha": factor}


def parse_result_dtype(dtype: AnyDtype | None) -> DataType | None:
    """Return the data type of a result; None if it follows from the operands."""
    return None if dtype is None else parse_dtype(dtype)


def is_broadcast(shape: Shape, whole: Shape) -> bool:
    """Return whether NumPy broadcasts an operand of `shape` to a result of shape `whole`."""
    padded = (1,) * (len(whole) - len(shape)) + shape
    return len(padded) == len(whole) and all(
        size in (1, other) for size, other in zip(padded, whole, strict=True)
    )
