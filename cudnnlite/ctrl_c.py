"""Ctrl-C before and after the command's own work: while it is imported, and while Python ends.

Imported by the package before anything else, because most of the time of a short command goes into imports.
"""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130  # as shells have it


def end_quietly(*_: object) -> None:
    """Handle the signal: end the process at once, without a traceback."""
    os._exit(INTERRUPTED)


def replace(handler: object, by: object) -> None:
    """Set the handler of Ctrl-C where it is another one; what ignores it, or handles it otherwise, stays."""
    if signal.getsignal(signal.SIGINT) is handler:
        signal.signal(signal.SIGINT, by)  # type: ignore[arg-type]


# of `cudnnlite` and `python -m cudnnlite` alone, which Python calls "-m" while it looks for it
if os.path.basename(next(iter(getattr(sys, "argv", ())), "")) in ("-m", "cudnnlite"):
    replace(signal.default_int_handler, end_quietly)
