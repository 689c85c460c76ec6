"""`Plan`: what is made once and called many times; and the cache of those that the one-line operations are made of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import Any, TypeVar

from cudnnlite.errors import ClosedError
from cudnnlite.handle import Handle
from cudnnlite.native import Closable

_MAX_CACHED = 128  # plans a handle keeps for one-line calls; the least recently used one goes first

PlanT = TypeVar("PlanT", bound="Plan")


class Plan(Closable):
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
        self._release_when_leaked(
            self._resources.close, f"{description} was never closed; use `with`, or close its handle"
        )
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
        plan = make()
        keep_plan(handle, key, plan)
    else:
        plans.move_to_end(key)
    return plan


def keep_plan(handle: Handle, key: Hashable, plan: Plan) -> None:
    """Let `cached_plan` return this plan for `key` from now on; one that it returned before is closed."""
    plans: OrderedDict[Hashable, Plan] = handle._plans
    before = plans.pop(key, None)
    plans[key] = plan
    if before is not None:
        before.close()
    while len(plans) > _MAX_CACHED:
        plans.popitem(last=False)[1].close()
