"""The probe: a process of its own that does what may crash.

`run_probe` starts `main` there.  It imports packages, loads libcudnn, queries CUDA and convolves,
and writes a line of JSON before and after each step.

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
from typing import IO, Any, NamedTuple

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.library import load_library, mapped_cudnn_files
from cudnnlite.devices.cuda_facts import cuda_state
from cudnnlite.texts import signal_name
from cudnnlite.workbench.tuning.cache import CACHE_VARIABLE, IN_MEMORY

_LIBRARIES = ("libcudnn", "libcublas", "libnvrtc")  # whose mapped files are listed


class Probe(NamedTuple):
    """What the probe wrote, and how its process ended.

    Attributes
    ----------
    steps : dict
        The results of the steps that were completed, by name.
    end : str
        How the process ended, such as 'was killed by SIGSEGV'; empty if it completed all steps.
    during : str
        The step in which it ended; empty if it completed all steps.
    """

    steps: dict[str, dict[str, Any]]
    end: str = ""
    during: str = ""

    def step(self, name: str) -> dict[str, Any]:
        """Return the result of a step.

        An incomplete step has an 'error', and says whether the process 'crashed' in it.
        """
        if name in self.steps:
            return self.steps[name]
        return {
            "error": "ProbeError",
            "message": self._why_not_completed(name),
            "crashed": name == self.during,
            "mapped": [],
        }

    def _why_not_completed(self, name: str) -> str:
        if name == self.during:
            return f"the process that tried it {self.end}"
        if not self.end:
            return "it was not tried"
        message = f"it was not tried: the process {self.end}"
        if self.during:
            message += f" before, during '{self.during}'"
        return message


def run_probe(device: str, packages: tuple[str, ...] = (), seconds: float = 180.0) -> Probe:
    """Start the probe, and wait for its end; for `device` and `packages` see `main`.

    The first use of a GPU can take a minute, if kernels are compiled for it.
    """
    # Files, not pipes: a process that a package starts may keep a pipe open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = _start_probe(output, errors, device, packages)
        try:
            end = _end_of_process(process.wait(seconds), errors)
        except subprocess.TimeoutExpired:
            end = f"had not ended after {seconds:.0f} s"
        finally:
            process.kill()
            # No signal ends a process that hangs in a driver: it is left behind.
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        output.seek(0)
        return read_probe(output.read(), end)


def _start_probe(
    output: IO[bytes],
    errors: IO[bytes],
    device: str,
    packages: tuple[str, ...],
) -> subprocess.Popen[bytes]:
    # With this path the probe finds the same packages, whatever folder it is started in.
    paths = [path for path in sys.path if isinstance(path, str)]
    descriptor = output.fileno()
    code = (
        f"import sys; sys.path[:] = {paths}; "
        f"from {__name__} import main; main{descriptor, device, packages}"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {CACHE_VARIABLE: IN_MEMORY},
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )


def _end_of_process(code: int, errors: IO[bytes]) -> str:
    """Return how a process ended, in words; empty if it succeeded."""
    if code == 0:
        return ""
    if code < 0:
        return f"was killed by {signal_name(-code)}"
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    if not lines:
        return f"ended with {code}"
    return f"ended with {code} ({lines[-1]})"


def read_probe(content: bytes, end: str) -> Probe:
    """Return the probe that wrote these lines, and ended like this."""
    steps: dict[str, dict[str, Any]] = {}
    during = "start"
    for line in content.splitlines():
        with suppress(ValueError):  # The last line may be cut off.
            record = json.loads(line)
            name = record.pop("step")
            if record:
                steps[name] = record
                during = "the end"
            else:
                during = name
    return Probe(steps, end, during if end else "")


def main(descriptor: int, device: str, packages: Iterable[str]) -> None:
    """Run the steps, and write their results to a file that is open already.

    It is not stdout, because libraries may print there.

    Parameters
    ----------
    descriptor : int
        The file.
    device : str
        Where to convolve. 'auto' is CUDA if this process sees a GPU, otherwise the emulated device.
        Nothing is convolved with 'none', nor on CUDA without a GPU.
    packages : iterable of str
        The packages to import first.
    """
    with open(descriptor, "w", encoding="utf-8", closefd=False) as output:
        for package in packages:
            _run_step(output, f"import {package}", import_module, package)
        library = _run_step(output, "library", load)
        gpus = _run_step(output, "cuda", lambda: cuda_state()._asdict()).get("devices")
        if device.lower() == "auto":
            device = "cuda" if gpus else "emulated"
        lacks_gpu = device.lower().startswith("cuda") and not gpus
        if "error" not in library and not lacks_gpu and device != "none":
            _run_step(output, "trial", convolve, device)


def _run_step(
    output: IO[str],
    name: str,
    work: Callable[..., Any],
    *arguments: str,
) -> dict[str, Any]:
    print(json.dumps({"step": name}), file=output, flush=True)
    try:
        value = work(*arguments)
        result = value if isinstance(value, dict) else {}
    except Exception as error:
        result = {"error": type(error).__name__, "message": str(error)}
    record = {"step": name, "mapped": mapped_cudnn_files(_LIBRARIES), **result}
    print(json.dumps(record), file=output, flush=True)
    return result


def load() -> dict[str, Any]:
    """Load libcudnn, and return its path and versions."""
    library = load_library()
    api = CudnnApi(library)
    newest_gpu = 0
    if api.has("cudnnGetMaxDeviceVersion"):
        newest_gpu = int(api.cudnnGetMaxDeviceVersion())
    return {
        "path": library.path,
        "how": library.how,
        "version": library.version_text,
        "number": library.version,
        "cudart": library.cudart_version,
        "newest_gpu": newest_gpu,
        "missing_parts": list(library.missing_parts),
    }


def convolve(name: str) -> dict[str, Any]:
    """Convolve ones with ones, and return whether each result is 18.

    The algorithms Winograd and FFT give numbers near 18.
    """
    import numpy as np

    import cudnnlite as dnn

    with dnn.Handle(name) as handle:
        x = handle.array(np.ones((1, 2, 5, 5), np.float32))
        w = handle.array(np.ones((3, 2, 3, 3), np.float32))
        y = dnn.convolution_forward(handle, x, w).numpy()
        free, total = handle.device.memory_info()
        return {
            "device": f"{handle.device.kind}:{handle.device.index}",
            "right": y.shape == (1, 3, 3, 3) and bool((abs(y - 18) < 0.1).all()),
            "free": free,
            "total": total,
        }
