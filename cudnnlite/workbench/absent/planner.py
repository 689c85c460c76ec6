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
from cudnnlite.errors import LibraryError
from cudnnlite.texts import signal_name
from cudnnlite.workbench.absent.answers import Answer, Question
from cudnnlite.workbench.absent.driver_stub import driver_stub

_START_SECONDS = 120.0  # enough to read cuDNN's hundreds of megabytes from a disk


class Planner(NonCopyable):
    """A process in which cuDNN plans without a GPU and a driver.

    If the process ends, the next question starts another one.  Each GPU has a process of its own:
    cuDNN 9.28 caches compiled kernels by name alone, and after a question about an A100 it puts the
    A100's code into plans for an H200.

    Parameters
    ----------
    cudnn : Path, optional
        The libcudnn to ask, a file or its folder; if not given, the one that cudnnlite uses.
    timeout : float
        The most seconds that an answer may take.

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
        # The properties of the GPU that the process was asked about; empty if it was not asked yet.
        self._gpu = ""
        # The process writes its stderr here.
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
        """Return the answer; if the process ended instead, the answer says how.

        Raises
        ------
        LibraryError
            cuDNN is older than 9.8 and knows no absent GPUs, or no process starts.
        """
        knows_another_gpu = self._gpu not in ("", question.properties)
        if knows_another_gpu:
            self._stop()
        if self._process is None:
            self._start()
        self._gpu = question.properties
        try:
            self._pipe.send(question)
            if not self._pipe.poll(self._timeout):
                self._stop()
                return Answer((), f"cuDNN had no answer after {self._timeout:g} s")
            is_answer, answer = self._pipe.recv()
        except (EOFError, OSError):
            return Answer((), f"the process in which cuDNN was asked {self._describe_end()}")
        except BaseException:
            self._stop()  # A late answer would be taken for the answer to the next question.
            raise
        if not is_answer:
            raise LibraryError(answer)
        assert isinstance(answer, Answer)
        return answer

    def _describe_end(self) -> str:
        """Wait until the process has ended, and return how."""
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
        self._gpu = ""
        self._pipe, child_pipe = Pipe()
        with child_pipe:
            self._process = _start_process(child_pipe, self._driver, self._cudnn, self._errors)
        try:
            is_ready, text = False, "it does not start"
            if self._pipe.poll(_START_SECONDS):
                is_ready, text = self._pipe.recv()
        except (EOFError, OSError):
            is_ready, text = False, f"it {self._describe_end()}"
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
        f"import sys; sys.path[:] = {paths!r}; from cudnnlite.workbench.absent.worker import serve; "
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
        stdout=DEVNULL,  # cuDNN and its compiler may print here
        stderr=errors,
        start_new_session=True,  # the program handles Ctrl-C
    )
