"""GPUs where there are none, and a search without waiting, in this process and its children.

Each search writes a line to 'log' in a folder.  What it does depends on the number of filters, k,
and on files there: 'wait-K' holds it up while it exists; 'die-K' kills the searching process;
'fail-K' holds the name of the exception to raise; 'none-K' lets no candidate work; 'slow' makes
every search take 10 ms.
"""

from __future__ import annotations

import builtins
import operator
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cudnnlite as dnn
import cudnnlite.devices.cuda_facts
from cudnnlite import convolution_forward
from cudnnlite.devices import device_choice as choice
from cudnnlite.devices.device import DeviceFacts
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.problems.convolution import FORWARD
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning import tuner

FOLDER, GPUS = "PRETEND_FOLDER", "PRETEND_GPUS"
A, M = dnn.enums.ConvolutionFwdAlgo, dnn.MathType


class PretendGpu(EmulatedDevice):
    """An emulated device that says it is a GPU: what is measured on it goes to the cache."""

    kind = "cuda"

    def facts(self) -> DeviceFacts:
        return facts()[self.index]


def facts() -> tuple[DeviceFacts, ...]:
    """Return what the GPUs are: one letter for each, its kind."""
    kinds = os.environ[GPUS]
    return tuple(
        DeviceFacts(f"Pretend {kind}", "9.0", "580.1", f"GPU-{number}")
        for number, kind in enumerate(kinds)
    )


def make(kind: str, index: int) -> Any:
    if kind == "emulated":
        return EmulatedDevice(index)
    if index >= len(facts()):
        raise dnn.NoDeviceError(f"no CUDA device {index}: there are {len(facts())}")
    return PretendGpu(index, capacity="64 MiB")


def search(
    handle: dnn.Handle, problem: Any, policy: Any, operands: Any, progress: bool = False
) -> dnn.AlgorithmTable:
    """Return made-up rows, after what the folder asks for."""
    folder, k = Path(os.environ[FOLDER]), problem.w.shape[0]
    with open(folder / "log", "a", encoding="ascii") as log:
        log.write(f"{k} {os.getpid()} {handle.device.index} begins\n")
    if (folder / f"die-{k}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if (folder / "slow").exists():
        time.sleep(0.01)
    while (folder / f"wait-{k}").exists():
        time.sleep(0.005)
    if (folder / f"fail-{k}").exists():
        kind, *arguments = (folder / f"fail-{k}").read_text().split()
        raise (getattr(dnn.errors, kind, None) or getattr(builtins, kind))(*arguments)
    rows = rows_of(k, works=not (folder / f"none-{k}").exists())
    with open(folder / "log", "a", encoding="ascii") as log:
        log.write(f"{k} {os.getpid()} {handle.device.index} ends\n")
    memory = handle.device.memory_info()[1]
    return dnn.AlgorithmTable(rows, title=str(problem), timing="pretended", device_memory=memory)


def rows_of(k: int, works: bool = True) -> tuple[dnn.AlgorithmResult, ...]:
    """Return the made-up rows: the faster, the more workspace."""
    why = "" if works else "it does not work"
    return tuple(
        dnn.AlgorithmResult(
            algorithm,
            M.FMA,
            time_ms=k * ms,
            call_us=1e3 * k * ms,
            workspace=size,
            error=1e-7,
            spread_ms=0.001,
            why_not=why,
        )
        for algorithm, ms, size in (
            (A.FFT, 1.0, 4096 * k),
            (A.GEMM, 1.5, 1024),
            (A.IMPLICIT_GEMM, 2.0, 0),
        )
    )


def install(set_attribute: Any = setattr, set_item: Any = operator.setitem) -> None:
    """Put the GPUs and the search in place; of a test with `monkeypatch`'s methods."""
    set_attribute(cudnnlite.devices.cuda_facts, "all_facts", facts)
    set_attribute(choice, "devices", choice.Devices(make))
    pretended = tuner.SEARCHES[FORWARD]._replace(
        operands_of=lambda handle, problem, alignments: {},
        check_operands=lambda *_: {},
        search=search,
        aligned_operands=(),
        make_plan=None,
    )
    set_item(tuner.SEARCHES, FORWARD, pretended)


class Pretence:
    """A folder, and the environment of this process and of those that it starts."""

    def __init__(self, monkeypatch: Any, folder: Path, gpus: str) -> None:
        self.folder = folder
        tests = Path(__file__).parents[1]
        (folder / "sitecustomize.py").write_text(
            f"import sys\nsys.path.insert(0, {str(tests)!r})\n"
            "from helpers.pretend import install\ninstall()\n"
        )
        monkeypatch.setenv(FOLDER, str(folder))
        monkeypatch.setenv(GPUS, gpus)
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        monkeypatch.setenv("TMPDIR", str(folder))  # where the claims are
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        install(monkeypatch.setattr, monkeypatch.setitem)

    def ask(self, *names: str, text: str = "") -> None:
        """Make files."""
        for name in names:
            (self.folder / name).write_text(text)

    def stop(self, *names: str) -> None:
        """Remove files."""
        for name in names:
            (self.folder / name).unlink()

    @property
    def log(self) -> list[tuple[int, int, int, str]]:
        """What was searched: (k, process, GPU, 'begins' or 'ends')."""
        path = self.folder / "log"
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        return [(*map(int, line.split()[:3]), line.split()[3]) for line in lines]

    @property
    def searched(self) -> Counter[int]:
        """How often the search for each k ended."""
        return Counter(k for k, _, _, event in self.log if event == "ends")

    @contextmanager
    def held(self, *ks: int) -> Iterator[None]:
        """Hold up the searches for some k, until all have begun or the block ends."""
        names, over = [f"wait-{k}" for k in ks], threading.Event()

        def go_on() -> None:
            while not over.wait(0.005) and not set(ks) <= {entry[0] for entry in self.log}:
                pass
            self.stop(*names)

        self.ask(*names)
        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def left_over(self) -> list[str]:
        """The lock files in the temporary folder."""
        return sorted(
            path.name for path in self.folder.iterdir() if path.suffix in (".lock", ".claim")
        )


def problem(k: int = 4, **conv: Any) -> Problem:
    """Return a small convolution with k filters."""
    return convolution_forward.problem(
        dnn.TensorSpec((2, 3, 8, 9)), dnn.FilterSpec((k, 3, 3, 3)), dnn.ConvolutionSpec(**conv)
    )
