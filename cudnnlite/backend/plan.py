"""`ExecutionPlan`: a finished plan of the backend as a prepared call, with a variant pack for each set of addresses."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

from cudnnlite._raw.types import cudnnBackendDescriptor_t
from cudnnlite.backend.descriptor import BackendDescriptor
from cudnnlite.backend.engines import Configuration
from cudnnlite.backend.graph import ALIGNMENT, Graph
from cudnnlite.errors import ArgumentError

MOST_PACKS = 32  # allocators give the same addresses back: a few sets of them come again and again


class ExecutionPlan:
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
    C functions: `cudnnBackendExecute`; for addresses that were not seen lately, those of a `BackendDescriptor`.
    """

    def __init__(self, graph: Graph, configuration: Configuration, stack: ExitStack) -> None:
        self._handle, self._uids = graph.handle, graph.uids
        self._plan = stack.enter_context(
            BackendDescriptor(
                graph.handle, "EXECUTION_PLAN", handle=graph.handle, engine_config=configuration.descriptor
            )
        ).finalize()
        self.workspace: int = self._plan.get("workspace_size")
        self._names = tuple(graph.uids)
        self._ids = (ctypes.c_int64 * len(graph.uids))(*graph.uids.values())
        self._packs: dict[tuple[int, ...], tuple[Any, ...]] = {}
        self._owned: dict[tuple[int, ...], BackendDescriptor] = {}
        stack.callback(self._close)
        prepared = graph.handle.api.prepare("cudnnBackendExecute", graph.handle.ptr, self._plan.ptr, None)
        self.function, self.check = prepared.function, prepared.check
        self.arguments: tuple[Any, ...] = prepared.arguments

    def replace(self, workSpace: int = 0, **addresses: int) -> None:
        """Change the addresses.

        Raises
        ------
        ArgumentError
            One is not aligned as the plan was made for.
        """
        key = (workSpace, *addresses.values())
        arguments = self._packs.get(key)
        if arguments is None:
            arguments = self._add(key, addresses, workSpace)
        self.arguments = arguments

    def _add(self, key: tuple[int, ...], addresses: dict[str, int], workspace: int) -> tuple[Any, ...]:
        for name, address in (*addresses.items(), ("workspace", workspace)):
            if address % ALIGNMENT:
                raise ArgumentError(
                    f"{name} begins at {address:#x}; the plan was made for operands that are aligned to {ALIGNMENT} bytes "
                    "(interface='descriptor' makes one that takes any)"
                )
        while len(self._packs) >= MOST_PACKS:
            oldest = next(iter(self._packs))
            del self._packs[oldest]
            self._owned.pop(oldest).close()
        pack = BackendDescriptor(
            self._handle, "VARIANT_PACK", unique_ids=tuple(self._ids),
            data_pointers=[addresses[name] for name in self._names], workspace=workspace,
        )  # fmt: skip
        try:
            pack.finalize()
        except BaseException:
            pack.close()
            raise
        self._owned[key] = pack
        self._packs[key] = arguments = (*self.arguments[:2], cudnnBackendDescriptor_t.from_param(pack.ptr))
        return arguments

    def _close(self) -> None:
        for pack in self._owned.values():
            pack.close()
        self._owned.clear()
        self._packs.clear()
