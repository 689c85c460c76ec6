"""`unforked`: what no process is forked in the midst of.

A forked child has one thread.  A lock that another thread held, in Python's imports or within libcudnn, stays held there.
"""

import logging  # noqa: F401  (registers first: the latest is called first, and whoever holds our lock may want to log)
import os
import threading

unforked = threading.RLock()  # held for moments: a fork waits for it
os.register_at_fork(before=unforked.acquire, after_in_parent=unforked.release, after_in_child=unforked.release)
