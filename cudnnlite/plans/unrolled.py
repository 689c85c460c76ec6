"""A plan's call written out for the operands of one operation: loops over them took a third of the call's time."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from threading import get_ident
from typing import Any

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.errors import CudnnError
from cudnnlite.plans.native_problem import involve
from cudnnlite.plans.operands import check_writable, on_device, wait_for_streams
from cudnnlite.problems import call_watch, recording
from cudnnlite.problems.operation import STRICTEST_ALIGNMENT, Operation, all_of, natural_alignments
from cudnnlite.specs.layers import DropoutSpec

_OPERAND = """\
            if type({name}) is not DeviceArray or {name}.device is not device:
                {name} = on_device(handle, {name}, "{argument}")
            if {name}.spec is not self._seen_{name}:
                self._check("{name}", {name})
"""
# what a call is given, where that is what the last one was given, need not be looked at again
_CALL = """\
def {head}, workspace=None{reserve}):
    watched, handle, device = call_watch.active, self._handle, self._device
    if watched or self._closed or get_ident() != self._thread:
        self.use()
    {written} = {unpacked}
{new}\
{states}\
    prepared, stream, crossed, now = self._prepared, handle._stream, None, None
    if {arrays}:
        now = ({given}, stream, workspace)
    try:
        if now is None or now != self._last or self.workspace and self._lease(self.workspace, stream) != self._scratch:
            self._last = None  # an interrupt below must not leave addresses that nobody knows of
{operands}\
{reserved}\
{checks}\
{aligned}\
            if prepared is None:  # an empty batch
                return {result}
            scratch = self.workspace
            if workspace is not None:
                scratch = self._own_workspace(workspace, {by_name})
            elif scratch:
                scratch = self._lease(scratch, stream, self._limit)
            if {elsewhere}:
                crossed = wait_for_streams(stream, {all})
            prepared.replace({by_address}{scratch})
            if crossed is workspace is None:
                self._scratch, self._last = scratch, now
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
    if watched:
        recording.record(self.problem)
        self.keep_for_graph(({all}, workspace))
    return {result}
"""


def unrolled(operation: Operation) -> tuple[Callable[..., DeviceArray], Callable[..., DeviceArray]]:
    """Return `__call__` of a plan of an operation, all but its docstring; and the same with `out` by position: quicker."""
    reads, writes, several = operation.reads, operation.writes, len(operation.writes) > 1
    everything, outputs = (*reads, *writes), operation.outputs or operation.writes
    kept = ("reserve",) if operation.reserve else ()
    # an option's random states, which the call advances: ordered, kept by graphs, but no argument
    states = [
        f"self.{name}.state.array"
        for name, kind in operation.options.items()
        if kind is DropoutSpec
    ]
    arguments, held = (
        "".join(f"{name}, " for name in reads),
        (*everything, *kept, *("states" for _ in states)),
    )
    source = _CALL.format(
        head="{head}",
        arrays="".join(f"type({name}) is " for name in held) + "DeviceArray",
        given=", ".join(
            f"{name}.{each}" for each in ("ptr", "spec", "device", "stream") for name in held
        )
        + "".join(f", {name}.readonly" for name in writes),
        new="".join(
            f'    if {name} is None:\n        {name} = self._new_output("{name}")\n'
            for name in writes
        ),
        operands="".join(
            _OPERAND.format(name=name, argument=operation.argument(name)) for name in everything
        ),
        written=", ".join(writes),
        unpacked=f"all_of(out, {writes})" if several else "out",
        checks="".join(_check(operation, name) for name in writes),
        by_name=", ".join(
            f"{name if several or name in reads else 'out'}={name}" for name in everything
        ),
        by_address=", ".join(
            f"{there}={name}.ptr" for name in everything for there in operation.header(name)
        )
        + "".join(f", {name}Space={name}.ptr" for name in kept),
        scratch=_scratch(operation.header("workSpace")),
        result=", ".join(outputs if operation.by_reserve else (*outputs, *kept)),
        elsewhere=" or ".join(f"{name}.stream is not stream" for name in held),
        all=", ".join(held),
        reserve=", reserve=None" if kept else "",
        states="".join(
            f"    states = {array}\n    _ = states.ptr  # ClosedError if it was closed\n"
            for array in states
        ),
        aligned=_aligned(operation, kept),
        reserved=f"            reserve = self._reserve_space(reserve, {', '.join(everything)})\n"
        if kept
        else "",
    )
    source = source.format(head=f"__call__(self, {arguments}*, out=None") + source.format(
        head=f"_run(self, {arguments}out"
    )
    filename = f"<the call of a plan of {operation.name}>"
    linecache.cache[filename] = (
        len(source),
        None,
        source.splitlines(keepends=True),
        filename,
    )  # for tracebacks
    namespace: dict[str, Any] = {
        "CudnnError": CudnnError,
        "DeviceArray": DeviceArray,
        "all_of": all_of,
        "call_watch": call_watch,
        "check_writable": check_writable,
        "get_ident": get_ident,
        "in_place": operation.in_place,
        "involve": involve,
        "on_device": on_device,
        "recording": recording,
        "wait_for_streams": wait_for_streams,
    }
    exec(compile(source, filename, "exec"), namespace)
    return namespace["__call__"], namespace["_run"]


def _aligned(operation: Operation, others: tuple[str, ...]) -> str:
    """Return the lines that make the call on copies where an operand is not aligned as its kernels need it."""
    if operation.alignments is natural_alignments and operation.algorithms is None:
        return ""
    names = (*operation.reads, *operation.writes)
    addresses = " | ".join(f"{name}.ptr" for name in names)
    operands = ", ".join(f"{name}={name}" for name in names)
    passed = "".join(f", {name}={name}" for name in ("workspace", *others))
    return (
        f"            if ({addresses}) % {STRICTEST_ALIGNMENT} and (alignments := self._misaligned({operands})):\n"
        f"                return self._call_on_copies(alignments, dict({operands}){passed})\n"
    )


def _scratch(names: tuple[str, ...]) -> str:
    """Return the arguments that are scratch memory; they divide the workspace evenly."""
    return "".join(
        f", {there}=scratch + {i} * (self.workspace // {len(names)})"
        for i, there in enumerate(names)
    )


def _check(operation: Operation, name: str) -> str:
    """Return the lines that look whether an operand may be written, beside what is read and what is written before it.

    What is wrong, or allowed in place, `check_writable` knows; that there is nothing is seen here, in a tenth of the time.
    """
    before = operation.writes[: operation.writes.index(name)]
    others = (*operation.reads, *before)
    where = ", in_place" if operation.in_place and not before else ""
    given = "".join(f", {other}={other}" for other in others)
    met = " or ".join(
        f"{other}.ptr < end and {name}.ptr < {other}.ptr + {other}.nbytes" for other in others
    )
    return (
        f"            end = {name}.ptr + {name}.nbytes\n            if {name}.readonly or ({met}):\n"
        f'                check_writable({name}, "{operation.argument(name)}"{where}{given})\n'
    )
