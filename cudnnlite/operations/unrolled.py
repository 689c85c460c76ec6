"""A plan's call written out for the operands of one operation: loops over them took a third of the call's time."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from threading import get_ident
from typing import Any

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.errors import CudnnError
from cudnnlite.operations import recording
from cudnnlite.operations.described import involve
from cudnnlite.operations.operands import check_writable, on_device, wait_for_streams
from cudnnlite.operations.operation import Operation

_OPERAND = """\
    if type({name}) is not DeviceArray or {name}.device is not device:
        {name} = on_device(self._handle, {name}, "{name}")
    if {name}.spec is not self._seen_{name}:
        self._check("{name}", {name})
"""
_CALL = """\
def __call__(self, {reads}, *, out=None, workspace=None):
    if self._closed or get_ident() != self._thread:
        self.use()
    device = self._device
{operands}\
    if out is None:
        {y} = self._new_output(self.problem.{y})
    else:
        {y} = out if type(out) is DeviceArray and out.device is device else on_device(self._handle, out, "out")
        if {y}.spec is not self._seen_{y}:
            self._check_out("{y}", {y})
    pointers = ({pointers})
    moved = pointers != self._pointers
    if moved or {y}.readonly:
        check_writable({y}, "out", {by_name})
    prepared = self._prepared
    if prepared is None:  # an empty batch
        return {y}
    stream = self._handle.stream
    scratch = self.workspace
    if workspace is not None:
        scratch = self._own_workspace(workspace, {by_name}, out={y})
    elif scratch:
        scratch = self._handle.workspace.reserve(scratch, stream, limit=self._limit)
    crossed = None
    if {elsewhere}:
        crossed = wait_for_streams(stream, {all})
    try:
        if moved or scratch != self._scratch:
            self._pointers = ()  # an interrupt in the next line must not leave addresses that nobody knows of
            prepared.replace({by_address}{scratch})
            self._pointers, self._scratch = pointers, scratch
        status = prepared.function(*prepared.arguments)
        if status:
            prepared.check(status)
    except CudnnError as error:
        involve(error, self.problem)
        raise
    finally:
        if crossed:
            for other in crossed:
                other.wait(stream)
    if recording.active:
        recording.record(self.problem)
    return {y}
"""


def unrolled(operation: Operation) -> Callable[..., DeviceArray]:
    """Return `__call__` of a plan of an operation, all but its docstring."""
    (y,), reads = operation.writes, operation.reads
    everything = (*reads, y)
    source = _CALL.format(
        reads=", ".join(reads),
        operands="".join(_OPERAND.format(name=name) for name in reads),
        y=y,
        pointers=", ".join(f"{name}.ptr" for name in everything),
        by_name=", ".join(f"{name}={name}" for name in reads),
        by_address=", ".join(f"{name}={name}.ptr" for name in everything),
        scratch=", workSpace=scratch" if operation.algorithms else "",
        elsewhere=" or ".join(f"{name}.stream is not stream" for name in everything),
        all=", ".join(everything),
    )
    filename = f"<the call of a plan of {operation.name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)  # for tracebacks
    namespace: dict[str, Any] = {
        "CudnnError": CudnnError, "DeviceArray": DeviceArray, "check_writable": check_writable, "get_ident": get_ident,
        "involve": involve, "on_device": on_device, "recording": recording, "wait_for_streams": wait_for_streams,
    }  # fmt: skip
    exec(compile(source, filename, "exec"), namespace)
    function: Callable[..., DeviceArray] = namespace["__call__"]
    return function
