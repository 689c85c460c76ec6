"""`Plan`: what is made once and called many times; and the cache of those that the one-line operations are made of."""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

from cudnnlite.errors import ClosedError
from cudnnlite.handle import Handle

_MAX_CACHED = 128  # plans a handle keeps for one-line calls; the least recently used one goes first

PlanT = TypeVar("PlanT", bound="Plan")


def _close_leaked(resources: ExitStack, description: str) -> None:
    try:
        warnings.warn(f"{description} was never closed; use `with`, or close its handle", ResourceWarning, stacklevel=2)
    finally:  # also where warnings are errors
        resources.close()


class Plan:
    """Owns the descriptors of one operation on one handle; closed by `with`, by `close()`, or with the handle.

    Subclasses put what they own into `_resources` and define `__call__`.
    """

    def __init__(self, handle: Handle, description: str) -> None:
        handle.use()
        self._handle = handle
        self._device = handle.device
        self._thread = handle.calling_thread
        self._closed = False
        self._description = description
        self._resources = ExitStack()
        self._finalizer = weakref.finalize(self, _close_leaked, self._resources, description)
        self._finalizer.atexit = False
        handle._dependents.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed, by itself or with its handle."""
        return self._closed

    def close(self) -> None:
        """Destroy the descriptors; harmless when called again."""
        if not self._closed:
            self._closed = True
            self._finalizer.detach()
            self._resources.close()

    def use(self) -> None:
        """Check that plan and handle may be used here and now (see `Handle.use`)."""
        self._handle.use()
        if self._closed:
            raise ClosedError(f"{self._description} was closed")

    def __enter__(self: PlanT) -> PlanT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: it belongs to a handle")

    def __repr__(self) -> str:
        return f"<{'closed ' if self._closed else ''}{self._description}>"


def cached_plan(handle: Handle, key: Hashable, make: Callable[[], PlanT]) -> PlanT:
    """Return the handle's plan for `key`, made if it is not there."""
    plans: OrderedDict[Hashable, PlanT] = handle._plans
    try:
        plan = plans.get(key)
    except TypeError:  # unhashable: an argument of a wrong type, which making the plan names
        make().close()
        raise
    if plan is None:
        plan = plans[key] = make()
        while len(plans) > _MAX_CACHED:
            plans.popitem(last=False)[1].close()
    else:
        plans.move_to_end(key)
    return plan
