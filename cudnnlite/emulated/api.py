"""`EmulatedApi`: the function table whose device functions are NumPy.

Functions that need no device are libcudnn's own.  Those that do are entered through a C function pointer of the generated
prototype, so that arguments are marshalled exactly as for the real library.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.library import Library
from cudnnlite._raw.record import Function
from cudnnlite._raw.types import cudnnHandle_t
from cudnnlite.emulated.memory import EmulatedMemory, IllegalAddressError
from cudnnlite.enums import Status
from cudnnlite.errors import CudnnError, DeviceMemoryError

Implementation = Callable[..., None]
_implementations: dict[str, Implementation] = {}
_MAY_BE_NULL = frozenset({"devSeqLengths"})  # typed pointers that are not results


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
        _implementations[name] = implementation
        return implementation

    return register


class EmulatedApi(CudnnApi):
    """The function table of an emulated device.

    Parameters
    ----------
    library : Library
        The real libcudnn: it still makes descriptors, infers shapes and validates.
    memory : EmulatedMemory
        What pointers are checked against.
    """

    def __init__(self, library: Library, memory: EmulatedMemory) -> None:
        super().__init__(library, memory=lambda: (memory.capacity - memory.used, memory.capacity))
        self.memory = memory
        self.real = CudnnApi(library)
        self.handles: dict[int, Any] = {}  # address of each live handle -> its state
        self._messages = threading.local()
        # ctypes needs these alive as long as they may be called
        self._callbacks: list[Any] = []
        self._by_name: dict[str, Any] = {}

    def last_error(self) -> str:
        """Read and clear this thread's last-error string; an interrupt of the call that failed goes on from here."""
        interrupt = self._messages.__dict__.pop("interrupt", None)
        if interrupt is not None:
            raise interrupt
        return super().last_error()

    def _pointer(self, record: Function) -> Any:
        _register_all()
        if record.name == "cudnnGetLastErrorString":
            return self._last_error_pointer(record)
        if record.name not in _implementations and not record.needs_device:
            return super()._pointer(record)
        self.real._pointer(record)  # what the loaded libcudnn lacks, its emulation lacks too
        callback = self._by_name.get(record.name)
        if callback is None:
            callback = self._by_name[record.name] = record.prototype(self._guard(record))
        # a function pointer of its own, as a library's is: `prepare` drops its argument types
        return record.prototype(ctypes.cast(callback, ctypes.c_void_p).value)

    def _guard(self, record: Function) -> Callable[..., int]:
        implementation = _implementations.get(record.name)

        def entry(*arguments: Any) -> int:
            try:
                if implementation is None:
                    raise RefusalError(Status.NOT_SUPPORTED, f"the emulated device does not implement {record.name}")
                for name, argument in zip(record.argnames, arguments, strict=True):
                    if isinstance(argument, cudnnHandle_t) and argument.value not in self.handles:
                        raise RefusalError(
                            Status.BAD_PARAM, f"{argument.value or 0:#x} is not a live handle of the emulated device"
                        )
                    if isinstance(argument, ctypes._Pointer) and not argument and name not in _MAY_BE_NULL:
                        raise RefusalError(Status.BAD_PARAM_NULL_POINTER, f"{name} is a null pointer")
                implementation(self, *arguments)
            except RefusalError as refusal:
                return self._fail(refusal.status, refusal.message)
            except CudnnError as error:  # from the real library, reading a descriptor back
                return self._fail(Status(error.status), f"{error.function}: {error.detail}")
            except IllegalAddressError as error:
                return self._fail(Status.EXECUTION_FAILED, str(error))
            except (DeviceMemoryError, MemoryError) as error:
                return self._fail(Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, str(error))
            except KeyboardInterrupt as interrupt:  # ctypes would print and drop it; `last_error` raises it again
                self._messages.interrupt = interrupt
                return int(Status.INTERNAL_ERROR)
            except Exception as error:  # a C caller could not receive it: it must become a status
                return self._fail(Status.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
            return 0

        return entry

    def _fail(self, status: Status, message: str) -> int:
        self._messages.text = message
        return int(status)

    def _last_error_pointer(self, record: Function) -> Any:
        real = super()._pointer(record)

        def entry(target: int, size: int) -> None:
            text = getattr(self._messages, "text", "")
            if not text:
                real(ctypes.cast(target, ctypes.c_char_p), size)
                return
            self._messages.text = ""
            data = text.encode()[: size - 1] + b"\0"
            ctypes.memmove(target, data, len(data))

        # the generated prototype's `char *` would reach Python as a copy; the address is needed
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)(entry)
        self._callbacks.append(callback)
        return callback


def _register_all() -> None:
    """Import the modules whose functions register themselves; inside a function because they import this one."""
    from cudnnlite.emulated import convolution, dropout, handles, rnn, transform  # noqa: F401
