"""`Leak`: what gives back the native objects of an owner that goes without `close()`.

Python drops an exception that is raised in a finalizer, also one of a signal handler that runs just
then.  So nothing of Python runs here when an owner goes: C notes it, and asks the interpreter for a
pending call.  That is made between two instructions of the main thread, as signal handlers are, and
what is raised in it comes out there.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from cudnnlite.errors import CudnnliteError

# Leaks whose owners are gone, oldest first.
_gone: deque[Leak] = deque()
# A weak reference has to be alive when its object goes, or nothing is called.
_watched: dict[int, Leak] = {}


class Leak(weakref.ref[Any]):
    """Calls `release` if an owner goes before `detach` was called, with a `ResourceWarning`.

    Parameters
    ----------
    owner : object
        What owns something; it is not kept alive.
    release : callable
        Gives that back; it must not refer to the owner.
    complaint : str
        The text of the warning.
    """

    __slots__ = ("_pending_call", "complaint", "release")

    def __new__(cls, owner: Any, release: Callable[[], object], complaint: str) -> Leak:
        return super().__new__(cls, owner, _gone.append)

    def __init__(self, owner: Any, release: Callable[[], object], complaint: str) -> None:
        self.release = release
        self.complaint = complaint
        # Python calls the callbacks of later references first.  Both are C, so that the pending
        # call cannot come between them.
        self._pending_call = weakref.ref(owner, _ask_for_pending_call)
        _watched[id(self)] = self

    def detach(self) -> None:
        """Do nothing when the owner goes; harmless when called again."""
        _watched.pop(id(self), None)


def release_leaks() -> None:
    """Give back what owners left that went without `close()`.

    The main thread does so soon after they went.  Whoever is about to make another native object
    calls this too: the main thread may wait for something meanwhile.
    """
    while _gone and not sys.is_finalizing():  # at the end the driver may be gone already
        try:
            leak = _gone.popleft()
        except IndexError:  # another thread was faster
            return
        if _watched.pop(id(leak), None) is None:
            continue
        try:
            _release(leak)
        except BaseException:  # a signal handler's: the others are given back later
            _ask_for_pending_call(None)
            raise


def _release(leak: Leak) -> None:
    try:
        # The place to name is where the pending call was made: behind here, `release_leaks` and
        # `__bool__`.
        warnings.warn(leak.complaint, ResourceWarning, stacklevel=4)
    # Warnings may be errors; the code that runs now leaked nothing.
    except ResourceWarning as error:
        _Unraisable(error)
    finally:
        try:
            leak.release()
        except Exception as error:
            if not _is_refusal(error):
                raise
            _Unraisable(error)


def _is_refusal(error: Exception) -> bool:
    """Tell whether cuDNN or CUDA refused something, and no signal handler raised the error."""
    return isinstance(error, CudnnliteError) or type(error).__module__.startswith("cuda.")


class _Unraisable:
    """Lets Python show an error as it shows those of finalizers, when it goes at once."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


class _ReleasesLeaks:
    """An object whose truth C asks for when it makes the pending call."""

    def __bool__(self) -> bool:
        if release_leaks is not None:  # at the end of the interpreter modules lose their names
            release_leaks()
        return False  # C takes 0 for success


_RELEASES_LEAKS = _ReleasesLeaks()
# The pending call is PyObject_IsTrue(_RELEASES_LEAKS): unlike a callback of ctypes, which prints
# what is raised in it, that tells the interpreter of an exception.  The third argument is the weak
# reference, which Python passes to its callback, and which C does not look at.
_ask_for_pending_call = partial(
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
        ("Py_AddPendingCall", ctypes.pythonapi)
    ),
    ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p),
    _RELEASES_LEAKS,
)
