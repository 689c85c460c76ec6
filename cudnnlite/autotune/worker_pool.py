"""`WorkerPool`: processes of this machine that tune, as an executor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from subprocess import DEVNULL, Popen
from typing import Any

from cudnnlite.texts import SIGNALS


class WorkerDiedError(BrokenExecutor):
    """A worker process ended in the middle of a task; the message says how."""


class WorkerPool(ThreadPoolExecutor):
    """So many processes, which are started now, and as many threads that wait for them.

    A `ProcessPoolExecutor` imports the caller's program in every process, is broken as a whole when
    one dies, and leaves processes behind that work on when the program is interrupted.  Here the
    death of a process fails the one call that it was at (`WorkerDiedError`), and another takes its
    place; when the `with` block ends, or the program does, so do the processes.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count, thread_name_prefix="cudnnlite-worker")
        self._is_open = True
        self._processes = [_Process() for _ in range(count)]
        self._idle = list(self._processes)  # as many as there are threads, so that each finds one

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule a call of a module's function; arguments and result are pickled."""
        return super().submit(self._call, (fn, args, kwargs))

    def _call(self, call: Any) -> Any:
        process = self._idle.pop()
        try:
            process.pipe.send(call)
            good, value = process.pipe.recv()
        except (EOFError, OSError) as error:
            died = f"worker process {process.pid} died: {process.end()}"
            if self._is_open:
                process = _Process()
                self._processes.append(process)
            raise WorkerDiedError(died) from error
        finally:
            self._idle.append(process)
        if good:
            return value
        raise value

    def __exit__(self, *_: object) -> None:
        """End the processes, whatever they are at."""
        self._is_open = False
        self.shutdown(
            wait=False, cancel_futures=True
        )  # first: one that was just replaced finds nothing to do
        for process in self._processes:
            process.kill()
        self.shutdown()
        for process in self._processes:
            process.end()


class _Process(Popen[bytes]):
    """A process that answers the calls that come through a pipe."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        paths = [path for path in sys.path if isinstance(path, str)]
        code = f"import sys; sys.path[:] = {paths!r}; from {__name__} import serve; serve({theirs.fileno()})"
        # idle threads of NumPy's BLAS spin: those of two processes doubled the time of every call
        # on 32 cores
        one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        command, environment = (
            [sys.executable, "-c", code],
            one | os.environ,
        )  # what the user has set counts
        # what libraries print is no part of the program's output, and Ctrl-C is the program's to
        # handle
        with theirs:
            super().__init__(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=DEVNULL,
                stdout=2,
                start_new_session=True,
            )

    def end(self) -> str:
        """Wait until the process has ended, which it does without its pipe, and say how."""
        self.pipe.close()
        code = self.wait()
        return (
            f"killed by {SIGNALS.get(-code, f'signal {-code}')}"
            if code < 0
            else f"exit status {code}"
        )


def serve(descriptor: int) -> None:
    """Answer calls until the pipe is closed: the life of a worker process."""
    with Connection(descriptor) as pipe, suppress(EOFError, OSError):
        while True:
            function, arguments, options = pipe.recv()
            try:
                answer = True, function(*arguments, **options)
            except Exception as error:
                answer = False, error
            try:
                pipe.send(answer)
            except Exception as error:
                pipe.send((False, RuntimeError(f"{answer[1]!r} cannot be sent: {error}")))
