"""The one place where a status becomes an exception."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from cudnnlite import errors
from cudnnlite._raw.enums import Status

MESSAGE_BYTES = 4096

# cuDNN numbers its statuses by category: the thousands digit.
_CATEGORIES: dict[int, type[errors.CudnnError]] = {
    1: errors.NotInitializedError,
    2: errors.BadParamError,
    3: errors.NotSupportedError,
    4: errors.InternalError,
    5: errors.ExecutionError,
}
_ALLOCATION = frozenset(
    {Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED, Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED}
)
# Categories behind which a failed allocation may be hidden.  Creating a handle without memory is
# "not initialized", or (9.19, on an H200 with 26 MiB free) an "internal error" about a stream.  A
# launch without room for its local memory is "execution failed".
_MAY_HIDE_ALLOCATION = (1, 4, 5)
_NO_ALLOCATION = frozenset({Status.SUBLIBRARY_VERSION_MISMATCH, Status.SUBLIBRARY_LOADING_FAILED})
_LITTLE_MEMORY = 64 << 20


def status_error(
    function: str,
    status: int,
    detail: str,
    memory: Callable[[], tuple[int, int]] | None,
) -> errors.CudnnError:
    """Make the exception for a status of a C function that is not SUCCESS.

    `detail` is cuDNN's last-error string.  `memory` returns (free, total) device memory in bytes;
    it is called only if an allocation may have failed.
    """
    code = Status(status)
    kind: type[errors.CudnnError] = _CATEGORIES.get(status // 1000, errors.CudnnError)
    if code in _ALLOCATION:
        kind = errors.AllocationError
    if memory is None or not _may_be_allocation(code):
        return kind(function, code, detail)
    try:
        free, total = memory()
    except errors.DeviceLostError as lost:
        raise lost from kind(function, code, detail)
    except Exception as error:  # the device itself may be what failed
        note = f"the free device memory could not be read: {error}"
        return kind(function, code, detail, notes=(note,))
    if free < min(_LITTLE_MEMORY, total // 4):
        kind = errors.AllocationError
    note = f"device memory free: {free / 2**20:,.1f} MiB of {total / 2**20:,.1f} MiB"
    return kind(function, code, detail, notes=(note,))


def _may_be_allocation(code: Status) -> bool:
    """Tell whether a failed allocation may be behind a status."""
    if code in _ALLOCATION:
        return True
    return code // 1000 in _MAY_HIDE_ALLOCATION and code not in _NO_ALLOCATION


def make_check(
    function: str, last_error: Callable[[], str], memory: Callable[[], tuple[int, int]] | None
) -> Callable[[int], None]:
    """Return a function that raises the exception for a status of `function`.

    The last-error string is per thread, cleared by reading and *not* cleared by a later success.
    So it is read once, and only after a failure.
    """

    def check(status: int) -> None:
        raise status_error(function, status, last_error(), memory)

    return check


def read_last_error(pointer: Callable[..., None]) -> str:
    """Read and clear this thread's last-error string through `cudnnGetLastErrorString`."""
    buffer = ctypes.create_string_buffer(MESSAGE_BYTES)
    pointer(buffer, MESSAGE_BYTES)
    return buffer.value.decode(errors="replace").strip()
