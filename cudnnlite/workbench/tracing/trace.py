"""`trace`: the C calls of a block, in order, and the program in C that they are."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from threading import get_ident
from typing import Any

from cudnnlite._raw.api import library_api
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.arguments import integer, path_of
from cudnnlite.devices import observer
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.texts import counted
from cudnnlite.version import __version__
from cudnnlite.workbench.tracing.folder import PROGRAM, ProgramFolder, packaged_file
from cudnnlite.workbench.tracing.program import Program, useful
from cudnnlite.workbench.tracing.recorder import Recorder, TracedCall

_FEW = 3  # calls in a row that are listed though the program does without


class Trace(NonCopyable):
    """The C calls of a block; printed, a line each, or one for many that the program does without.

    Attributes
    ----------
    warnings : list of str
        What the program in C cannot do.  Each warning was also issued when its cause came up.
    """

    _instead_of_copy = "pickle its calls, or what as_c() returns"

    def __init__(self) -> None:
        self._recorder = Recorder()
        self.warnings = self._recorder.warnings
        self._program: tuple[Any, Program | None] = None, None  # the last one that was built

    @property
    def calls(self) -> tuple[TracedCall, ...]:
        """Every call, in order."""
        return tuple(statement.call for statement in self._recorder.statements if statement.call)

    @property
    def checksums(self) -> list[tuple[str, str]]:
        """The names and checksums that the program prints if it computes what Python computed.

        Lines about failed calls are not among them.

        A checksum is the sum of (2 i + 1) times byte i, modulo 2^64, in hexadecimal.
        """
        return [(name, f"{value:016x}") for name, value in self._written().checksums]

    def as_c(self, seed: int | None = None) -> str:
        """Return the program in C; what it reads is written by `save`.

        The program has the calls that compute, and the calls that these need.  It leaves out
        queries whose answers nobody uses.

        Parameters
        ----------
        seed : int, optional
            The seed of generated numbers, from 0 to 2^24 - 1.  With it the program needs no files
            for floating-point arrays that the block copied to the device whole: it generates their
            values, of either sign and below 2.  They differ from Python's values, and so do the
            checksums.  Arrays of bfloat16 stay files.

        Raises
        ------
        ArgumentError
            The seed is out of range.
        """
        return self._written(seed).text

    def save(self, folder: Any, seed: int | None = None) -> Path:
        """Write ``program.c``, a ``Makefile`` and the files in ``inputs/``; return the folder.

        Files that an earlier trace wrote there are replaced; any other file that is in the way is
        refused.

        Parameters
        ----------
        folder : str or Path
            The folder to write to.  Symbolic links in it are not followed.
        seed : int, optional
            As in `as_c`.

        Raises
        ------
        ArgumentError
            The folder cannot be written, a file in it was not written by cudnnlite, or the seed is
            out of range.  Nothing is written then.
        """
        path = path_of(folder, "folder")
        self._save_in(ProgramFolder(path, f"folder={str(path)!r}"), seed)
        return path

    def _save_in(self, folder: ProgramFolder, seed: int | None = None) -> None:
        program = self._written(seed)
        makefile = packaged_file("program.mk")
        folder.write({**program.files, PROGRAM: program.text.encode(), "Makefile": makefile})

    def _written(self, seed: int | None = None) -> Program:
        recorder = self._recorder
        if seed is not None:
            seed = integer(seed, "seed", 0, 2**24 - 1)
        key = recorder.over, len(recorder.statements), len(recorder.warnings), seed
        if self._program[1] is not None and self._program[0] == key:
            return self._program[1]
        version = library_api().library.version_text
        calls = counted(len(self), "call")
        names = ", ".join(sorted({str(device.name) for device in recorder.devices})) or "no device"
        # `ProgramFolder` recognises a program by this line.
        head = [f"Written by cudnnlite {__version__} from {calls} of cuDNN {version} on {names}."]
        if any(device.kind == "emulated" for device in recorder.devices):
            head.append("It was traced on the emulated device and was never run on a GPU.")
        head += [f"Not written out: {warning}" for warning in recorder.warnings]
        head.append(
            "Build and run: make run (see the Makefile); it prints a checksum of each result."
        )
        program = Program(recorder.statements, head, seed)
        self._program = key, program
        return program

    def __len__(self) -> int:
        return len(self.calls)

    def __str__(self) -> str:
        """One line a call, with the host's microseconds; many that the program lacks share one."""
        statements = [statement for statement in self._recorder.statements if statement.call]
        useful_statements = {*useful(self._recorder.statements)}
        lines: list[str] = []
        for is_needed, group in groupby(statements, useful_statements.__contains__):
            calls = [statement.call for statement in group]
            if is_needed or len(calls) <= _FEW:
                lines += map(str, calls)
            else:
                us = sum(call.microseconds for call in calls)
                names = ", ".join(dict.fromkeys(call.function for call in calls))
                count = f"{len(calls)} calls that the program does without"
                lines.append(f"{us:9.1f} us  {count}: {names}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Trace of {counted(len(self), 'call')}>"

    def _repr_html_(self) -> str:
        calls, program = html.escape(str(self)), html.escape(self.as_c())
        return (
            f"<details open><summary>{counted(len(self), 'call')} of cuDNN</summary>"
            f"<pre>{calls}</pre></details><details><summary>the program in C</summary>"
            f"<pre>{program}</pre></details>"
        )


_active: Trace | None = None


def _after_fork() -> None:
    """Go on in a forked process without the locks and the block of threads that are not there."""
    if _active is not None:
        _active._recorder.renew_locks()
        if _active._recorder.thread != get_ident():
            _end(_active._recorder)


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def trace() -> Iterator[Trace]:
    """Record the C calls of a block, in whichever thread, and the copies to and from the device.

    Meanwhile each call takes longer, and a plan with ``replay=True`` makes its calls one by one.
    An object from before the block is recorded when it is first used, in its state at that time: a
    descriptor by the calls that would make it, memory with its content. Nothing is recorded outside
    of such a block.

    Yields
    ------
    Trace
        The calls. Read them in the block or after it: ``print(trace)``, `Trace.calls`,
        `Trace.as_c`, `Trace.save`.

    Raises
    ------
    ArgumentError
        Inside of another trace.

    Warns
    -----
    RuntimeWarning
        Something cannot be written out: a CUDA graph that was recorded before, memory of which
        nothing is known.

    Examples
    --------
    >>> with dnn.trace() as trace, dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 1, 4, 4), np.float32))
    ...     y = dnn.pooling_forward(handle, x, dnn.PoolingSpec(2)).numpy()
    >>> print([call.function for call in trace.calls][-2:], trace.checksums)
    ['cudnnDestroyTensorDescriptor', 'cudnnDestroy'] [('y', '00000000000034b4')]
    >>> print(trace.as_c().count("cudnnPoolingForward(handle, pooling_desc, &(float){1.0f}, x_desc, x,"))
    1
    """
    global _active  # noqa: PLW0603  (functions of every table are traced, or none is)
    if _active is not None:
        raise ArgumentError("a trace is being recorded already; traces are not nested")
    new = _active = Trace()
    recorder = new._recorder
    try:
        observer.attach(recorder)
        yield new
        recorder.finish()
    except CudnnError:
        if recorder.failed is not None:  # what the block ended with belongs to the program
            recorder.failed.needed_for = None
        raise
    finally:
        recorder.over, _active = True, None
        try:
            _end(recorder)
        except BaseException:  # a signal handler's, in the midst of it
            _end(recorder)
            raise


def _end(recorder: Recorder) -> None:
    global _active
    recorder.over, _active = True, None
    observer.detach()
