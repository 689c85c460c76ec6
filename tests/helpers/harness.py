"""Function tables that count and fail, and Python in a process of its own."""

import gc
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import cudnnlite
from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.check import status_error
from cudnnlite._raw.library import load_library
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.enums import Status

_PACKAGE = str(Path(cudnnlite.__file__).parent)
_MAKES = re.compile(r"cudnn(?:Backend)?(Create|Destroy)(\w*)")


class Ledger:
    """Counts native objects by kind, lists the checked calls, and fails the one it is told to."""

    def __init__(self):
        self.started = []  # every checked call, the failed one included
        self.finished = []
        self.live = Counter()
        self.stacks = None  # of the checked calls, after `record_stacks`
        self.failed = None
        self._fail_at = None
        self._fail_name = None
        self._status = None

    def fail(self, nth, status=Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED):
        """Let the `nth` checked call from the start (1 is the first) fail before it runs."""
        self._fail_at, self._status = nth, status

    def fail_next(self, name, status):
        """Let the next call of the C function `name` fail before it runs."""
        self._fail_name, self._status = name, status

    def record_stacks(self):
        """Note the name of each checked call with the lines of the package that led to it."""
        self.stacks = []

    def disarm(self):
        self._fail_at = self._fail_name = None

    def wrap(self, record, function, memory):
        def call(*arguments):
            self.started.append(record.name)
            if self.stacks is not None:
                self.stacks.append((record.name, package_stack()))
            if len(self.started) == self._fail_at or record.name == self._fail_name:
                self.failed = record.name
                self.disarm()
                raise status_error(record.name, int(self._status), "", memory)
            if status := function(*arguments):
                return status
            self.finished.append(record.name)
            if match := _MAKES.fullmatch(record.name):
                self.live[match[2] or "Handle"] += 1 if match[1] == "Create" else -1
            return 0

        return call

    def leaked(self):
        """Native objects that were made and not destroyed (or destroyed too often), by kind."""
        return {kind: count for kind, count in self.live.items() if count}

    def not_destroyed(self):
        """The object that the failed call would have destroyed, by kind."""
        match = _MAKES.fullmatch(self.failed or "")
        return {match[2] or "Handle": 1} if match and match[1] == "Destroy" else {}


def package_stack():
    """Return the lines of the package that led here, as file names and line numbers."""
    lines, frame = [], sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)


class _Instrumented:
    ledger: Ledger

    def _pointer(self, record):
        function = super()._pointer(record)
        return (
            self.ledger.wrap(record, function, self._memory) if record.returns_status else function
        )


class InstrumentedApi(_Instrumented, CudnnApi):
    pass


class InstrumentedEmulatedApi(_Instrumented, EmulatedApi):
    pass


class World:
    """An emulated device of its own and a table for descriptors, both reporting to one ledger."""

    latest = None

    def __init__(self, monkeypatch, capacity="64 MiB"):
        self.ledger = Ledger()
        self.device = EmulatedDevice(7, capacity=capacity)
        self.device.api = InstrumentedEmulatedApi(load_library(), self.device.memory)
        self.process_api = InstrumentedApi(load_library())
        self.device.api.ledger = self.process_api.ledger = self.ledger
        World.latest = (
            self.process_api
        )  # monkeypatch remembers what it replaces: that must not be every world of a loop
        monkeypatch.setattr("cudnnlite.descriptors.native.library_api", lambda: World.latest)

    @property
    def memory_used(self):
        gc.collect()
        return self.device.memory.used


def drop(holder):
    """Empty a list that holds the last reference, and collect what that leaves."""
    holder.clear()
    gc.collect()


def pretend_file(monkeypatch, path, text):
    """Let a file of the system have this text, also where there is no such file."""
    read = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda self, *args, **kwargs: text if str(self) == path else read(self, *args, **kwargs),
    )


def environment_with(changes):
    """Return the environment without our variables, with changes; None removes a variable."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("CUDNNLITE_")
    }
    for name, value in changes.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = str(value)
    return environment


def check_exit(process):
    """Check that a process that ended had no error."""
    assert process.returncode == 0, (
        f"exit status {process.returncode}\n{process.stdout}\n{process.stderr}"
    )


def run_python(code, *arguments, check=True, **environment):
    """Run `code` in a fresh interpreter; a variable of None is removed from its environment."""
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env=environment_with(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if check:
        check_exit(process)
    return process
