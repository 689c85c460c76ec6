"""Ctrl-C before and after the command's own work: while it is imported, and while Python ends.

Imported by the package before anything else, because most of the time of a short command goes into imports.
"""

# built in, what `signal` takes its functions from: until the handler is another no more of Python runs than has to
import _signal  # type: ignore[import-not-found]
import os
import sys

INTERRUPTED = 130  # as shells have it


def end_quietly(*_: object) -> None:
    """Handle the signal: end the process at once, without a traceback."""
    os._exit(INTERRUPTED)


def replace(handler: object, by: object) -> None:
    """Set the handler of Ctrl-C where it is another one; what ignores it, or handles it otherwise, stays."""
    if _signal.getsignal(_signal.SIGINT) is handler:
        _signal.signal(_signal.SIGINT, by)


def is_own_command() -> bool:
    """Tell whether this process is `cudnnlite` or `python -m cudnnlite`, and not somebody else's program."""
    name = os.path.basename(next(iter(getattr(sys, "argv", ())), ""))
    behind = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if "-m" in sys.orig_argv else []
    # while Python looks for the module, every `python -m` is called "-m"
    return name == "cudnnlite" or (name == "-m" and behind[:1] == ["cudnnlite"])


if is_own_command():
    replace(_signal.default_int_handler, end_quietly)
