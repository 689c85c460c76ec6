"""`emulates`: which C functions are emulated, and by what; every emulation enters itself here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from cudnnlite.enums import Status

Work = Callable[[], object]
Implementation = Callable[[SimpleNamespace], Work | None]
IMPLEMENTATIONS: dict[str, Implementation] = {}  # by the name of the C function


class RefusalError(Exception):
    """An emulated function ends with a status other than success."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def bad(message: str) -> RefusalError:
    """Return what ends a call with BAD_PARAM."""
    return RefusalError(Status.BAD_PARAM, message)


def null(names: str) -> RefusalError:
    """Return what ends a call with BAD_PARAM_NULL_POINTER."""
    return RefusalError(Status.BAD_PARAM_NULL_POINTER, f"{names} is a null pointer")


def unsupported(message: str) -> RefusalError:
    """Return what ends a call with NOT_SUPPORTED."""
    return RefusalError(Status.NOT_SUPPORTED, message)


def check_size(what: str, given: int, needed: int, status: Status = Status.BAD_PARAM) -> None:
    """Refuse memory of fewer bytes than are needed."""
    if given < needed:
        raise RefusalError(status, f"{what} of {given} bytes; {needed} are needed")


def check_aligned(what: str, address: int, size: int) -> None:
    """Refuse an address that is no multiple of a size."""
    if address % size:
        told = f"{what} at {address:#x} is not aligned to {size} bytes"
        raise RefusalError(Status.BAD_PARAM_MISALIGNED_POINTER, told)


def emulates(name: str) -> Callable[[Implementation], Implementation]:
    """Register the decorated function as the emulation of the C function `name`.

    It is given one object: `api` is the `EmulatedApi`, `arguments` what C saw, and each argument is there by the header's
    name.  It returns on success and raises `RefusalError` otherwise.  A function whose work a GPU does later, on the handle's
    stream, checks its arguments, reads its descriptors, and returns that work: it is done at once, or, where the stream is
    being recorded, whenever the graph is launched.
    """

    def register(implementation: Implementation) -> Implementation:
        IMPLEMENTATIONS[name] = implementation
        return implementation

    return register
