"""The driver and the devices, and whether they fit cuDNN and each other; a small convolution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cudnnlite._raw.library import format_version
from cudnnlite.devices.choice import DEVICE_VARIABLE
from cudnnlite.devices.cuda import format_cuda_version
from cudnnlite.doctor.finding import BROKEN, NOTE, OK, WARNING, Finding, Verdict, first
from cudnnlite.doctor.probe import Probe

_CODES = {
    "CUDA_ERROR_STUB_LIBRARY": "take the folder 'stubs' out of LD_LIBRARY_PATH: it holds libcuda for linking only",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "restart the machine: the driver was updated, its kernel module was not",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "take CUDA's 'compat' folder out of LD_LIBRARY_PATH, or update the driver",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start the fabric manager: systemctl start nvidia-fabricmanager",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "end the other process: the GPU is in exclusive mode",
    "CUDA_ERROR_OUT_OF_MEMORY": "end other processes that use the GPU's memory",
}
_EMULATE = f"set {DEVICE_VARIABLE}=emulated to work without a GPU"


def judge(environment: Mapping[str, str], probe: Probe, unmasked: int = 0) -> Iterator[Finding]:
    """Tell what is to be said of CUDA; `unmasked` is the number of GPUs without CUDA_VISIBLE_DEVICES, where that is set."""
    state, library, wanted = probe.step("cuda"), probe.step("library"), environment.get(DEVICE_VARIABLE, "")
    kind, _, index = wanted.lower().partition(":")
    chosen = -1 if kind == "emulated" else int(index) if index.isdecimal() else 0
    has_driver = any(state.get(name) for name in ("supports", "driver", "code"))
    bad = BROKEN  # how bad it is that no GPU can be used
    if kind == "emulated" or (kind == "auto" and not has_driver):
        bad = NOTE
    elif kind == "auto" or not (kind or has_driver):
        bad = WARNING
    if "message" in state:
        text, crashed = f"CUDA could not be asked: {state['message']}", state.get("crashed")
        fix = "look at nvidia-smi, and update the driver" if crashed else "mend what is broken above first"
        yield Finding("cuda.driver", BROKEN if crashed and chosen >= 0 else WARNING, text, fix)
    else:
        yield _driver(state, wanted, bad, has_driver, unmasked)
        yield from _versions(state, library, bad)
        yield from _devices(state["devices"], library, wanted, chosen)
        if unmasked:
            yield _mask(environment["CUDA_VISIBLE_DEVICES"], len(state["devices"]), unmasked, bad)
    if "trial" in probe.steps or probe.during == "trial":
        yield _trial(probe.step("trial"), wanted)


def _driver(state: Mapping[str, Any], wanted: str, bad: Verdict, has_driver: bool, unmasked: int) -> Finding:
    named, error = f"the driver {state['driver']}".rstrip(), state["error"]
    fine = not error or (state["code"] == "CUDA_ERROR_NO_DEVICE" and unmasked)
    fix = _CODES.get(state["code"], f"look at nvidia-smi; in a container, start it with --gpus all; or {_EMULATE}")
    none = "there is no NVIDIA driver"
    return first(
        "cuda.driver", {name: value for name, value in state.items() if name != "mapped"},
        (fine, OK, f"{named} supports CUDA {format_cuda_version(state['supports'])}", ""),
        (not state["bindings"], bad, error, f"pip install 'cudnnlite[cu12]' (for CUDA 13: 'cudnnlite[cu13]'), or {_EMULATE}"),
        (has_driver, bad, f"{named} is there, but cannot be used: {error}", fix),
        (bad == NOTE, bad, f"{none}; the emulated device is used, as {DEVICE_VARIABLE}={wanted} says", ""),
        (True, bad, none, f"{_EMULATE}; or install the driver (in a container: --gpus all)"),
    )  # fmt: skip


def _versions(state: Mapping[str, Any], library: Mapping[str, Any], bad: Verdict) -> Iterator[Finding]:
    """Hold the driver against the CUDA that cuDNN was built with, and cuda-python against both."""
    built, supports, bindings = library.get("cudart", 0), state["supports"], state["bindings"]
    needed, driver = built // 1000, supports // 1000
    theirs = int(bindings.partition(".")[0]) if bindings[:1].isdigit() else 0
    plain = {"cudnn_built_with": built, "driver_supports": supports, "bindings": bindings}
    supported = f"the driver supports {format_cuda_version(supports)}"
    text = f"cuDNN was built with CUDA {format_cuda_version(built)}, {supported}"
    other = f"pip uninstall nvidia-cudnn-cu{needed} and pip install nvidia-cudnn-cu{driver}"
    if needed and driver:
        yield first(
            "cuda.compatibility", plain,
            (needed <= driver, OK, text, ""),
            (driver < 12, bad, f"the driver is too old: {text}", "update the driver to one for CUDA 12 or newer"),
            (True, bad, f"the driver is too old: {text}", f"update the driver, or {other}"),
        )  # fmt: skip
    text = f"cuda-bindings {bindings} is for CUDA {theirs}"
    if theirs:
        yield first(
            "cuda.bindings", plain,
            (0 < driver < theirs, WARNING, f"{text}, {supported}", f"update the driver, or pip install 'cuda-python<{theirs}'"),
            (needed not in (0, theirs), WARNING, f"{text}, the libcudnn in use for CUDA {needed}",
             f"pip install 'cudnnlite[cu{needed}]', which brings those for CUDA {needed}"),
            (True, OK, f"cuda-bindings {bindings}", ""),
        )  # fmt: skip


def _devices(devices: list[list[str]], library: Mapping[str, Any], wanted: str, chosen: int) -> Iterator[Finding]:
    cudnn, newest, built = (library.get(name, 0) for name in ("number", "newest_gpu", "cudart"))
    # cuDNN's binaries have code for 5.0 and newer up to 9.10 (for CUDA 12), for 7.5 and newer since 9.11 and for CUDA 13
    oldest = 75 if cudnn >= 91100 or built >= 13000 else 50
    for index, (name, capability, _, uuid) in enumerate(devices):
        text, number = f"cuda:{index} is {name}, compute capability {capability}", round(float(capability) * 10)
        known = f"{text}; cuDNN {format_version(cudnn)} for CUDA {built // 1000}"
        older = "pip install 'nvidia-cudnn-cu12<9.11'" if number >= 50 else "use a newer GPU"
        yield first(
            "cuda.device", {"index": index, "name": name, "compute_capability": capability, "uuid": uuid},
            (cudnn and number < oldest, BROKEN if index == chosen else WARNING, f"{known} needs {oldest / 10} or newer", older),
            (0 < newest < number * 10, WARNING, f"{known} knows GPUs up to {newest / 100:.1f}", "install a newer cuDNN"),
            (True, OK, text, ""),
        )  # fmt: skip
    if wanted.lower().startswith("cuda") and 0 < len(devices) <= chosen:
        text = f"{DEVICE_VARIABLE}={wanted}, but the last device is cuda:{len(devices) - 1}"
        yield Finding("cuda.device", BROKEN, text, f"set {DEVICE_VARIABLE}=cuda:0")


def _mask(mask: str, seen: int, there: int, bad: Verdict) -> Finding:
    asked, setting = [entry.strip() for entry in mask.split(",") if entry.strip()], f"CUDA_VISIBLE_DEVICES={mask}"
    odd, fix = "".join(asked[seen : seen + 1]), "unset it, or name GPUs that nvidia-smi -L lists"
    return first(
        "cuda.visible", {"value": mask, "visible": seen, "there": there},
        (not seen, bad, f"{setting} hides all GPUs; there are {there}", fix),
        (odd, WARNING, f"{setting}: '{odd}' is no GPU here (there are {there}); {seen} are left", fix),
        (True, OK, f"{setting}: {seen} of {there} GPUs", ""),
    )  # fmt: skip


def _trial(trial: Mapping[str, Any], wanted: str) -> Finding:
    text, error = f"a small convolution on {trial.get('device')}", trial.get("error")
    devices = f"set {DEVICE_VARIABLE} to cuda, cuda:1, emulated or auto, or unset it"
    return first(
        "cuda.trial", {name: value for name, value in trial.items() if name != "mapped"},
        (error == "ArgumentError", BROKEN, f"{DEVICE_VARIABLE}={wanted} names no device", devices),
        (error, BROKEN, f"a small convolution fails: {error}: {trial.get('message')}",
         "mend what is broken above first; if nothing is, report this output"),
        (not trial.get("right"), BROKEN, f"{text} returns wrong numbers", "try another cuDNN, and report this output"),
        (True, OK, f"{text} is right", ""),
    )  # fmt: skip
