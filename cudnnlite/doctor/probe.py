"""What can only be learnt by trying it, done in a process of its own, because it may end that process.

`run_probe` starts `main` there, which writes a line of JSON before and after each step: import the
packages, load libcudnn, ask CUDA, convolve.

C function: `cudnnGetMaxDeviceVersion`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.library import load_library, mapped_cudnn_files
from cudnnlite.autotune.cache import CACHE_VARIABLE, IN_MEMORY
from cudnnlite.devices.cuda_facts import cuda_state
from cudnnlite.texts import SIGNALS

_INTERESTING = ("libcudnn", "libcublas", "libnvrtc")


class Probe(NamedTuple):
    """What the probe found: its steps, how it ended ('was killed by SIGSEGV'; empty if it was done), and during which step."""

    steps: dict[str, dict[str, Any]]
    end: str = ""
    during: str = ""

    def step(self, name: str) -> dict[str, Any]:
        """Return what a step found; an 'error' if it was not done, and whether the process 'crashed' in it."""
        if name in self.steps:
            return self.steps[name]
        happened = (
            f"the process that tried it {self.end}" if name == self.during else "it was not tried"
        )
        if self.end and name != self.during:
            happened += f": the process {self.end}" + (
                f" before, during '{self.during}'" if self.during else ""
            )
        return {
            "error": "ProbeError",
            "message": happened,
            "crashed": name == self.during,
            "mapped": [],
        }


def run_probe(device: str, packages: tuple[str, ...] = (), seconds: float = 180.0) -> Probe:
    """Start the probe, and wait for its end; for `device` and `packages` see `main`.

    The first use of a GPU can take a minute, where kernels are compiled for it.
    """
    # files, not pipes: what the packages start may keep a pipe open
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as errors:
        paths = [
            path for path in sys.path if isinstance(path, str)
        ]  # the same packages, wherever it is started
        call = f"import sys; sys.path[:] = {paths}; from {__name__} import main; main{file.fileno(), device, packages}"
        null, kept, environment = (
            subprocess.DEVNULL,
            [file.fileno()],
            os.environ | {CACHE_VARIABLE: IN_MEMORY},
        )
        command = [sys.executable, "-c", call]
        process = subprocess.Popen(
            command, env=environment, pass_fds=kept, stdin=null, stdout=null, stderr=errors
        )
        try:
            code, end = process.wait(seconds), ""
            errors.seek(0)
            if code < 0:
                end = f"was killed by {SIGNALS.get(-code, f'signal {-code}')}"
            elif code:
                last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
                end = f"ended with {code}" + (f" ({last[0]})" if last else "")
        except subprocess.TimeoutExpired:
            end = f"had not ended after {seconds:.0f} s"
        finally:
            process.kill()
            with suppress(
                subprocess.TimeoutExpired
            ):  # nothing ends what hangs in a driver: it is left behind
                process.wait(5)
        file.seek(0)
        return read_probe(file.read(), end)


def read_probe(written: bytes, end: str) -> Probe:
    """Return what the lines say that a probe has written."""
    steps, during = dict[str, dict[str, Any]](), "start"
    for line in written.splitlines():
        with suppress(ValueError):  # cut off
            record = json.loads(line)
            name = record.pop("step")
            if record:
                steps[name], during = record, "the end"
            else:
                during = name
    return Probe(steps, end, during if end else "")


def main(descriptor: int, device: str, packages: Iterable[str]) -> None:
    """Do the steps, and write what they find to an open file: what libraries print must not come between.

    `device` is where to convolve; 'auto' is CUDA if this process sees a GPU, the emulated one if
    not; nowhere with 'none', and where it cannot work.  `packages` are imported first.
    """
    with open(descriptor, "w", encoding="utf-8", closefd=False) as out:
        for package in packages:
            _step(out, f"import {package}", import_module, package)
        library = _step(out, "library", load)
        devices = _step(out, "cuda", lambda: cuda_state()._asdict()).get("devices")
        if device.lower() == "auto":
            device = "cuda" if devices else "emulated"
        hopeless = "error" in library or (device.lower().startswith("cuda") and not devices)
        if not hopeless and device != "none":
            _step(out, "trial", convolve, device)


def _step(out: Any, name: str, work: Callable[..., Any], *arguments: str) -> dict[str, Any]:
    print(json.dumps({"step": name}), file=out, flush=True)
    try:
        result = work(*arguments)
        found = result if isinstance(result, dict) else {}
    except Exception as error:
        found = {"error": type(error).__name__, "message": str(error)}
    print(
        json.dumps({"step": name, "mapped": mapped_cudnn_files(_INTERESTING), **found}),
        file=out,
        flush=True,
    )
    return found


def load() -> dict[str, Any]:
    """Load libcudnn, and return what it says of itself."""
    api = CudnnApi(library := load_library())
    newest = int(api.cudnnGetMaxDeviceVersion()) if api.has("cudnnGetMaxDeviceVersion") else 0
    facts = {
        "path": library.path,
        "how": library.how,
        "version": library.version_text,
        "number": library.version,
    }
    return {**facts, "cudart": library.cudart_version, "newest_gpu": newest}


def convolve(name: str) -> dict[str, Any]:
    """Convolve ones with ones: 18 at each place; nearly so, where the algorithm is Winograd's or FFT."""
    import numpy as np

    import cudnnlite as dnn

    with dnn.Handle(name) as handle:
        x, w = (
            handle.array(np.ones((1, 2, 5, 5), np.float32)),
            handle.array(np.ones((3, 2, 3, 3), np.float32)),
        )
        y = dnn.convolution_forward(handle, x, w).numpy()
        free, total = handle.device.memory_info()
        right = y.shape == (1, 3, 3, 3) and bool((abs(y - 18) < 0.1).all())
        return {
            "device": f"{handle.device.kind}:{handle.device.index}",
            "right": right,
            "free": free,
            "total": total,
        }
