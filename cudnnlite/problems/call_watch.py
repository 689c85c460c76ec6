"""The watchers of plans' calls: `record_problems`, and a graph that `capture` records.

A plan's call reads `active` once.  Only if it is true, the call reports itself:

    if call_watch.active:
        recording.record(self.problem)
        self.keep_for_graph(operands)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

# Read them as `call_watch.active` and so on: an imported name would not see them change.
active = False
watchers: tuple[object, ...] = ()
lock = Lock()  # guards `watchers`


@contextmanager
def watching(watcher: object) -> Iterator[None]:
    """Let the calls of plans, on any thread, report themselves until the block ends."""
    try:
        _add(watcher)
        yield
    finally:
        try:
            _remove(watcher)
        except BaseException:  # a signal handler's, maybe from before the watcher was removed
            _remove(watcher)
            raise


def _add(watcher: object) -> None:
    global active, watchers
    with lock:
        watchers, active = (*watchers, watcher), True


def _remove(watcher: object) -> None:
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
