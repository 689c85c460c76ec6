"""`emulates`: which C functions are emulated, and by what; every emulation enters itself here."""

from __future__ import annotations

from collections.abc import Callable

from cudnnlite.enums import Status

Work = Callable[[], object]
Implementation = Callable[..., Work | None]
IMPLEMENTATIONS: dict[str, Implementation] = {}  # by the name of the C function


class RefusalError(Exception):
    """An emulated function ends with a status other than success."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def emulates(name: str) -> Callable[[Implementation], Implementation]:
    """Register the decorated function as the emulation of the C function `name`.

    It receives the `EmulatedApi` and then the C arguments; it returns on success and raises `RefusalError` otherwise.  A
    function whose work a GPU does later, on the handle's stream, checks its arguments, reads its descriptors, and returns
    that work: it is done at once, or, where the stream is being recorded, whenever the graph is launched.
    """

    def register(implementation: Implementation) -> Implementation:
        IMPLEMENTATIONS[name] = implementation
        return implementation

    return register
