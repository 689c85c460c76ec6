"""`PlanCache`: the plans of a handle: those that one-line calls are made of, and all that must be closed with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

from cudnnlite._raw.noncopyable import NonCopyable

MAX_CACHED = 128  # plans kept for one-line calls; the least recently used one goes first


class Closes(Protocol):
    """What has a `close()`."""

    def close(self) -> None:
        """Give back what this object owns; harmless when called again."""


class _Asked(Exception):  # noqa: N818  (no error)
    """Ends a call that was made only to learn which plan it runs; has what makes that."""


class PlanCache(NonCopyable):
    """The plans of one handle."""

    _instead_of_copy = "it belongs to a handle, and every handle has one"

    def __init__(self) -> None:
        # with the number of its last use: to move it in an ordered dictionary would take its key's hash once more
        self._cached: dict[Hashable, list[Any]] = {}
        # and by what costs less to look up
        self._quick: dict[Hashable, tuple[Any, list[Any]]] = {}
        self._uses = 0
        self._asking = False
        self._dependents: set[weakref.ref[Any]] = set()

    def __len__(self) -> int:
        return len(self._cached)

    def add_dependent(self, plan: Closes) -> None:
        """Close `plan` with the handle, whoever holds it."""
        # not a WeakSet, whose callback is Python, which would lose what a signal handler raises in it
        self._dependents.add(weakref.ref(plan, self._dependents.discard))

    def find_quick(self, key: Hashable, options: Any) -> Any:
        """Return the plan that `add_quick` was told; None if it is not there, or was told of others than these options."""
        known = self._quick.get(key)
        if known is None or known[0] != options:
            return None
        self._uses += 1
        known[1][1] = self._uses
        return known[1][0]

    def add_quick(self, quick: Hashable, key: Hashable, options: Any) -> None:
        """Let `find_quick` return the plan for `key`, until another plan is made."""
        self._quick[quick] = options, self._cached[key]

    def get(self, key: Hashable, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return the plan for `key`, made by ``make(*arguments)`` if it is not there."""
        if self._asking:
            raise _Asked(partial(make, *arguments))
        try:
            entry = self._cached.get(key)
        except TypeError:  # unhashable: an argument of a wrong type, which making the plan names
            make(*arguments).close()
            raise
        if entry is None:
            plan = make(*arguments)
            self.keep(key, plan)
            return plan
        self._uses += 1
        entry[1] = self._uses
        return entry[0]

    def asked_for(self, call: Callable[[], object]) -> Callable[[], Any] | None:
        """Return what makes the plan that a call would run, which goes no further; None if it runs none."""
        self._quick.clear()  # which calls look into before
        self._asking = True
        try:
            call()
        except _Asked as asked:
            asked.__traceback__ = None  # its frames have the operands
            return asked.args[0]  # type: ignore[no-any-return]
        finally:
            self._asking = False
        return None

    def keep(self, key: Hashable, plan: Closes) -> None:
        """Let `get` return this plan for `key` from now on; one that it returned before is closed."""
        self._quick.clear()
        before = self._cached.pop(key, None)
        self._uses += 1
        self._cached[key] = [plan, self._uses]
        if before is not None:
            before[0].close()
        while len(self._cached) > MAX_CACHED:
            oldest = min(self._cached, key=lambda known: self._cached[known][1])
            self._cached.pop(oldest)[0].close()

    def close(self) -> None:
        """Close all plans, whichever of them fails."""
        with ExitStack() as stack:
            stack.callback(self._cached.clear)
            stack.callback(self._quick.clear)
            for reference in list(self._dependents):
                if (dependent := reference()) is not None:
                    stack.callback(dependent.close)
