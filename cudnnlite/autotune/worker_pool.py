"""`WorkerPool`: processes of this machine that tune, as an executor."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any

_MODULE = __name__
# Threads of NumPy's BLAS spin when they have nothing to do: those of two processes doubled the time of every call on 32 cores.
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
_PATIENCE_S = 10.0  # for a process that has nothing to do any more to end


class WorkerDiedError(BrokenExecutor):
    """A worker process ended in the middle of a task; the message says how."""


class WorkerPool(ThreadPoolExecutor):
    """A fixed number of processes, started when they are first needed, each behind a thread that waits for it.

    Not a `ProcessPoolExecutor`, because that imports the caller's program in every process, which must be written for it; is
    broken as a whole when one process dies; and leaves processes behind that work on when the program is interrupted.  Here
    the death of a process fails the one call that it was at (`WorkerDiedError`), and another process takes its place; when a
    `with` block ends by an exception, or the program does, so do the processes.

    Parameters
    ----------
    count : int
        How many.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count, thread_name_prefix="cudnnlite-worker")
        self._of_thread = threading.local()
        self._processes: list[_Process] = []
        self._closing = False
        self._starting = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule a call of a module's function; arguments and result are pickled."""
        return super().submit(self._call, fn, args, kwargs)

    def _call(self, function: Callable[..., Any], arguments: Any, options: Any) -> Any:
        process: _Process | None = getattr(self._of_thread, "process", None)
        if process is None:
            with self._starting:
                if self._closing:
                    raise WorkerDiedError("the pool was closed")
                process = self._of_thread.process = _Process()
                self._processes.append(process)
        try:
            good, value = process.ask((function, arguments, options))
        except (EOFError, OSError) as error:
            self._of_thread.process = None
            raise WorkerDiedError(f"worker process {process.number} died: {process.end(kill=True)}") from error
        if not good:
            raise value
        return value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what was scheduled, and end the processes; kill them, and what they are at, if there is an exception."""
        try:
            if kind is None:
                self.shutdown(wait=True)
        finally:
            with self._starting:
                self._closing = True
            for process in self._processes:
                process.let_go(kill=kind is not None)
            self.shutdown(wait=True, cancel_futures=True)
            for process in self._processes:
                process.end()


class _Process:
    """A process, and the pipe to it."""

    def __init__(self) -> None:
        import subprocess  # these two take longer to import than all of this package's own
        from multiprocessing import Pipe

        self._pipe, theirs = Pipe()
        paths = [path for path in sys.path if isinstance(path, str)]
        code = f"import sys; sys.path[:] = {paths!r}; from {_MODULE} import serve; serve({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=dict.fromkeys(_BLAS_THREADS, "1") | os.environ,  # what the user has set counts
                stdout=2,  # what libraries print is no part of the program's output
                start_new_session=True,  # Ctrl-C is the program's to handle
            )
        self.number = self._process.pid

    def ask(self, call: Any) -> tuple[bool, Any]:
        """Return (True, the result) or (False, the exception) of a call; EOFError or OSError if the process is gone."""
        self._pipe.send(call)
        answer: tuple[bool, Any] = self._pipe.recv()
        return answer

    def let_go(self, *, kill: bool) -> None:
        """Tell the process to end, without waiting."""
        if kill:
            self._process.kill()
        else:
            self._pipe.close()

    def end(self, *, kill: bool = False) -> str:
        """Wait until the process has ended, and say how."""
        from signal import Signals
        from subprocess import TimeoutExpired

        if kill:  # it closed its pipe: it has ended, or is about to
            with suppress(TimeoutExpired):
                self._process.wait(1)
            self._process.kill()
        self._pipe.close()
        try:
            code = self._process.wait(_PATIENCE_S)
        except TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return f"killed by {Signals(-code).name}" if code < 0 else f"exit status {code}"


def serve(descriptor: int) -> None:
    """Answer the calls that come through a pipe, until it is closed: the life of a worker process."""
    from multiprocessing.connection import Connection

    with Connection(descriptor) as pipe, suppress(EOFError, OSError):
        while True:
            function, arguments, options = pipe.recv()
            try:
                answer = True, function(*arguments, **options)
            except Exception as error:
                answer = False, error
            try:
                pipe.send(answer)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                pipe.send((False, RuntimeError(f"{answer[1]!r} cannot be sent: {error}")))
