"""`EmulatedApi`: the function table whose device functions are NumPy.

Functions that need no device are libcudnn's own.  The arguments of those that do pass through a C
function pointer of the generated argument types, so that they are marshalled exactly as for the
real library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.calls import Call, through_c, untyped
from cudnnlite._raw.check import status_error
from cudnnlite._raw.library import Library
from cudnnlite._raw.record import Function
from cudnnlite._raw.types import cudnnHandle_t
from cudnnlite.emulated.functions import IMPLEMENTATIONS
from cudnnlite.emulated.memory import EmulatedMemory, IllegalAddressError
from cudnnlite.emulated.registry import RefusalError, bad_parameter, null_pointer, unsupported
from cudnnlite.enums import Status
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError

Tape = list[tuple[str, Callable[[], object]]]  # the recorded C functions with their work

_MAY_BE_NULL = frozenset(  # typed pointers that are not results
    {"devSeqLengths", "reserveSpaceSizeInBytes", "padBeforeA", "padAfterA", "foldA"}
)
# The version of cuDNN that the emulated engines, their values and refusals were recorded with.
_ENGINE_VERSION = 91900


class EmulatedApi(CudnnApi):
    """The function table of an emulated device, whose `memory` pointers are checked against.

    `library` is the real libcudnn: it still makes descriptors, infers shapes and validates.
    """

    def __init__(self, library: Library, memory: EmulatedMemory) -> None:
        super().__init__(library, memory=lambda: (memory.left, memory.capacity))
        self.memory = memory
        self.real = CudnnApi(library)
        # The states of live handles, the contents of live backend descriptors, and what libcudnn
        # does not store of other live descriptors, each by its address.
        self.handles: dict[int, Any] = {}
        self.backend: dict[int, Any] = {}
        self.descriptor_states: dict[int, Any] = {}
        # The work recorded so far, by the address of the stream.
        self.tapes: dict[int, Tape] = {}
        self.kernels_run: set[object] = set()  # those that did something since this set was emptied
        # ctypes needs these alive as long as they may be called.
        self._callbacks: dict[str, Any] = {}

    @property
    def engine_version(self) -> int:
        """The version of cuDNN whose engines are emulated, whatever libcudnn is loaded."""
        return _ENGINE_VERSION

    def _pointer(self, record: Function) -> Any:
        implementation = IMPLEMENTATIONS.get(record.name)
        if implementation is None and not record.needs_device:
            return super()._pointer(record)
        super()._pointer(record)  # what the loaded libcudnn lacks, its emulation lacks too
        marshal = self._marshal(record)

        return lambda *arguments: self.run(record.name, marshal(*arguments))

    def run(self, name: str, work: Callable[[], object]) -> None:
        """Do a function's work; its exception becomes the function's status and error."""
        try:
            work()
            return
        except RefusalError as refusal:
            status, words = refusal.status, refusal.message
        except CudnnError as error:  # from the real library, reading a descriptor back
            status, words = Status(error.status), f"{error.function}: {error.detail}"
        except ArgumentError as error:  # a descriptor that was never set, for instance
            status, words = Status.BAD_PARAM, str(error)
        except IllegalAddressError as error:
            status, words = Status.EXECUTION_FAILED, str(error)
        except (DeviceMemoryError, MemoryError) as error:
            status, words = Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, str(error)
        raise status_error(name, status, words, self._memory)

    def _marshal(self, record: Function) -> Call:
        """Return a function of converted arguments that returns a Python call of what C saw."""
        argtypes = dict(zip(record.argnames, record.argtypes, strict=True))
        handles = [name for name, kind in argtypes.items() if issubclass(kind, cudnnHandle_t)]
        required_pointers = [
            name
            for name, kind in argtypes.items()
            if issubclass(kind, ctypes._Pointer) and name not in _MAY_BE_NULL
        ]
        callback = through_c(record, partial(self._enter, record, handles, required_pointers))
        # If two threads bind at once, both use the first callback, which the table keeps alive.
        return untyped(self._callbacks.setdefault(record.name, callback))

    def _enter(
        self, record: Function, handles: list[str], required_pointers: list[str], *arguments: Any
    ) -> None:
        """Check the arguments that are handles or required pointers, and do the work."""
        implementation = IMPLEMENTATIONS.get(record.name)
        if implementation is None:
            raise unsupported(f"the emulated device does not implement {record.name}")
        by_name = dict(zip(record.argnames, arguments, strict=True))
        for name in handles:
            address = by_name[name].value
            if address not in self.handles:
                raise bad_parameter(
                    f"{address or 0:#x} is not a live handle of the emulated device"
                )
        for name in required_pointers:
            if not by_name[name]:
                raise null_pointer(name)
        work = implementation(SimpleNamespace(api=self, arguments=arguments, **by_name))
        if work is not None:
            self.enqueue(self.handles[by_name["handle"].value].stream, record.name, work)

    def enqueue(self, stream: int, name: str, work: Callable[[], object]) -> None:
        """Do work on a stream now; if the stream is recorded, at each launch of the graph."""
        tape = self.tapes.get(stream)
        if tape is None:
            work()
        else:
            tape.append((name, work))
