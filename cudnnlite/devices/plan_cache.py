"""`PlanCache`: the plans of a handle, for one-line calls, and to be closed with the handle."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import Any, Protocol

from cudnnlite._raw.noncopyable import NonCopyable

# The most keys of plans for one-line calls; the least recently used one goes first.  Training
# ResNet-50 has 69 kinds of calls, and a plan with a tuner's choice has two keys.  A plan of a
# convolution takes 100 KiB of the host's memory.
MAX_CACHED = 1024


class Closes(Protocol):
    """An object with a `close()`."""

    def close(self) -> None:
        """Give back what this object owns; harmless when called again."""


class PlanCache(NonCopyable):
    """The plans of one handle.

    It saves one-line calls what a plan costs to make: descriptors, a choice, marshalling.
    """

    _instead_of_copy = "it belongs to a handle, and every handle has one"

    def __init__(self) -> None:
        # Plans with the number of their last use: to move one to the end of an ordered dictionary
        # would hash its key once more.
        self._cached: dict[Hashable, list[Any]] = {}
        self._uses = 0
        self._dependents: set[weakref.ref[Any]] = set()

    def __len__(self) -> int:
        return len(self._cached)

    def add_dependent(self, plan: Closes) -> None:
        """Close `plan` with the handle, whoever holds it."""
        # A WeakSet's callback is Python, which would lose what a signal handler raises in it.
        self._dependents.add(weakref.ref(plan, self._dependents.discard))

    def find(self, key: Hashable) -> Any:
        """Return the plan for `key`, or None; TypeError if the key cannot be hashed."""
        entry = self._cached.get(key)
        if entry is None:
            return None
        self._uses += 1
        entry[1] = self._uses
        return entry[0]

    def get(self, key: Hashable, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return the plan for `key`, made by ``make(*arguments)`` if it is not there."""
        try:
            plan = self.find(key)
        except TypeError:  # unhashable: an argument of a wrong type, which making the plan names
            make(*arguments).close()
            raise
        if plan is None:
            plan = make(*arguments)
            self.keep(key, plan)
        return plan

    def keep(self, key: Hashable, plan: Closes) -> None:
        """Make `find` return this plan for `key`.

        A plan may have several keys; it is closed when the last of them is gone.
        """
        previous = self._cached.pop(key, None)
        self._uses += 1
        self._cached[key] = [plan, self._uses]
        if previous is not None:
            self._close_unless_kept(previous[0])
        while len(self._cached) > MAX_CACHED:
            oldest = min(self._cached, key=lambda cached: self._cached[cached][1])
            self._close_unless_kept(self._cached.pop(oldest)[0])

    def _close_unless_kept(self, plan: Closes) -> None:
        """Close a plan that `find` returns for no key any more."""
        if not any(kept_plan is plan for kept_plan, _ in self._cached.values()):
            plan.close()

    def close(self) -> None:
        """Close all plans, whichever of them fails."""
        with ExitStack() as stack:
            stack.callback(self._cached.clear)
            for reference in list(self._dependents):
                if (dependent := reference()) is not None:
                    stack.callback(dependent.close)
