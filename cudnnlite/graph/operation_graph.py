"""`Graph`: the final descriptors of an operation graph."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.data import GraphData

ALIGNMENT = 16  # bytes; engines with vector loads need it of every operand


class Graph(NonCopyable):
    """The final descriptors of an operation graph, and the unique ids of its tensors.

    Operations are added one by one; `finish` makes the descriptor of the graph.

    Parameters
    ----------
    handle : Handle
        The device that it is for.
    data : GraphData
        What the descriptors describe.
    stack : ExitStack
        Owns the descriptors.
    """

    def __init__(self, handle: Any, data: GraphData, stack: ExitStack) -> None:
        self.handle, self.data, self._stack = handle, data, stack
        self.uids: dict[str, int] = {}  # by the names of the tensors that are in memory
        self.other_views: dict[str, str] = {}  # name of another view -> the tensor's name
        self._operations: list[BackendDescriptor] = []
        # Descriptors by kind and attributes.
        self._shared: dict[tuple[Any, ...], BackendDescriptor] = {}
        self.descriptor: BackendDescriptor | None = None

    def make(self, kind: str, /, **attributes: Any) -> BackendDescriptor:
        """Return a final descriptor, closed with the graph."""
        return self._stack.enter_context(
            BackendDescriptor(self.handle, kind, **attributes)
        ).finalize()

    def shared(self, kind: str, /, **attributes: Any) -> BackendDescriptor:
        """Return a final descriptor as `make` does; calls with the same attributes share one."""
        key = (kind, *attributes.items())
        if key not in self._shared:
            self._shared[key] = self.make(kind, **attributes)
        return self._shared[key]

    def add(
        self, kind: str, attributes: Mapping[str, Any], scalars: Mapping[str, float], type_name: str
    ) -> None:
        """Add an operation of any kind, with its attributes by cuDNN's names.

        `type_name` is the type of all `scalars`, "FLOAT" or "DOUBLE".
        """
        operation = self._stack.enter_context(BackendDescriptor(self.handle, kind, **attributes))
        for name, value in scalars.items():
            operation.set(name, value, type_name)
        self._operations.append(operation.finalize())

    def finish(self) -> Graph:
        """Make the descriptor of the whole graph, which cuDNN checks, and return this graph.

        Raises
        ------
        NotSupportedError
            cuDNN has no engines for such graphs.
        """
        self.descriptor = self.make("OPERATIONGRAPH", handle=self.handle, ops=self._operations)
        return self
