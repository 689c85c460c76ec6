"""`ExecutionPlan`: a plan of cuDNN's backend as a prepared call.

Each set of addresses has a variant pack.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from typing import Any, NoReturn

from cudnnlite._raw.calls import PreparedCall
from cudnnlite._raw.enums import BackendAttributeType, BackendDescriptorType
from cudnnlite._raw.types import cudnnBackendDescriptor_t
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.attributes import attribute
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.compiled_plans import finalized_plan
from cudnnlite.graph.engines import Configuration
from cudnnlite.graph.numbers import NumbersInMemory
from cudnnlite.graph.operation_graph import ALIGNMENT, OperationGraph

# Allocators return the same addresses again and again, so a few packs serve most calls.
MOST_PACKS = 16


@dataclass(slots=True)
class _Pack:
    """A variant pack with the calls that use it."""

    native: cudnnBackendDescriptor_t
    # The calls that write operands' addresses into it, while it is new.
    steps: list[PreparedCall]
    # The arguments of a call of the plan with it.
    arguments: tuple[Any, ...] = ()


class ExecutionPlan(PreparedCall):
    """A plan of an engine for a graph, called as ``status = plan.function(*plan.arguments)``.

    Parameters
    ----------
    graph : OperationGraph
        The graph.
    configuration : Configuration
        The engine with its knobs.
    stack : ExitStack
        The owner of all descriptors.
    numbers : NumbersInMemory, optional
        The numbers that the graph passes by value.

    Attributes
    ----------
    workspace : int
        Bytes of workspace that a call needs.

    Raises
    ------
    NotSupportedError
        The engine does not run this graph on this device.

    Notes
    -----
    C function: `cudnnBackendExecute`.  Addresses that have no variant pack need a new one:
    `cudnnBackendCreateDescriptor`, `cudnnBackendSetAttribute` and `cudnnBackendFinalize`, and
    `cudnnBackendDestroyDescriptor` for the oldest.
    """

    def __init__(
        self,
        graph: OperationGraph,
        configuration: Configuration,
        stack: ExitStack,
        numbers: NumbersInMemory | None = None,
    ) -> None:
        handle, uids = graph.handle, graph.uids
        plan = stack.enter_context(finalized_plan(graph, configuration))
        self.workspace: int = plan.get("workspace_size")
        super().__init__(handle.api.bound("cudnnBackendExecute"), handle.ptr, plan.ptr, None)
        self._api, self._common = handle.api, self.marshalled(self.arguments[:2])
        # A new pack that takes the place of an old one, and the old one.
        self._fresh, self._old = cudnnBackendDescriptor_t(), cudnnBackendDescriptor_t()
        self._create = self._api.prepare(
            "cudnnBackendCreateDescriptor",
            BackendDescriptorType.VARIANT_PACK,
            ctypes.byref(self._fresh),
        )
        self._destroy = self._api.prepare("cudnnBackendDestroyDescriptor", self._old)
        self._stack = stack.enter_context(ExitStack())  # owns the packs
        # By the addresses in the graph's order, and that of the workspace.  Once there are
        # MOST_PACKS, a pack of new addresses takes the place of the oldest one.
        self._packs: dict[tuple[int, ...], _Pack] = {}
        self._stack.callback(self._packs.clear)
        # A pack whose addresses could not be written.
        self._spare: _Pack | None = None
        self._names = tuple(uids)
        self._other_views = graph.other_views
        self._numbers = numbers  # C reads its memory
        self._constant_addresses = {} if numbers is None else numbers.addresses
        # C reads the addresses here when they are written into a pack.
        self._pointers = (ctypes.c_void_p * (len(uids) + 1))()
        self._write = Struct(f"{len(uids) + 1}P").pack_into
        self._ordered = itemgetter(*uids)
        self._ids = (ctypes.c_int64 * len(uids))(*uids.values())

    def replace(self, workSpace: int = 0, **addresses: int) -> None:
        """Change the addresses.

        Raises
        ------
        ArgumentError
            An address is not aligned as the plan needs it.
        """
        for view, name in self._other_views.items():
            addresses[view] = addresses[name]
        addresses |= self._constant_addresses
        key = (*self._ordered(addresses), workSpace)
        pack = self._packs.get(key)
        if pack is None:
            bits = 0
            for address in key:
                bits |= address
            if bits % ALIGNMENT:
                self._refuse(addresses | {"workspace": workSpace})
            pack = self._write_pack(key)
        self.arguments = pack.arguments

    def _write_pack(self, key: tuple[int, ...]) -> _Pack:
        """Write addresses into a new pack, and return it."""
        packs = self._packs
        if self._spare is None and len(packs) >= MOST_PACKS:
            self._spare = packs.pop(next(iter(packs)))
        if self._spare is None:
            self._spare = self._new_pack()
        else:
            # No call may use a pack that is destroyed, if a step below fails.
            self.arguments = (*self._common, None)
            self._renew(self._spare)
        pack = self._spare
        self._write(self._pointers, 0, *key)
        for step in pack.steps:
            if status := step.function(*step.arguments):
                assert step.check is not None
                step.check(status)
        pack.arguments = (*self._common, *self.marshalled((pack.native,)))
        # Only now all its addresses are written.
        self._spare, packs[key] = None, pack
        return pack

    def _new_pack(self) -> _Pack:
        """Return a pack that has no addresses yet."""
        pack = self._stack.enter_context(BackendDescriptor(self._api, "VARIANT_PACK")).ptr
        values: list[tuple[str, Any]] = [
            ("unique_ids", self._ids),
            ("data_pointers", self._pointers),
        ]
        if self.workspace:
            # Its address follows those of the operands.  Ids and pointers have the same width.
            workspace_pointer = ctypes.addressof(self._pointers) + ctypes.sizeof(self._ids)
            values.append(("workspace", ctypes.c_void_p(workspace_pointer)))
        steps = []
        for name, array in values:
            number, type_name, has_several = attribute("VARIANT_PACK", name)
            kind = BackendAttributeType[type_name]
            count = len(self._ids) if has_several else 1
            steps.append(
                self._api.prepare("cudnnBackendSetAttribute", pack, number, kind, count, array)
            )
        steps.append(self._api.prepare("cudnnBackendFinalize", pack))
        for step in steps:
            # `_renew` changes the value of the pack.
            step.arguments = (pack, *step.marshalled(step.arguments[1:]))
        return _Pack(pack, steps)

    def _renew(self, pack: _Pack) -> None:
        """Replace the descriptor of a pack, which is final, by a new one; destroy the old one."""
        self._create()
        self._old.value, pack.native.value = pack.native.value, self._fresh.value
        self._destroy()

    def pack_values(self, address: int) -> dict[str, Any] | None:
        """Return the values of the variant pack at an address; None if there is none."""
        for (*pointers, workspace), pack in self._packs.items():
            if pack.native.value == address:
                values: dict[str, Any] = {"unique_ids": [*self._ids], "data_pointers": pointers}
                if workspace:
                    values["workspace"] = workspace
                return values
        return None

    def _refuse(self, addresses: dict[str, int]) -> NoReturn:
        """Raise ArgumentError for the first operand that is not aligned."""
        name, address = next(
            (name, address) for name, address in addresses.items() if address % ALIGNMENT
        )
        argument = "out" if name == self._names[-1] else name
        raise ArgumentError(
            f"{argument} begins at {address:#x}; the plan was made for operands that are aligned "
            f"to {ALIGNMENT} bytes (interface='descriptor' makes one that takes any)"
        )
