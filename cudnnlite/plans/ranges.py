"""The calls of plans as ranges of NVTX, which Nsight Systems shows beside the kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from cudnnlite.errors import MissingPackageError

VARIABLE = "CUDNNLITE_NVTX"  # read once, when cudnnlite is imported

CallT = TypeVar("CallT", bound=Callable[..., Any])


def in_range(call: CallT) -> CallT:
    """Return a plan's `__call__`: itself, or within a range if `CUDNNLITE_NVTX` is 1."""
    if os.environ.get(VARIABLE) != "1":
        return call

    @wraps(call)
    def call_in_range(plan: Any, *arguments: Any, **options: Any) -> Any:
        try:
            import nvtx
        except ImportError as error:
            raise MissingPackageError(f"{VARIABLE}=1 needs nvtx: pip install nvtx") from error
        with nvtx.annotate(_name_of(plan), domain="cudnnlite"):
            return call(plan, *arguments, **options)

    return call_in_range  # type: ignore[return-value]


def _name_of(plan: Any) -> str:
    """Return what a plan computes, and by which algorithm or engine."""
    name = plan._description.removeprefix("plan of ")
    choice = getattr(plan, "choice", None)
    return name if choice is None else f"{name}, {choice.algorithm}"
