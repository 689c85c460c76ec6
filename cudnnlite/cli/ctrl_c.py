"""Ctrl-C outside of a command's own work: while commands are imported, and while Python ends."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130  # as shells have it


def end_quietly(*_: object) -> None:
    """Handle the signal: end the process at once, without a traceback."""
    os._exit(INTERRUPTED)


def replace(handler: object, by: object) -> None:
    """Set the handler of Ctrl-C where it is another one; any third one stays."""
    if signal.getsignal(signal.SIGINT) is handler:
        signal.signal(signal.SIGINT, by)  # type: ignore[arg-type]
