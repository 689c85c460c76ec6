"""`Commands`: runs commands, and code, in forks of one process, which has imported all once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from helpers.harness import check_exit, environment_with

# Each fork runs `python -m cudnnlite`, or `python -c` if a request has code, with the words, the
# environment and the folder of the request, and ends as that does.  This process loads no libcudnn,
# and has one thread.  It imports what commands import only when they need it, and asks for a help,
# which imports parsers and printers.
_SERVER = """
import gc, json, os, runpy, sys
import cuda.core
import cudnnlite.emulated.device
from cudnnlite.cli.app import app
from typer.testing import CliRunner

CliRunner().invoke(app, ["autotune", "--help"])

def next_request():
    for line in sys.stdin:
        if os.fork() == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    sys.exit()

gc.freeze()  # or the first collection of each fork would copy all objects
request = next_request()
for number, path in enumerate((os.devnull, request["stdout"], request["stderr"])):
    os.dup2(os.open(path, os.O_RDWR), number)
os.environ.clear()
os.environ.update(request["environment"])
os.chdir(request["folder"])
code = request["code"]
sys.argv = ["cudnnlite" if code is None else "-c", *request["words"]]
if code is None:
    runpy.run_module("cudnnlite", run_name="__main__", alter_sys=True)
else:
    exec(code, {"__name__": "__main__"})
"""


class Commands:
    """Runs commands as `python -m cudnnlite` does; Python starts and imports once for all.

    For tests of what a command does, and of code that needs a process that has loaded and made
    nothing yet.  Tests of how a process starts, and of its streams, start one.
    """

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None
        self._environment = dict(os.environ)  # no test has changed it yet

    def close(self) -> None:
        """End the process that forks."""
        if self._server is not None:
            self._server.communicate()

    def run(self, *words: Any, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command with this process' environment, in this folder or the current one."""
        return self._ask(None, words, folder or Path.cwd(), dict(os.environ))

    def run_code(
        self, code: str, *arguments: Any, check: bool = True, **environment: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code as `run_python` does."""
        process = self._ask(
            textwrap.dedent(code), arguments, Path.cwd(), environment_with(environment)
        )
        if check:
            check_exit(process)
        return process

    def _ask(
        self, code: str | None, words: Sequence[Any], folder: Path, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        sys.audit("os.fork", "of the process that runs commands")  # each is a process for its test
        if self._server is None:
            command = [sys.executable, "-c", _SERVER]
            pipe = subprocess.PIPE
            self._server = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, text=True, env=self._environment
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with TemporaryDirectory() as outputs:
            stdout, stderr = Path(outputs, "stdout"), Path(outputs, "stderr")
            stdout.touch()
            stderr.touch()
            request = {
                "code": code,
                "words": [str(word) for word in words],
                "environment": environment,
                "folder": str(folder),
                "stdout": str(stdout),
                "stderr": str(stderr),
            }
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            answer = self._server.stdout.readline()
            assert answer, f"the process that runs commands ended with {self._server.wait()}"
            exit_code = int(answer)
            return subprocess.CompletedProcess(
                words, exit_code, stdout.read_text("utf-8"), stderr.read_text("utf-8")
            )
