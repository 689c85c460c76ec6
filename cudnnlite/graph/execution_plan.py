"""`ExecutionPlan`: a finished plan of the backend, called with a variant pack of addresses."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple, NoReturn

from cudnnlite._raw.calls import PreparedCall
from cudnnlite._raw.enums import BackendAttributeType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.attributes import attribute
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.engines import Configuration
from cudnnlite.graph.operation_graph import ALIGNMENT, Graph

MOST_PACKS = 16  # allocators give the same addresses back: a few sets of them come again and again


class _Pack(NamedTuple):
    """A variant pack: its address, the arguments of a call, and the calls that set addresses."""

    address: int | None
    arguments: tuple[Any, ...]
    steps: list[PreparedCall]


class ExecutionPlan(PreparedCall):
    """What an engine's configuration became, called as ``status = plan.function(*plan.arguments)``.

    Parameters
    ----------
    graph : Graph
        What is computed.
    configuration : Configuration
        By which engine.
    stack : ExitStack
        Owns what is made.

    Attributes
    ----------
    workspace : int
        Bytes that a call needs.

    Raises
    ------
    NotSupportedError
        The engine does not run this graph on this device after all.

    Notes
    -----
    C functions: `cudnnBackendExecute`; for addresses that were not seen lately,
    `cudnnBackendInitialize` or `cudnnBackendCreateDescriptor`, `cudnnBackendSetAttribute`,
    `cudnnBackendFinalize` of a variant pack.
    """

    def __init__(self, graph: Graph, configuration: Configuration, stack: ExitStack) -> None:
        handle, uids = graph.handle, graph.uids
        plan = BackendDescriptor(
            handle, "EXECUTION_PLAN", handle=handle, engine_config=configuration.descriptor
        )
        stack.enter_context(plan).finalize()
        self.workspace: int = plan.get("workspace_size")
        super().__init__(handle.api.bound("cudnnBackendExecute"), handle.ptr, plan.ptr, None)
        self._api, self._common = handle.api, self.arguments[:2]
        self._stack = stack.enter_context(ExitStack())  # of the packs, for as long as they come
        # by addresses in the graph's order and the workspace, the latest ones; the oldest is made
        # anew when there are many
        self._known: dict[tuple[int, ...], _Pack] = {}
        self._stack.callback(self._known.clear)
        self._spare: _Pack | None = None
        self._names = tuple(uids)
        self._pointers = (ctypes.c_void_p * (len(uids) + 1))()  # where C reads them
        self._write = Struct(f"{len(uids) + 1}P").pack_into
        self._ordered = itemgetter(*uids)
        self._ids = (ctypes.c_int64 * len(uids))(*uids.values())

    def replace(self, workSpace: int = 0, **addresses: int) -> None:
        """Change the addresses.

        Raises
        ------
        ArgumentError
            One is not aligned as the plan was made for.
        """
        key = (*self._ordered(addresses), workSpace)
        known = self._known
        pack = known.get(key)
        if pack is None:
            bits = 0
            for address in key:
                bits |= address
            if bits % ALIGNMENT:
                self._refuse(addresses | {"workspace": workSpace})
            oldest = None if len(known) < MOST_PACKS else next(iter(known))
            self._spare = pack = self._spare or (
                self._new() if oldest is None else known.pop(oldest)
            )
            self._write(self._pointers, 0, *key)
            for step in pack.steps:  # a new one is initialised for nothing, once
                if status := step.function(*step.arguments):
                    assert step.check is not None
                    step.check(status)
            self._spare, known[key] = None, pack  # not before it is good
        self.arguments = pack.arguments

    def _new(self) -> _Pack:
        """Return a pack that was never used."""
        pack = self._stack.enter_context(BackendDescriptor(self._api, "VARIANT_PACK")).ptr
        behind = ctypes.c_void_p(
            ctypes.addressof(self._pointers) + ctypes.sizeof(self._ids)
        )  # pointers are as wide
        values = [
            ("unique_ids", self._ids),
            ("data_pointers", self._pointers),
            ("workspace", behind),
        ]
        steps = [self._api.prepare("cudnnBackendInitialize", pack)]
        for name, array in values if self.workspace else values[:2]:
            number, type_name, many = attribute("VARIANT_PACK", name)
            kind, count = BackendAttributeType[type_name], len(self._ids) if many else 1
            steps.append(
                self._api.prepare("cudnnBackendSetAttribute", pack, number, kind, count, array)
            )
        steps.append(self._api.prepare("cudnnBackendFinalize", pack))
        for step in steps:
            step.arguments = step.marshalled(step.arguments)
        return _Pack(pack.value, self.marshalled((*self._common, pack)), steps)

    def pack_values(self, address: int) -> dict[str, Any] | None:
        """Return the values of the variant pack at an address; None if it is not this plan's."""
        for (*pointers, workspace), pack in self._known.items():
            if pack.address == address:
                values: dict[str, Any] = {"unique_ids": [*self._ids], "data_pointers": pointers}
                return values | ({"workspace": workspace} if workspace else {})
        return None

    def _refuse(self, addresses: dict[str, int]) -> NoReturn:
        name, address = next(
            (name, address) for name, address in addresses.items() if address % ALIGNMENT
        )
        argument = "out" if name == self._names[-1] else name
        raise ArgumentError(
            f"{argument} begins at {address:#x}; "
            f"the plan was made for operands that are aligned to {ALIGNMENT} bytes "
            "(interface='descriptor' makes one that takes any)"
        )
