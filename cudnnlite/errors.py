"""The exceptions that cudnnlite raises.

All of them derive from `CudnnliteError`.  A status that cuDNN returned becomes a `CudnnError`.
Most of them also derive from a built-in exception (`ValueError`, `MemoryError`, ...), so that code
which does not know cudnnlite can catch them.
"""

from __future__ import annotations

__all__ = [
    "AlignmentWarning",
    "AllocationError",
    "ArgumentError",
    "ArrayTypeError",
    "BadParamError",
    "CaptureError",
    "ClosedError",
    "CudnnError",
    "CudnnliteError",
    "DeviceLostError",
    "DeviceMemoryError",
    "ExecutionError",
    "InternalError",
    "LibraryError",
    "LibraryNotFoundError",
    "MissingPackageError",
    "MixedLibrariesError",
    "NoAlgorithmError",
    "NoDeviceError",
    "NotInitializedError",
    "NotSupportedError",
    "SymbolNotFoundError",
    "ThreadError",
    "TuningCacheError",
    "TuningCacheWarning",
    "TuningWarning",
    "WorkspaceLimitError",
    "WorkspaceLimitWarning",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class CudnnliteError(Exception):
    """Base class of every exception that cudnnlite raises on purpose."""


class ArgumentError(CudnnliteError, ValueError):
    """An argument has a value that is not allowed; raised before anything is written."""


class ArrayTypeError(CudnnliteError, TypeError):
    """An array is in the wrong memory: the host's instead of a device's, or another device's."""


class ClosedError(CudnnliteError, ValueError):
    """A handle, descriptor, plan or array is used after it was closed."""


class ThreadError(CudnnliteError, RuntimeError):
    """A handle is used from a thread other than the one that made it."""


class NoDeviceError(CudnnliteError, RuntimeError):
    """No usable CUDA device; the message says how to choose the emulated one."""


class DeviceLostError(CudnnliteError, RuntimeError):
    """CUDA lost the device, for instance after an illegal address; restart the process."""


class CaptureError(CudnnliteError, RuntimeError):
    """A call inside a capture cannot be recorded into a CUDA graph.

    The message says what to do before the capture.
    """


class NoAlgorithmError(CudnnliteError, LookupError):
    """No algorithm satisfies the given limits; the message says what excluded each one."""


class DeviceMemoryError(CudnnliteError, MemoryError):
    """Device memory could not be allocated; the message says how much was free."""


class WorkspaceLimitError(DeviceMemoryError):
    """A call needs more workspace than the limit, or than the caller's own buffer, allows."""


class MissingPackageError(CudnnliteError, ImportError):
    """A package that is needed is not installed; the message names the extra that installs it."""


class LibraryError(CudnnliteError):
    """libcudnn cannot be used."""


class LibraryNotFoundError(LibraryError, ImportError):
    """No libcudnn was found; the message lists the places that were searched."""


class MixedLibrariesError(LibraryError):
    """The loaded parts of libcudnn come from different copies; the message lists their paths."""


class SymbolNotFoundError(LibraryError, AttributeError):
    """The loaded libcudnn lacks a C function.

    The message names the function, the library's path and its version.
    """


class AlignmentWarning(UserWarning):
    """An operand is not aligned as the kernel needs it, so each call copies the operand."""


class WorkspaceLimitWarning(UserWarning):
    """A workspace limit excluded an algorithm that would have been preferred."""


class TuningCacheError(CudnnliteError):
    """A tuning cache could not be read or written; the message names the file and the reason."""


class TuningCacheWarning(UserWarning):
    """A damaged tuning cache was renamed, one cannot be read, or results stay in memory only."""


class TuningWarning(UserWarning):
    """A call runs with an algorithm that was not tuned."""


class CudnnError(CudnnliteError, RuntimeError):
    """A cuDNN function returned a status other than success.

    Attributes
    ----------
    function : str
        The C function.
    status : int
        The status; an `enums.Status` member.
    detail : str
        cuDNN's own last-error string; empty if there was none.
    notes : tuple of str
        Further facts, for instance the free device memory after a failed allocation.
    specs : dict of str to object
        The specs of the operation that failed, by argument name.

    Notes
    -----
    C function: `cudnnGetLastErrorString`, which returns `detail`.  It is called once, and
    only after a failure.
    """

    def __init__(
        self, function: str, status: int, detail: str = "", *, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(function, status, detail)
        self.function = function
        self.status = status
        self.detail = detail
        self.notes = notes
        self.specs: dict[str, object] = {}

    def involving(self, **specs: object) -> CudnnError:
        """Add the specs of the failed operation to the message; return the exception itself."""
        self.specs.update(specs)
        return self

    def __str__(self) -> str:
        name = getattr(self.status, "name", self.status)
        lines = [f"{self.function} returned {name} ({int(self.status)})"]
        if self.detail:
            lines[0] += f": {self.detail}"
        lines += self.notes
        lines += [f"  {name} = {spec}" for name, spec in self.specs.items()]
        return "\n".join(lines)


class NotInitializedError(CudnnError):
    """Status 1xxx: the library, or a sub-library, is not usable.

    cuDNN also returns it when it has no memory for a new handle.
    """


class BadParamError(CudnnError, ValueError):
    """Status 2xxx: cuDNN refused an argument."""


class NotSupportedError(CudnnError, NotImplementedError):
    """Status 3xxx: the combination is valid but cuDNN (or this GPU) does not implement it."""


class InternalError(CudnnError):
    """Status 4xxx: something failed inside cuDNN."""


class AllocationError(CudnnError, DeviceMemoryError):
    """cuDNN could not allocate host or device memory."""


class ExecutionError(CudnnError):
    """Status 5xxx: a kernel, or the CUDA driver, failed."""
