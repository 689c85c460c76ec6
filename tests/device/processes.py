"""`Process`: a worker that answers requests, and may die of one."""

from __future__ import annotations

import json
import selectors
import subprocess
import tempfile
from contextlib import suppress
from typing import Any


class Process:
    """A worker that is started again when it died.

    Parameters
    ----------
    command : list of str
        Starts it; it answers each line of its input by one line of JSON.
    timeout : float
        Seconds for one answer; after them it is killed.
    first_timeout : float, optional
        Seconds for the first answer of a new process, which has modules to import.
    """

    def __init__(self, command: list[str], timeout: float, first_timeout: float = 0.0) -> None:
        self._command = command
        self._timeout = timeout
        self._first_timeout = max(first_timeout, timeout)
        self._process: subprocess.Popen[str] | None = None
        # A pipe that nobody reads would block the worker.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def ask(self, request: Any) -> Any:
        """Return the answer, or ["died", the exit code and the last line of its errors]."""
        timeout = self._timeout
        if self._process is None:
            timeout = self._first_timeout
            self._errors.truncate(0)
            self._errors.seek(0)
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            # It writes nothing but one line for each request, so that no other is in the buffer.
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if not selector.select(timeout):
                    process.kill()
            line = process.stdout.readline()
        except BrokenPipeError:
            pass
        if line.endswith("\n"):
            return json.loads(line)
        code = self._end()
        self._errors.seek(0)
        errors = self._errors.read().strip().splitlines()
        return ["died", f"exit {code}: {errors[-1][:160] if errors else ''}"]

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._end()
        self._errors.close()

    def _end(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        process, self._process = self._process, None
        assert process is not None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        return process.wait()
