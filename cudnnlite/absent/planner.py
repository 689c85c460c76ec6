"""`Planner`: asks cuDNN about GPUs that are absent, in a process that may crash."""

from __future__ import annotations

import os
import sys
import tempfile
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import IO, Any

from cudnnlite._raw.library import LIBRARY_VARIABLE
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.absent.answers import Answer, Question
from cudnnlite.absent.driver_stub import driver_stub
from cudnnlite.errors import LibraryError
from cudnnlite.texts import signal_name

_START_SECONDS = 120.0  # cuDNN's files are hundreds of megabytes, which a disk has to read


class Planner(NonCopyable):
    """A process in which cuDNN plans without a GPU and a driver, and another if it ends.

    There is a new process for each GPU.  cuDNN keeps what it compiled by the names of kernels: after
    a question about an A100 it puts code for that into the plans for an H200 (9.28).

    Parameters
    ----------
    cudnn : Path, optional
        The libcudnn that is asked, a file or its folder; the one that this process uses if not
        given.
    timeout : float
        The most seconds for an answer.

    Attributes
    ----------
    version : str
        cuDNN's version, "9.28.0".

    Raises
    ------
    LibraryError
        There is no C compiler, no libcudnn, or its process does not start.
    """

    def __init__(self, cudnn: Path | None = None, timeout: float = 120.0) -> None:
        self._driver = driver_stub()
        self._cudnn = cudnn
        self._timeout = timeout
        self.version = ""
        self._process: Popen[bytes] | None = None
        self._properties = ""  # of the GPU that this process was asked about
        # What the process wrote to stderr.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (`close` closes it)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Planner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._stop()
        self._errors.close()

    def _stop(self) -> None:
        """End the process if there is one."""
        if self._process is not None:
            self._pipe.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, question: Question) -> Answer:
        """Return the answer; one that says how the process ended, if it did.

        Raises
        ------
        LibraryError
            cuDNN knows no absent GPUs, which it does from 9.8 on; or no process starts.
        """
        if self._properties not in ("", question.properties):
            self._stop()
        if self._process is None:
            self._start()
        self._properties = question.properties
        try:
            self._pipe.send(question)
            if not self._pipe.poll(self._timeout):
                self._stop()
                return Answer((), f"cuDNN had no answer after {self._timeout:g} s")
            is_answer, answer = self._pipe.recv()
        except (EOFError, OSError):
            return Answer((), f"the process in which cuDNN was asked {self._end()}")
        except BaseException:
            self._stop()  # its answer would be taken for that of the next question
            raise
        if not is_answer:
            raise LibraryError(answer)
        assert isinstance(answer, Answer)
        return answer

    def _end(self) -> str:
        """Return how the process ended."""
        assert self._process is not None
        self._pipe.close()
        code = self._process.wait()
        self._process = None
        end = f"ended with status {code}"
        if code < 0:
            end = f"was killed by {signal_name(-code)}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"{end} ({lines[-1]})" if lines else end

    def _start(self) -> None:
        """Start the process, and wait until it has loaded cuDNN."""
        self._errors.seek(0)
        self._errors.truncate()
        self._properties = ""
        self._pipe, child_pipe = Pipe()
        with child_pipe:
            self._process = _start_process(child_pipe, self._driver, self._cudnn, self._errors)
        try:
            has_answered = self._pipe.poll(_START_SECONDS)
            is_ready, text = self._pipe.recv() if has_answered else (False, "it does not start")
        except (EOFError, OSError):
            is_ready, text = False, f"it {self._end()}"
        except BaseException:
            self._stop()
            raise
        if not is_ready:
            self._stop()
            raise LibraryError(f"the process in which cuDNN plans without a GPU: {text}")
        self.version = text


def _start_process(
    pipe: Connection, driver: Path, cudnn: Path | None, errors: IO[bytes]
) -> Popen[bytes]:
    paths = [path for path in sys.path if isinstance(path, str)]
    code = (
        f"import sys; sys.path[:] = {paths!r}; from cudnnlite.absent.worker import serve; "
        f"serve({pipe.fileno()}, {str(driver)!r})"
    )
    environment: dict[str, Any] = dict(os.environ)
    if cudnn is not None:
        environment[LIBRARY_VARIABLE] = str(cudnn)
    return Popen(
        [sys.executable, "-c", code],
        env=environment,
        pass_fds=[pipe.fileno()],
        stdin=DEVNULL,
        stdout=DEVNULL,  # what cuDNN and its compiler print is nobody's output
        stderr=errors,
        start_new_session=True,  # the program handles Ctrl-C
    )
