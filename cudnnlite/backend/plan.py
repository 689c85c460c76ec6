"""`ExecutionPlan`: a finished plan of the backend as a prepared call, with a variant pack for each set of addresses."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from operator import itemgetter
from struct import Struct
from typing import Any, NoReturn

from cudnnlite._raw.calls import PreparedCall
from cudnnlite._raw.enums import BackendAttributeType
from cudnnlite.backend.attributes import attribute
from cudnnlite.backend.descriptor import BackendDescriptor
from cudnnlite.backend.engines import Configuration
from cudnnlite.backend.graph import ALIGNMENT, Graph
from cudnnlite.errors import ArgumentError

_Pack = tuple[tuple[Any, ...], list[PreparedCall]]
MOST_PACKS = 16  # allocators give the same addresses back: a few sets of them come again and again


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
    C functions: `cudnnBackendExecute`; for addresses that were not seen lately, `cudnnBackendInitialize` or
    `cudnnBackendCreateDescriptor`, `cudnnBackendSetAttribute`, `cudnnBackendFinalize` of a variant pack.
    """

    def __init__(self, graph: Graph, configuration: Configuration, stack: ExitStack) -> None:
        handle = graph.handle
        plan = BackendDescriptor(handle, "EXECUTION_PLAN", handle=handle, engine_config=configuration.descriptor)
        stack.enter_context(plan).finalize()
        self.workspace: int = plan.get("workspace_size")
        super().__init__(handle.api.bound("cudnnBackendExecute"), handle.ptr, plan.ptr, None)
        self._packs = _VariantPacks(handle, graph.uids, stack, self.arguments[:2], self.workspace)
        self._known = self._packs.known

    def replace(self, workSpace: int = 0, **addresses: int) -> None:
        """Change the addresses.

        Raises
        ------
        ArgumentError
            One is not aligned as the plan was made for.
        """
        key = (workSpace, *addresses.values())
        self.arguments = (self._known.get(key) or self._packs.make(key, addresses, workSpace))[0]

    def pack_values(self, pack: int) -> dict[str, Any] | None:
        """Return what the variant pack at an address was set to; None if it is none of this plan's."""
        return self._packs.values_of(pack)


class _VariantPacks:
    """Final variant packs by their addresses, the latest ones; the oldest is made anew when there are many.

    Attributes
    ----------
    known : dict
        By workspace and addresses: the arguments of a call, and the calls that its pack was made by.
    """

    def __init__(
        self, handle: Any, uids: dict[str, int], stack: ExitStack, common: tuple[Any, ...], workspace: int
    ) -> None:
        self._api = handle.api
        self._stack = stack.enter_context(ExitStack())  # for as long as they come
        self._common = common
        self.known: dict[tuple[int, ...], _Pack] = {}
        self._spare: list[_Pack] = []
        self._names = tuple(uids)
        # addresses in their order, and the workspace behind them: written and looked through in C
        self._pointers = (ctypes.c_void_p * (len(uids) + 1))()
        self._write = Struct(f"{len(uids) + 1}P").pack_into
        self._ordered = itemgetter(*uids)
        behind = ctypes.c_void_p(ctypes.addressof(self._pointers) + len(uids) * ctypes.sizeof(ctypes.c_void_p))
        self._order: tuple[str, ...] = ()  # of the addresses in what they are known by
        self._stack.callback(self.known.clear)
        self._ids = ids = (ctypes.c_int64 * len(uids))(*uids.values())
        self._values = [("unique_ids", ids), ("data_pointers", self._pointers)] + [("workspace", behind)] * bool(
            workspace
        )

    def _new(self) -> _Pack:
        """Return a pack that was never used, with the calls that make it anew."""
        pack = self._stack.enter_context(BackendDescriptor(self._api, "VARIANT_PACK")).ptr
        steps = [self._api.prepare("cudnnBackendInitialize", pack)]
        for name, array in self._values:
            number, type_name, many = attribute("VARIANT_PACK", name)
            kind, count = BackendAttributeType[type_name], len(self._names) if many else 1
            steps.append(self._api.prepare("cudnnBackendSetAttribute", pack, number, kind, count, array))
        steps.append(self._api.prepare("cudnnBackendFinalize", pack))
        return (*self._common, pack), steps

    def values_of(self, address: int) -> dict[str, Any] | None:
        """Return what the pack at an address was set to; None if there is none."""
        for (workspace, *pointers), (arguments, _) in self.known.items():
            if arguments[-1].value == address:
                ordered = self._ordered(dict(zip(self._order, pointers, strict=True)))
                values: dict[str, Any] = {"unique_ids": [*self._ids], "data_pointers": [*ordered]}
                return values | ({"workspace": workspace} if workspace else {})
        return None

    def make(self, key: tuple[int, ...], addresses: dict[str, int], workspace: int) -> tuple[Any, ...]:
        """Return the arguments of a call with these addresses, of which there is no pack."""
        ordered = self._ordered(addresses)
        bits = workspace
        for address in ordered:
            bits |= address
        if bits % ALIGNMENT:
            self._refuse(addresses | {"workspace": workspace})
        known, spare = self.known, self._spare
        if not spare:
            spare.append(known.pop(next(iter(known))) if len(known) >= MOST_PACKS else self._new())
        self._write(self._pointers, 0, *ordered, workspace)
        for step in spare[-1][1]:  # a new one is initialised for nothing, once
            if status := step.function(*step.arguments):
                assert step.check is not None
                step.check(status)
        self._order = tuple(addresses)
        known[key] = made = spare.pop()  # not before it is good
        return made

    def _refuse(self, addresses: dict[str, int]) -> NoReturn:
        name, address = next((name, address) for name, address in addresses.items() if address % ALIGNMENT)
        argument = "out" if name == self._names[-1] else name
        raise ArgumentError(
            f"{argument} begins at {address:#x}; the plan was made for operands that are aligned to {ALIGNMENT} bytes "
            "(interface='descriptor' makes one that takes any)"
        )
