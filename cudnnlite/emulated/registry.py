"""`emulates`: which C functions are emulated, and by what; every emulation enters itself here."""

from __future__ import annotations

from collections.abc import Callable

from cudnnlite.enums import Status

Implementation = Callable[..., None]
IMPLEMENTATIONS: dict[str, Implementation] = {}  # by the name of the C function


class RefusalError(Exception):
    """An emulated function ends with a status other than success."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def emulates(name: str) -> Callable[[Implementation], Implementation]:
    """Register the decorated function as the emulation of the C function `name`.

    It receives the `EmulatedApi` and then the C arguments; it returns on success and raises `RefusalError` otherwise.
    """

    def register(implementation: Implementation) -> Implementation:
        IMPLEMENTATIONS[name] = implementation
        return implementation

    return register
