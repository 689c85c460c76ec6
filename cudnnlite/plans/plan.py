"""`Plan`: what is made once and called many times."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cudnnlite._raw.leaks import release_leaks
from cudnnlite.descriptors.native import Closable
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ClosedError
from cudnnlite.other_libraries import PLAN
from cudnnlite.unknown import refuse_attribute


class Plan(Closable):
    """Owns the descriptors of one operation on one handle; closed by itself, or with the handle.

    Subclasses put what they own into `_resources` and define `__call__`.
    """

    _instead_of_copy = "it belongs to a handle: make another plan on a handle"

    def __init__(self, handle: Handle, description: str) -> None:
        handle._use()
        release_leaks()
        self._handle = handle
        self._device = handle.device
        self._thread = handle._calling_thread
        self._closed = False
        self._holders = 0  # graphs
        self._description = description
        self._resources = ExitStack()
        self._release_when_leaked(
            self._resources.close,
            f"{description} was never closed; use `with`, or close its handle",
        )
        handle.plans.add_dependent(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError, with a hint."""
            return refuse_attribute(self, name, PLAN)

    @property
    def closed(self) -> bool:
        """Whether it was closed, by itself or with its handle."""
        return self._closed

    def close(self) -> None:
        """Destroy the descriptors; harmless when called again."""
        if not self._closed:
            self._closed = True
            self._leak.detach()
            if not self._holders:
                with self._device.closing():
                    self._resources.close()

    def _keep_for_graph(self, operands: Iterable[Any]) -> None:
        """Let the graph that is recorded on the handle, if any, keep this plan and its operands."""
        if self._handle._graph is not None:
            self._handle._graph.keep(self, operands)

    def _hold(self) -> None:
        """Keep the plan's resources after its `close()`, until `_release`."""
        self._holders += 1

    def _release(self) -> None:
        """Free the resources that `_hold` kept."""
        self._holders -= 1
        if self._closed and not self._holders:
            self._resources.close()

    def _use(self) -> None:
        """Check that plan and handle may be used here and now (see `Handle._use`)."""
        self._handle._use()
        if self._closed:
            raise ClosedError(f"{self._description} was closed")

    def __repr__(self) -> str:
        return f"<{'closed ' if self._closed else ''}{self._description}>"
