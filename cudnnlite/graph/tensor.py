"""`GraphTensor`: a tensor of a graph, with operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnnlite.arguments import integer, shown
from cudnnlite.dtypes import AnyDtype
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.records import Shape, TensorRecord
from cudnnlite.other_libraries import GRAPH_TENSOR
from cudnnlite.unknown import refuse_attribute


class GraphTensor:
    """A tensor of a graph: an operand or a result of its operations.

    It supports ``+ - * / @``, comparisons by ``< <= > >=``, and ``-x``; numbers become scalars that
    are passed by value.  It belongs to one graph, whose methods make it.

    Attributes
    ----------
    graph : Graph
        The graph that made the tensor.
    number : int
        The index of the tensor among the graph's tensors.

    Raises
    ------
    ArgumentError
        The graph is none, or has no tensor of that number.
    """

    __slots__ = ("graph", "number")
    __array_ufunc__ = None  # `array + tensor` calls `GraphTensor.__radd__`, not NumPy's `add`

    def __init__(self, graph: Any, number: int) -> None:
        if not isinstance(getattr(graph, "tensors", None), list):
            raise ArgumentError(f"graph={shown(graph)} is not a Graph")
        self.graph = graph
        self.number = integer(number, "number", 0, len(graph.tensors) - 1)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError, with a hint."""
            return refuse_attribute(self, name, GRAPH_TENSOR)

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphTensor, (self.graph, self.number)

    @property
    def record(self) -> TensorRecord:
        """The record of the tensor in its graph."""
        record: TensorRecord = self.graph.tensors[self.number]
        return record

    @property
    def name(self) -> str:
        """The name of a tensor in memory; empty for a virtual one."""
        return self.record.name

    @property
    def shape(self) -> Shape:
        """The size of each axis."""
        return self.record.shape

    @property
    def strides(self) -> Shape:
        """The strides in elements."""
        return self.record.strides

    @property
    def dtype(self) -> DataType:
        """The data type of its values."""
        return self.record.dtype

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def transposed(self, dtype: AnyDtype | None = None) -> GraphTensor:
        """Swap the last two axes: a view of a tensor in memory, a RESHAPE of a virtual one."""
        return self.graph.transposed(self, dtype)  # type: ignore[no-any-return]

    def _pointwise(self, mode: str, other: object, *, reverse: bool = False) -> GraphTensor:
        other_tensor = self.graph.as_tensor(other)
        operands = (other_tensor, self) if reverse else (self, other_tensor)
        return self.graph.pointwise(mode, *operands)  # type: ignore[no-any-return]

    def __add__(self, other: object) -> GraphTensor:
        return self._pointwise("ADD", other)

    def __radd__(self, other: object) -> GraphTensor:
        return self._pointwise("ADD", other)

    def __sub__(self, other: object) -> GraphTensor:
        return self._pointwise("SUB", other)

    def __rsub__(self, other: object) -> GraphTensor:
        return self._pointwise("SUB", other, reverse=True)

    def __mul__(self, other: object) -> GraphTensor:
        return self._pointwise("MUL", other)

    def __rmul__(self, other: object) -> GraphTensor:
        return self._pointwise("MUL", other)

    def __truediv__(self, other: object) -> GraphTensor:
        return self.graph.div(self, other)  # type: ignore[no-any-return]

    def __rtruediv__(self, other: object) -> GraphTensor:
        return self._pointwise("DIV", other, reverse=True)

    def __matmul__(self, other: GraphTensor) -> GraphTensor:
        return self.graph.matmul(self, other)  # type: ignore[no-any-return]

    def __neg__(self) -> GraphTensor:
        return self.graph.pointwise("NEG", self)  # type: ignore[no-any-return]

    def __ge__(self, other: object) -> GraphTensor:
        return self._pointwise("CMP_GE", other)

    def __gt__(self, other: object) -> GraphTensor:
        return self._pointwise("CMP_GT", other)

    def __le__(self, other: object) -> GraphTensor:
        return self._pointwise("CMP_LE", other)

    def __lt__(self, other: object) -> GraphTensor:
        return self._pointwise("CMP_LT", other)

    def __repr__(self) -> str:
        return f"<tensor {self.record}>"
