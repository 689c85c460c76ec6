"""`unforked`: what no process is forked in the midst of.

A forked child has one thread.  A lock that another thread held, in Python's imports or within
libcudnn, stays held there.
"""

import logging  # noqa: F401  (registers first: the latest is called first, and whoever holds our lock may want to log)
import os
import threading
from typing import Any

unforked: Any = threading.RLock()  # a fork waits for it


def _release() -> None:
    if unforked._is_owned():  # what a signal handler raises ends the wait, and not the fork
        unforked.release()


def _renew() -> None:
    if unforked._is_owned():
        unforked.release()
    else:  # another thread has it, which is not here
        unforked._at_fork_reinit()


os.register_at_fork(before=unforked.acquire, after_in_parent=_release, after_in_child=_renew)
