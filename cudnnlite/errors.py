"""The exceptions that cudnnlite raises.

Everything derives from `CudnnliteError`.  What cuDNN itself refused is a `CudnnError`; it also
derives from the built-in exception that fits (`ValueError`, `MemoryError`, ...), so that code which
does not know cudnnlite can still catch it.
"""

from __future__ import annotations


class CudnnliteError(Exception):
    """Base class of every exception that cudnnlite raises on purpose."""


class ArgumentError(CudnnliteError, ValueError):
    """An argument has a value that is not allowed; raised before anything is written."""


class ArrayTypeError(CudnnliteError, TypeError):
    """An array lives in the wrong place: host memory where device memory is needed, or another device's memory."""


class ClosedError(CudnnliteError, ValueError):
    """A handle, descriptor, plan or array is used after it was closed."""


class ThreadError(CudnnliteError, RuntimeError):
    """A handle is used from a thread other than the one that made it."""


class NoDeviceError(CudnnliteError, RuntimeError):
    """No usable CUDA device; the message says how to choose the emulated one."""


class DeviceLostError(CudnnliteError, RuntimeError):
    """CUDA gave the device up, after an illegal address for instance: the process has to be restarted."""


class CaptureError(CudnnliteError, RuntimeError):
    """What cannot be recorded into a CUDA graph was asked for inside a capture; the message says what to do before it."""


class NoAlgorithmError(CudnnliteError, LookupError):
    """No algorithm satisfies the given limits; the message says what excluded each one."""


class DeviceMemoryError(CudnnliteError, MemoryError):
    """Device memory could not be allocated; the message says how much was free."""


class WorkspaceLimitError(DeviceMemoryError):
    """A call needs more workspace than the limit, or than the caller's own buffer, allows."""


class MissingPackageError(CudnnliteError, ImportError):
    """A package is needed that is not installed; the message names the extra that brings it."""


class LibraryError(CudnnliteError):
    """libcudnn is in a state in which it cannot be used."""


class LibraryNotFoundError(LibraryError, ImportError):
    """No libcudnn was found; the message lists where it was looked for."""


class MixedLibrariesError(LibraryError):
    """The parts of libcudnn that this process loaded come from different copies; the message lists their paths."""


class SymbolNotFoundError(LibraryError, AttributeError):
    """The loaded libcudnn lacks a C function; the message names the function, the library's path and its version."""


class AlignmentWarning(UserWarning):
    """An operand begins at an address that a kernel cannot load from, and each call copies it."""


class WorkspaceLimitWarning(UserWarning):
    """A workspace limit excluded an algorithm that would have been preferred."""


class TuningCacheError(CudnnliteError):
    """A tuning cache could not be read or written as asked; the message names the file and the reason."""


class TuningCacheWarning(UserWarning):
    """A tuning cache is not what it should be: set aside, not readable, or kept in this process's memory only."""


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
        cuDNN's own last-error string, empty where it gave none.
    notes : tuple of str
        Facts that help: the free device memory after a failed allocation, for instance.
    specs : dict of str to object
        The specs of the operation that was under way, by argument name.

    Notes
    -----
    C function: `cudnnGetLastErrorString`, which gives `detail`; read once, after a failure only.
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
        """Add the specs of the operation under way to the message; returns the exception itself."""
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
    """Status 1xxx: the library, or a sub-library, is not usable (also how cuDNN reports a handle it had no memory for)."""


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
