"""What can only be learnt by trying it, done in a process of its own, because it may end that process.

`main` writes a line of JSON before and after each step: import the packages, load libcudnn, ask CUDA, convolve.  `run_probe` of
`child.py` starts it and reads them.

C function: `cudnnGetMaxDeviceVersion`.
"""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

INTERESTING = ("libcudnn", "libcublas", "libnvrtc", "libcuda.", "libcudart", "libnvJitLink")


def main(descriptor: int, device: str, packages: list[str]) -> None:
    """Do the steps.

    Parameters
    ----------
    descriptor : int
        The open file that the lines are written to: what libraries print must not come between.
    device : str
        The device to convolve on; 'auto' for CUDA if this process sees a GPU, the emulated one if not.  It is left out where
        it cannot work, and for 'none'.
    packages : list of str
        What to import first.
    """
    with open(descriptor, "w", encoding="utf-8", closefd=False) as out:
        for package in packages:
            _step(out, f"import {package}", partial(_import, package))
        library = _step(out, "library", load)
        devices = _step(out, "cuda", ask_cuda).get("devices")
        if device.lower() == "auto":
            device = "cuda" if devices else "emulated"
        hopeless = "message" in library or (device.lower().startswith("cuda") and not devices)
        if device != "none" and not hopeless:
            _step(out, "trial", partial(convolve, device))


def _step(out: Any, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    _write(out, {"step": name})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = work()
        except Exception as error:
            found = _told(error)
    found["warnings"] = [
        str(each.message) for each in caught if issubclass(each.category, (RuntimeWarning, UserWarning))
    ]
    _write(out, {"step": name, "done": True, "mapped": _mapped(), **found})
    return found


def _write(out: Any, record: dict[str, Any]) -> None:
    out.write(json.dumps(record) + "\n")
    out.flush()


def _told(error: BaseException) -> dict[str, Any]:
    causes: list[str] = []
    cause = error.__cause__
    while cause is not None and len(causes) < 5:
        causes.append(str(cause))
        cause = cause.__cause__
    return {"error": type(error).__name__, "message": str(error), "causes": causes}


def _import(package: str) -> dict[str, Any]:
    importlib.import_module(package)
    return {}


def load() -> dict[str, Any]:
    """Load libcudnn, and return what it says of itself."""
    from cudnnlite._raw.api import CudnnApi
    from cudnnlite._raw.library import load_library

    library = load_library()
    api = CudnnApi(library)
    return {
        "path": library.path,
        "how": library.how,
        "version": library.version_text,
        "number": library.version,
        "cudart": library.cudart_version,
        "newest_gpu": int(api.cudnnGetMaxDeviceVersion()) if api.has("cudnnGetMaxDeviceVersion") else 0,
    }


def ask_cuda() -> dict[str, Any]:
    """Return what CUDA says, without using a device."""
    from cudnnlite.devices.cuda import cuda_state

    return cuda_state()._asdict()


def convolve(name: str) -> dict[str, Any]:
    """Convolve ones with ones: 18 at each place; nearly so, where the algorithm is Winograd's or FFT."""
    import numpy as np

    import cudnnlite as dnn

    with dnn.Handle(name) as handle:
        x, w = handle.array(np.ones((1, 2, 5, 5), np.float32)), handle.array(np.ones((3, 2, 3, 3), np.float32))
        y = dnn.convolution_forward(handle, x, w).numpy()
        free, total = handle.device.memory_info()
        return {
            "device": f"{handle.device.kind}:{handle.device.index}",
            "name": handle.device.name,
            "right": y.shape == (1, 3, 3, 3) and bool((abs(y - 18) < 0.1).all()),
            "free": free,
            "total": total,
        }


def _mapped() -> list[str]:
    """Return the files of CUDA's and cuDNN's libraries that this process has loaded; empty where /proc does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) > 5}
    return sorted(path for path in paths if os.path.basename(path).startswith(INTERESTING))
