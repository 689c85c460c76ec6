"""`Graph`: an operation graph as descriptors that are final."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.graph.backend_descriptor import BackendDescriptor

ALIGNMENT = 16  # bytes; what engines with vector loads want of every operand


class Graph(NonCopyable):
    """An operation graph that was made and is final, with the numbers of its tensors.

    Parameters
    ----------
    handle : Handle
        The device that it is for.
    stack : ExitStack
        Owns the descriptors.
    """

    def __init__(self, handle: Any, stack: ExitStack) -> None:
        self.handle, self._stack = handle, stack
        self.uids: dict[str, int] = {}  # of what is in memory
        self.other_views: dict[str, str] = {}  # name of another view -> the tensor's name
        self._operations: list[BackendDescriptor] = []
        self._shared: dict[tuple[Any, ...], BackendDescriptor] = {}
        self.descriptor: BackendDescriptor | None = None

    def make(self, kind: str, /, **attributes: Any) -> BackendDescriptor:
        """Return a final descriptor, closed with the graph."""
        return self._stack.enter_context(
            BackendDescriptor(self.handle, kind, **attributes)
        ).finalize()

    def shared(self, kind: str, /, **attributes: Any) -> BackendDescriptor:
        """Return what `make` does, made once for the same attributes."""
        key = (kind, *attributes.items())
        if key not in self._shared:
            self._shared[key] = self.make(kind, **attributes)
        return self._shared[key]

    def add(
        self, kind: str, attributes: Mapping[str, Any], scalars: Mapping[str, float], type_name: str
    ) -> None:
        """Add an operation of any kind, with its attributes by cuDNN's names.

        `scalars` are passed as the type that is named, "FLOAT" or "DOUBLE".
        """
        operation = self._stack.enter_context(BackendDescriptor(self.handle, kind, **attributes))
        for name, value in scalars.items():
            operation.set(name, value, type_name)
        self._operations.append(operation.finalize())

    def finish(self) -> Graph:
        """Let cuDNN check the whole; returns it.

        Raises
        ------
        NotSupportedError
            cuDNN has no engines for such graphs.
        """
        self.descriptor = self.make("OPERATIONGRAPH", handle=self.handle, ops=self._operations)
        return self
