"""The watchers of plans' calls: `record_problems`, and a graph that `capture` records.

A plan's call reads `active` once.  Only if it is true, the call reports itself:

    if call_watch.active:
        call_watch.record(self.problem)
        self._keep_for_graph(operands)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from cudnnlite.problems.problem import Problem

Watcher = Callable[[Problem], None]

# Read them as `call_watch.active` and so on: an imported name would not see them change.
active = False
watchers: tuple[Watcher, ...] = ()
lock = Lock()  # guards `watchers`
_paused = ContextVar("cudnnlite.problems.call_watch.paused", default=False)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Let the calls of plans, on any thread, report themselves until the block ends.

    The watcher is called with each problem.
    """
    try:
        _add(watcher)
        yield
    finally:
        try:
            _remove(watcher)
        except BaseException:  # a signal handler's, maybe from before the watcher was removed
            _remove(watcher)
            raise


def record(problem: Problem) -> None:
    """Tell all watchers of a problem, unless recording is paused in this thread."""
    if _paused.get():
        return
    with lock:
        for watcher in watchers:
            watcher(problem)


@contextmanager
def paused() -> Iterator[None]:
    """Do not record this thread's calls, for instance those of a search, until the block ends."""
    before = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(before)


def _add(watcher: Watcher) -> None:
    global active, watchers
    with lock:
        watchers, active = (*watchers, watcher), True


def _remove(watcher: Watcher) -> None:
    """Remove a watcher; harmless when called again."""
    global active, watchers  # noqa: PLW0603
    with lock:
        watchers = tuple(other for other in watchers if other is not watcher)
        active = bool(watchers)


def _renew_lock() -> None:
    """Make a new lock in a forked process: a thread of the parent may hold the old one."""
    global lock  # noqa: PLW0603
    lock = Lock()


os.register_at_fork(after_in_child=_renew_lock)
