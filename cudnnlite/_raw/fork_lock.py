"""`fork_lock`: no process is forked while a thread holds it.

A forked child has one thread.  A lock that another thread held, in Python's imports or within
libcudnn, stays held there.
"""

# `logging` has to register its own lock first: the hooks run in the reverse order, and a thread
# that holds our lock may log.
import logging  # noqa: F401
import os
import threading
from typing import Any

fork_lock: Any = threading.RLock()


def _release() -> None:
    # A signal handler's exception ends the wait for the lock, but not the fork.
    if fork_lock._is_owned():
        fork_lock.release()


def _renew() -> None:
    if fork_lock._is_owned():
        fork_lock.release()
    else:  # A thread that is not in the child holds it.
        fork_lock._at_fork_reinit()


os.register_at_fork(before=fork_lock.acquire, after_in_parent=_release, after_in_child=_renew)
