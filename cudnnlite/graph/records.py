"""What a graph consists of, as frozen values: its tensors and its operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cudnnlite.enums import DataType
from cudnnlite.graph.node_attributes import type_name
from cudnnlite.specs import TensorSpec

Shape = tuple[int, ...]
Groups = tuple[tuple[str, tuple[int, ...]], ...]  # numbers of tensors, by the attributes


@dataclass(frozen=True)
class TensorRecord:
    """What a graph knows of one tensor.

    Attributes
    ----------
    shape, strides : tuple of int
        In elements.
    dtype : DataType
        Of its values.
    name : str
        Of a tensor in memory; empty for a virtual one, which is never there.
    value : float or None
        A number that is passed by value with each call.
    view_of : int or None
        The number of the tensor in memory that this is another view of.
    """

    shape: Shape
    dtype: DataType
    strides: Shape
    name: str = ""
    value: float | None = None
    view_of: int | None = None

    @property
    def spec(self) -> TensorSpec:
        """What arrays of such a tensor are."""
        return TensorSpec(self.shape, self.dtype, strides=self.strides)

    def __str__(self) -> str:
        name = self.name or "virtual"
        if self.value is not None:
            return f"{name}={self.value:g}"
        sizes = "x".join(map(str, self.shape))
        gaps = "" if self.strides == packed_strides(self.shape) else f" strides {self.strides}"
        return f"{name} {sizes} {type_name(self.dtype)}{gaps}"


@dataclass(frozen=True)
class Node:
    """One operation of a graph.

    Attributes
    ----------
    kind : str
        cuDNN's name for it: "MATMUL" for ``OPERATION_MATMUL``.
    attributes : tuple of (str, object)
        By cuDNN's names, those of the descriptor that configures it among them.
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
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))
