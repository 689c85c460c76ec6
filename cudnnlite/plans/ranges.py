"""The calls of plans as ranges of NVTX, which Nsight Systems shows beside the kernels."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from cudnnlite.errors import MissingPackageError

VARIABLE = "CUDNNLITE_NVTX"  # read once, when cudnnlite is imported

CallT = TypeVar("CallT", bound=Callable[..., Any])
_thread = threading.local()  # `is_inside`: whether a call is in a range already


def in_range(call: CallT) -> CallT:
    """Return a method of a plan: itself, or within a range if `CUDNNLITE_NVTX` is 1.

    A call that makes another call of a plan is one range.
    """
    if os.environ.get(VARIABLE) != "1":
        return call

    @wraps(call)
    def call_in_range(plan: Any, *arguments: Any, **options: Any) -> Any:
        try:
            import nvtx
        except ImportError as error:
            raise MissingPackageError(f"{VARIABLE}=1 needs nvtx: pip install nvtx") from error
        if getattr(_thread, "is_inside", False):
            return call(plan, *arguments, **options)
        _thread.is_inside = True
        try:
            with nvtx.annotate(_name_of(plan, call), domain="cudnnlite"):
                return call(plan, *arguments, **options)
        finally:
            _thread.is_inside = False

    return cast("CallT", call_in_range)


def _name_of(plan: Any, call: Callable[..., Any]) -> str:
    """Return what a plan computes, by which algorithm or engine, and the method if it has a name."""
    words = [plan._description.removeprefix("plan of ")]
    choice = getattr(plan, "choice", None)
    if choice is not None:
        words.append(str(choice.algorithm))
    if call.__name__ != "__call__":
        words.append(call.__name__)
    return ", ".join(words)
