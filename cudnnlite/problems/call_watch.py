"""Whether anybody watches the calls of plans: `record_problems`, or a graph that `capture` records.

A plan's call reads `active` once, and only where that is true does it tell of itself:

    if call_watch.active:
        recording.record(self.problem)
        self.keep_for_graph(operands)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

# All three are read with the module's name before them, because a name that is imported would not
# change.
active = False
watchers: tuple[object, ...] = ()
lock = Lock()  # of `watchers`


@contextmanager
def watching(watcher: object) -> Iterator[None]:
    """Let the calls of plans, on whichever thread, tell of themselves until the block ends."""
    try:
        _add(watcher)
        yield
    finally:
        try:
            _remove(watcher)
        except BaseException:  # a signal handler's, which may have come before it was removed
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
    """Make another lock in a forked process: a thread that is not there may have the old one."""
    global lock  # noqa: PLW0603
    lock = Lock()


os.register_at_fork(after_in_child=_renew_lock)
