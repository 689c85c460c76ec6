"""`emulates`: which C function an emulation serves, and how an emulation refuses a call.

`cudnnlite.emulated.functions` lists all emulations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.library import Library
from cudnnlite.emulated.memory import EmulatedMemory
from cudnnlite.enums import Status

Work = Callable[[], object]
# The object of a C call has these attributes: `api`, the `EmulatedApi`; `arguments`, the tuple of
# all arguments; and each argument under its name in the header.
Implementation = Callable[[SimpleNamespace], Work | None]


class EmulationState(Protocol):
    """The part of the `EmulatedApi` that an emulation uses.

    Attributes
    ----------
    memory : EmulatedMemory
        The device's memory.
    real : CudnnApi
        The functions of the loaded libcudnn.
    library : Library
        The loaded libcudnn.
    handles, backend, descriptor_states : dict
        The states of live handles, of live backend descriptors, and of other live descriptors, each
        by its address.
    kernels_run : set
        The kernels that did something since this set was emptied.
    """

    memory: EmulatedMemory
    real: CudnnApi
    library: Library
    handles: dict[int, Any]
    backend: dict[int, Any]
    descriptor_states: dict[int, Any]
    kernels_run: set[object]


@dataclass(frozen=True)
class Emulation:
    """The emulation of a C function; `emulates` makes it."""

    function: str
    implementation: Implementation

    def __call__(self, c_call: SimpleNamespace) -> Work | None:
        """Do what the C function does."""
        return self.implementation(c_call)


def emulates(function: str) -> Callable[[Implementation], Emulation]:
    """Turn the decorated function into the emulation of a C function.

    The decorated function receives the C call, returns on success, and raises `RefusalError`
    otherwise.  If a GPU computes asynchronously, the function only checks the arguments and reads
    the descriptors, and returns the computation as a `Work`.  The device runs the `Work` at once,
    or at each launch of the graph if the stream is being recorded.
    """

    def decorate(implementation: Implementation) -> Emulation:
        return Emulation(function, implementation)

    return decorate


class RefusalError(Exception):
    """An emulated function ends with a status other than success."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def bad_parameter(message: str) -> RefusalError:
    """Return the error that ends a call with BAD_PARAM."""
    return RefusalError(Status.BAD_PARAM, message)


def null_pointer(names: str) -> RefusalError:
    """Return the error that ends a call with BAD_PARAM_NULL_POINTER."""
    return RefusalError(Status.BAD_PARAM_NULL_POINTER, f"{names} is a null pointer")


def unsupported(message: str) -> RefusalError:
    """Return the error that ends a call with NOT_SUPPORTED."""
    return RefusalError(Status.NOT_SUPPORTED, message)


def check_size(name: str, nbytes: int, needed: int, status: Status = Status.BAD_PARAM) -> None:
    """Refuse memory of fewer bytes than are needed."""
    if nbytes < needed:
        raise RefusalError(status, f"{name} of {nbytes} bytes; {needed} are needed")


def check_aligned(name: str, address: int, alignment: int) -> None:
    """Refuse an address that is not a multiple of an alignment in bytes."""
    if address % alignment:
        message = f"{name} at {address:#x} is not aligned to {alignment} bytes"
        raise RefusalError(Status.BAD_PARAM_MISALIGNED_POINTER, message)
