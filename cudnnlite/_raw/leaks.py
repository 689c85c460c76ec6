"""`Leak`: frees the native objects of an owner that is collected without `close()`.

Python drops an exception that is raised in a finalizer, even one of a signal handler that happens
to run there.  So no Python code runs here when an owner is collected.  C code notes the leak, and
asks the interpreter for a pending call.  The interpreter makes a pending call between two
instructions of the main thread, as it runs signal handlers, and an exception in it is raised there.
When the interpreter ends, nothing is freed any more: a pending call that is made after the modules
were cleared ends the process.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from cudnnlite.errors import CudnnliteError

# Leaks whose owners were collected, oldest first.
_leaked: deque[Leak] = deque()
# Python calls the callback of a weak reference only if the reference is alive.
watched: dict[int, Leak] = {}


class Leak(weakref.ref[Any]):
    """Calls `release`, with a `ResourceWarning`, if an owner is collected before `detach`.

    Parameters
    ----------
    owner : object
        The owner of a native object; it is not kept alive.
    release : callable
        Frees the native object; it must not refer to the owner.
    complaint : str
        The text of the warning.
    """

    __slots__ = ("_pending_call", "complaint", "release")

    def __new__(cls, owner: Any, release: Callable[[], object], complaint: str) -> Leak:
        return super().__new__(cls, owner, _leaked.append)

    def __init__(self, owner: Any, release: Callable[[], object], complaint: str) -> None:
        self.release = release
        self.complaint = complaint
        # Python calls the callbacks of later references first.  Both are C, so that the pending
        # call cannot come between them.
        self._pending_call: object = None
        if not sys.is_finalizing():
            self._pending_call = weakref.ref(owner, ask_for_pending_call)
        watched[id(self)] = self

    def detach(self) -> None:
        """Stop watching the owner; harmless when called again."""
        self._pending_call = None
        watched.pop(id(self), None)


def release_leaks() -> None:
    """Free the native objects of owners that were collected without `close()`.

    The main thread does this soon after they were collected.  This is also called before another
    native object is made, because the main thread may be waiting for something.
    """
    # While the interpreter ends, the driver may have been shut down already.
    while _leaked and not sys.is_finalizing():
        try:
            leak = _leaked.popleft()
        except IndexError:  # Another thread was faster.
            return
        if watched.pop(id(leak), None) is None:
            continue
        try:
            _release(leak)
        except BaseException:  # A signal handler raised it; the other leaks are freed later.
            ask_for_pending_call(None)
            raise


def _release(leak: Leak) -> None:
    try:
        # The warning names the place where the pending call was made.  Between it and this line
        # are `__bool__` and `release_leaks`.
        warnings.warn(leak.complaint, ResourceWarning, stacklevel=4)
    except ResourceWarning as error:  # Warnings may be errors, but not of the code that runs now.
        _Unraisable(error)
    finally:
        try:
            leak.release()
        except Exception as error:
            if not _is_refusal(error):
                raise
            _Unraisable(error)


def _is_refusal(error: Exception) -> bool:
    """Tell whether cuDNN or CUDA raised an error, and not a signal handler."""
    return isinstance(error, CudnnliteError) or type(error).__module__.startswith("cuda.")


@atexit.register
def _ask_for_no_more_calls() -> None:
    """Let owners that are collected while the interpreter ends ask for no pending call."""
    for leak in list(watched.values()):
        leak._pending_call = None


class _Unraisable:
    """Shows an error as Python shows the errors of finalizers, when it is dropped."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


class _ReleasesLeaks:
    """An object that frees leaks when C code asks for its truth value."""

    def __bool__(self) -> bool:
        # When the interpreter ends, the names of modules become None.
        if release_leaks is not None:
            release_leaks()
        return False  # 0 is success in C.


_RELEASES_LEAKS = _ReleasesLeaks()
# The pending call is PyObject_IsTrue(_RELEASES_LEAKS), which passes an exception on to the
# interpreter; a callback of ctypes would print it.  The third argument is the weak reference that
# Python passes to its callback; C ignores it.
ask_for_pending_call = partial(
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
        ("Py_AddPendingCall", ctypes.pythonapi)
    ),
    ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p),
    _RELEASES_LEAKS,
)
