"""Run the probe in a process of its own, and read what it wrote, however it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cudnnlite.autotune.cache_path import CACHE_VARIABLE, IN_MEMORY

# with this process's search path, so that it finds the same packages, wherever it is started
_START = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); from cudnnlite.doctor.probe import main; "
    "main(int(sys.argv[2]), sys.argv[3], sys.argv[4:])"
)
SECONDS = 180.0  # the first use of a GPU can take a minute, where kernels are compiled for it


@dataclass(frozen=True)
class Probe:
    """What the probe found.

    Attributes
    ----------
    steps : dict
        Name -> what the step found, or its 'error' and 'message'.
    end : str
        How the process ended before it was done: 'was killed by SIGSEGV', 'had not ended after 180 s'; empty if it was done.
    during : str
        The step that this happened in.
    """

    steps: dict[str, dict[str, Any]]
    end: str = ""
    during: str = ""

    def step(self, name: str) -> dict[str, Any]:
        """Return what a step found; an 'error' if it was not done, and whether the process 'crashed' in it."""
        if name in self.steps:
            return self.steps[name]
        happened = f"the process that tried it {self.end}" if name == self.during else "it was not tried"
        if self.end and name != self.during:
            happened += f": the process {self.end}" + (f" before, during '{self.during}'" if self.during else "")
        told = {"error": "ProbeError", "message": happened, "crashed": name == self.during}
        return {**told, "causes": [], "mapped": [], "warnings": []}


def run_probe(
    device: str, packages: tuple[str, ...] = (), environment: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> Probe:
    """Start the probe and wait for its end.

    Parameters
    ----------
    device : str
        As in `probe.main`.
    packages : tuple of str
        What to import before libcudnn is loaded.
    environment : mapping, optional
        The environment variables; this process's if not given.
    seconds : float
        How long to wait.
    """
    environment = {**(os.environ if environment is None else environment), CACHE_VARIABLE: IN_MEMORY}
    # files, not pipes: what the packages start may keep a pipe open
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-c", _START, "\n".join(sys.path), str(file.fileno()), device, *packages]
        process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=(file.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        try:
            code = process.wait(seconds)
            errors.seek(0)
            end = _ending(code, errors.read())
        except subprocess.TimeoutExpired:
            end = f"had not ended after {seconds:.0f} s"
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # nothing ends what hangs in a driver: it is left behind
                process.wait(5)
        file.seek(0)
        return read_probe(file.read(), end)


def read_probe(written: bytes, end: str) -> Probe:
    """Return what the lines say that a probe has written."""
    steps: dict[str, dict[str, Any]] = {}
    during = "start"
    for line in written.splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # cut off
            continue
        name = record.pop("step")
        if record.pop("done", False):
            steps[name], during = record, "the end" if name == during else during
        else:
            during = name
    return Probe(steps, end, during if end else "")


def _ending(code: int, stderr: bytes) -> str:
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    if code == 0:
        return ""
    last = stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"ended with {code}" + (f" ({last[0]})" if last else "")
