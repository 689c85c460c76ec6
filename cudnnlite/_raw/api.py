"""`CudnnApi`: one typed, checked Python callable per C function of libcudnn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cudnnlite._raw.calls import CFunction, PreparedCall
from cudnnlite._raw.check import make_check, read_last_error
from cudnnlite._raw.fork_lock import fork_lock
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.library import Library, load_library
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite._raw.record import Function
from cudnnlite._raw.replacements import replacement
from cudnnlite.errors import SymbolNotFoundError
from cudnnlite.unknown import meant_c_function

if TYPE_CHECKING:
    from cudnnlite._raw.signatures import Signatures

    _Base = Signatures
else:
    _Base = object


class CudnnApi(NonCopyable, _Base):
    """The function table: each C function is an attribute that binds on first use.

    A bound function (`CFunction`) knows its argument types (a swapped descriptor is refused) and
    checks its status: it returns None if C returns success, raises a `CudnnError` where C
    returns anything else, and returns the plain value where C returns one (`cudnnGetVersion`).

    Parameters
    ----------
    library : Library
        The loaded libcudnn.
    memory : callable, optional
        Returns (free, total) device memory in bytes, for the messages of failed allocations.
    """

    _instead_of_copy = "a process has one for its libcudnn"

    def __init__(
        self, library: Library, *, memory: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        self.library = library
        self._memory = memory
        self._last_error: Any = None

    if not TYPE_CHECKING:  # Type checkers read the stubs.

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            bound = self._bind(self._record(name))
            self.__dict__[name] = bound  # Later uses find it there.
            return bound

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *FUNCTIONS})

    @property
    def engine_version(self) -> int:
        """The version of cuDNN whose engines run; known faults of engines depend on it."""
        return self.library.version

    def __repr__(self) -> str:
        return f"<{type(self).__name__} cuDNN {self.library.version_text} at {self.library.path}>"

    def has(self, name: str) -> bool:
        """Tell whether the loaded libcudnn exports the C function `name`."""
        if name not in FUNCTIONS or self.library.missing_file(FUNCTIONS[name].header):
            return False
        return hasattr(self.library.cdll, name)

    def last_error(self) -> str:
        """Read and clear this thread's last-error string (`cudnnGetLastErrorString`).

        It is empty if there is none.
        """
        if self._last_error is None:
            self._last_error = self._pointer(self._record("cudnnGetLastErrorString"))
            self._last_error.argtypes = self._record("cudnnGetLastErrorString").argtypes
        with fork_lock:  # It may be the first call of the function, as in `CFunction`.
            return read_last_error(self._last_error)

    def prepare(self, name: str, *arguments: Any) -> PreparedCall:
        """Marshal all arguments of the C function `name` once, for many calls.

        Each call checks the status.
        """
        return PreparedCall(self.bound(name), *arguments)

    def bound(self, name: str) -> CFunction:
        """Return the C function `name` as a `CFunction`."""
        function = getattr(self, name)
        if isinstance(function, CFunction):
            return function
        # A user put a function of their own into this table.
        return CFunction(function, self._record(name))

    def _record(self, name: str) -> Function:
        try:
            return FUNCTIONS[name]
        except KeyError:
            raise AttributeError(
                f"cuDNN has no function {name}{meant_c_function(name, FUNCTIONS)}"
            ) from None

    def _bind(self, record: Function) -> CFunction:
        check = None
        if record.returns_status:
            check = make_check(record.name, self.last_error, self._memory)
        return CFunction(self._pointer(record), record, check)

    def _pointer(self, record: Function) -> Any:
        """Return the function pointer; it takes converted arguments."""
        try:
            function = self.library.cdll[record.name]
        except AttributeError:
            since = f" (added in {record.since})" if record.since else ""
            message = (
                f"{record.name}{since} is not in the loaded libcudnn: {self.library.path}, version "
                f"{self.library.version_text}"
            )
            if record.deprecated:
                message += f"; it is {record.deprecation}, use {replacement(record.name)}"
            raise SymbolNotFoundError(message) from None
        if part := self.library.missing_file(record.header):
            raise SymbolNotFoundError(
                f"{record.name} needs {part}, which is not beside the loaded libcudnn: "
                f"{self.library.path}, version {self.library.version_text}; install all of cuDNN"
            )
        function.restype = record.restype
        return function


_process_api: CudnnApi | None = None


def library_api() -> CudnnApi:
    """Return the process-wide table.

    Descriptors use it, because they need no device and belong to no handle.
    """
    global _process_api  # noqa: PLW0603  (one libcudnn a process, so one table for it)
    if _process_api is None:
        _process_api = CudnnApi(load_library())
    return _process_api
