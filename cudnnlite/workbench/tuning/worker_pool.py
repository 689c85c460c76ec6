"""`WorkerPool`: an executor of processes on this machine that tune."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from subprocess import DEVNULL, Popen
from typing import Any

from cudnnlite.texts import signal_name


class WorkerPool(ThreadPoolExecutor):
    """An executor of `count` processes, with as many threads that wait for them.

    The processes start at once, and end with the `with` block or with the program.  If a process
    dies, its call fails (`ChildProcessError`), and another process takes its place.  A
    `ProcessPoolExecutor` imports the caller's program in every process, breaks as a whole when one
    process dies, and leaves processes behind when the program is interrupted.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count, thread_name_prefix="cudnnlite-worker")
        self._is_open = True
        self._processes = [_Process() for _ in range(count)]
        # There are as many threads as processes, so that each thread finds an idle one.
        self._idle = list(self._processes)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule a call of a module's function; arguments and result are pickled."""
        return super().submit(self._call, (fn, args, kwargs))

    def _call(self, call: Any) -> Any:
        process = self._idle.pop()
        try:
            process.pipe.send(call)
            is_result, value = process.pipe.recv()
        except (EOFError, OSError) as error:
            message = f"worker process {process.pid} died: {process.end()}"
            if self._is_open:
                process = _Process()
                self._processes.append(process)
            raise ChildProcessError(message) from error
        finally:
            self._idle.append(process)
        if not is_result:
            raise value
        return value

    def __exit__(self, *_: object) -> None:
        """End the processes, even in the middle of a task."""
        self._is_open = False
        # The tasks are cancelled first, so that no process that replaces a dead one gets a task.
        self.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self.shutdown()
        for process in self._processes:
            process.end()


class _Process(Popen[bytes]):
    """A process that makes the calls that come through a pipe, and answers them."""

    def __init__(self) -> None:
        self.pipe, child_pipe = Pipe()
        paths = [path for path in sys.path if isinstance(path, str)]
        code = (
            f"import sys; sys.path[:] = {paths!r}; "
            f"from {__name__} import serve; serve({child_pipe.fileno()})"
        )
        # Idle threads of NumPy's BLAS spin. On 32 cores the threads of two processes doubled the
        # time of every call. Variables that the user has set stay.
        one_thread = dict.fromkeys(
            ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"
        )
        with child_pipe:
            super().__init__(
                [sys.executable, "-c", code],
                env=one_thread | os.environ,
                pass_fds=[child_pipe.fileno()],
                stdin=DEVNULL,
                stdout=2,  # Libraries must not print into the program's output.
                start_new_session=True,  # The program handles Ctrl-C.
            )

    def end(self) -> str:
        """Close the pipe, wait for the process to end, and return how it ended."""
        self.pipe.close()
        code = self.wait()
        if code >= 0:
            return f"exit status {code}"
        return f"killed by {signal_name(-code)}"


def serve(descriptor: int) -> None:
    """Answer calls until the pipe is closed: the main function of a worker process."""
    with Connection(descriptor) as pipe, suppress(EOFError, OSError):
        while True:
            function, arguments, options = pipe.recv()
            try:
                is_result, value = True, function(*arguments, **options)
            except Exception as error:
                is_result, value = False, error
            try:
                pipe.send((is_result, value))
            except Exception as error:
                pipe.send((False, RuntimeError(f"{value!r} cannot be sent: {error}")))
