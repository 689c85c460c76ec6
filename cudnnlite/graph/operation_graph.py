"""`OperationGraph`: the final descriptors of an operation graph."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, cast

from cudnnlite._raw.enums import BackendBehaviorNote, BackendNumericalNote
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.data import GraphData

ALIGNMENT = 16  # bytes; engines with vector loads need it of every operand


class OperationGraph(NonCopyable):
    """The final descriptors of an operation graph, and the unique ids of its tensors.

    Operations are added one by one; `finish` makes the descriptor of the graph.

    Parameters
    ----------
    handle : Handle or CudnnApi
        A handle of the graph's device, or only a function table with `device_properties`.
    data : GraphData
        The graph that the descriptors describe.
    stack : ExitStack
        Owns the descriptors.
    device_properties : BackendDescriptor, optional
        The final "DEVICEPROP" of a device that has no handle.

    Attributes
    ----------
    device : dict
        The attribute that describes a device without a handle to cuDNN; otherwise empty.
    engine_notes : dict
        cuDNN's numerical and behaviour notes on the engines that were read so far, by number.
    """

    def __init__(
        self,
        handle: Any,
        data: GraphData,
        stack: ExitStack,
        device_properties: BackendDescriptor | None = None,
    ) -> None:
        self.handle = handle
        self.data = data
        self._stack = stack
        self.device: dict[str, Any] = {}
        # The attribute "handle" of graph and plan; empty for a device without a handle.
        self._handle_attribute: dict[str, Any] = {"handle": handle}
        if device_properties is not None:
            self.device = {"deviceprop": device_properties}
            self._handle_attribute = {}
        # The unique ids of the tensors in memory, by name.
        self.uids: dict[str, int] = {}
        # The names of tensors, by the names of further views of them.
        self.other_views: dict[str, str] = {}
        self._operations: list[BackendDescriptor] = []
        # Descriptors by kind and attributes.
        self._shared: dict[tuple[Any, ...], BackendDescriptor] = {}
        self.engine_notes: dict[
            int, tuple[frozenset[BackendNumericalNote], frozenset[BackendBehaviorNote]]
        ] = {}
        self.descriptor: BackendDescriptor | None = None

    def asking_heuristics(self) -> AbstractContextManager[object]:
        """Return the context in which a heuristic is asked about this graph.

        In this context no other thread waits for the device, because cuDNN 9.19 records a stream
        when it answers.  Otherwise 99 of 5648 such waits failed, and in one run of six the process
        ended.
        """
        if self.device:
            return nullcontext()  # an absent device is never waited for
        return cast("AbstractContextManager[object]", self.handle.device.holding_waits())

    def make(self, kind: str, /, **attributes: Any) -> BackendDescriptor:
        """Return a final descriptor, closed with the graph; at once if cuDNN refuses it."""
        with ExitStack() as trial:
            descriptor = trial.enter_context(BackendDescriptor(self.handle, kind, **attributes))
            descriptor.finalize()
            self._stack.enter_context(trial.pop_all())
        return descriptor

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

    def finish(self) -> OperationGraph:
        """Make the descriptor of the whole graph, which cuDNN checks, and return this graph.

        Raises
        ------
        NotSupportedError
            cuDNN has no engines for such graphs.
        """
        options = {"is_dynamic_shape_enabled": True} if self.data.dynamic_shapes else {}
        self.descriptor = self.make(
            "OPERATIONGRAPH", **self._handle_attribute, ops=self._operations, **options
        )
        return self

    def make_plan(
        self, configuration: BackendDescriptor, **attributes: BackendDescriptor
    ) -> BackendDescriptor:
        """Return the final plan of an engine's configuration, which the caller closes.

        `attributes` are further attributes of the plan.

        Raises
        ------
        NotSupportedError
            The engine does not run this graph on this device.
        """
        plan = BackendDescriptor(
            self.handle,
            "EXECUTION_PLAN",
            **self._handle_attribute,
            **self.device,
            **attributes,
            engine_config=configuration,
        )
        try:
            return plan.finalize()
        except BaseException:
            plan.close()
            raise
