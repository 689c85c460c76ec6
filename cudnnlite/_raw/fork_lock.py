"""`fork_lock`: no process is forked while a thread holds it.

A forked child has one thread.  A lock that another thread held, in Python's imports or within
libcudnn, stays held there.
"""

import logging  # noqa: F401  (registers first: the latest is called first, and whoever holds our lock may want to log)
import os
import threading
from typing import Any

fork_lock: Any = threading.RLock()  # a fork waits for it


def _release() -> None:
    if fork_lock._is_owned():  # what a signal handler raises ends the wait, and not the fork
        fork_lock.release()


def _renew() -> None:
    if fork_lock._is_owned():
        fork_lock.release()
    else:  # another thread has it, which is not here
        fork_lock._at_fork_reinit()


os.register_at_fork(before=fork_lock.acquire, after_in_parent=_release, after_in_child=_renew)
