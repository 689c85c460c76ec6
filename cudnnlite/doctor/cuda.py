"""The driver and the devices, and whether they fit cuDNN and each other; a small convolution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cudnnlite._raw.library import format_version
from cudnnlite.devices.choice import DEVICE_VARIABLE
from cudnnlite.devices.cuda import format_cuda_version
from cudnnlite.doctor.finding import Finding, Verdict
from cudnnlite.doctor.probe import Probe
from cudnnlite.sizes import format_size

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
    bad = Verdict.BROKEN  # how bad it is that no GPU can be used
    if kind == "emulated" or (kind == "auto" and not has_driver):
        bad = Verdict.NOTE
    elif kind == "auto" or not (kind or has_driver):
        bad = Verdict.WARNING
    hidden = state.get("code") == "CUDA_ERROR_NO_DEVICE" and unmasked > 0
    if "message" in state:
        crashed, text = state.get("crashed"), f"CUDA could not be asked: {state['message']}"
        fix = "look at nvidia-smi, and update the driver" if crashed else "mend what is broken above first"
        yield Finding("cuda.driver", Verdict.BROKEN if crashed and chosen >= 0 else Verdict.WARNING, text, fix)
    else:
        yield _driver(state, has_driver, hidden, bad, wanted)
    yield from _versions(state, library, bad)
    yield from _devices(state.get("devices", ()), library, wanted, chosen)
    if unmasked:
        yield _mask(environment["CUDA_VISIBLE_DEVICES"], len(state.get("devices", ())), unmasked, bad)
    if "trial" in probe.steps or probe.during == "trial":
        yield _trial(probe.step("trial"), wanted)


def _driver(state: Mapping[str, Any], has_driver: bool, hidden: bool, bad: Verdict, wanted: str) -> Finding:
    named = f"the driver {state['driver']}".rstrip()
    if hidden or not state["error"]:
        bad, text, fix = Verdict.OK, f"{named} supports CUDA {format_cuda_version(state['supports'])}", ""
    elif not state["bindings"]:
        text, fix = state["error"], f"pip install 'cudnnlite[cu12]' (for CUDA 13: 'cudnnlite[cu13]'), or {_EMULATE}"
    elif has_driver:
        text = f"{named} is there, but cannot be used: {state['error']}"
        fix = _CODES.get(state["code"], f"look at nvidia-smi; in a container, start it with --gpus all; or {_EMULATE}")
    elif bad is Verdict.NOTE:
        text, fix = f"there is no NVIDIA driver; the emulated device is used, as {DEVICE_VARIABLE}={wanted} says", ""
    else:
        text, fix = "there is no NVIDIA driver", f"{_EMULATE}; or install the driver (in a container: --gpus all)"
    return Finding("cuda.driver", bad, text, fix, facts={name: state[name] for name in state if name != "mapped"})


def _versions(state: Mapping[str, Any], library: Mapping[str, Any], bad: Verdict) -> Iterator[Finding]:
    """Hold the driver against the CUDA that cuDNN was built with, and cuda-python against both."""
    built, supports, bindings = library.get("cudart", 0), state.get("supports", 0), state.get("bindings", "")
    plain, major = {"cudnn_built_with": built, "driver_supports": supports, "bindings": bindings}, built // 1000
    driver = f"the driver supports {format_cuda_version(supports)}"
    if built and supports:
        verdict, text, fix = Verdict.OK, f"cuDNN was built with CUDA {format_cuda_version(built)}, {driver}", ""
        if supports // 1000 < major:
            verdict, text, fix = bad, f"the driver is too old: {text}", "update the driver to one for CUDA 12 or newer"
            if supports >= 12000:
                fix = f"update the driver, or pip uninstall nvidia-cudnn-cu{major} and pip install nvidia-cudnn-cu12"
        yield Finding("cuda.compatibility", verdict, text, fix, facts=plain)
    if bindings[:1].isdigit():
        theirs, text, fix = int(bindings.partition(".")[0]), f"cuda-bindings {bindings}", ""
        if 0 < supports // 1000 < theirs:
            text, fix = (
                f"{text} is for CUDA {theirs}, {driver}",
                f"update the driver, or pip install 'cuda-python<{theirs}'",
            )
        elif major not in (0, theirs):
            text = f"{text} is for CUDA {theirs}, the libcudnn in use for CUDA {major}"
            fix = f"pip install 'cudnnlite[cu{major}]', which brings those for CUDA {major}"
        yield Finding("cuda.bindings", Verdict.WARNING if fix else Verdict.OK, text, fix, facts=plain)


def _devices(devices: list[list[str]], library: Mapping[str, Any], wanted: str, chosen: int) -> Iterator[Finding]:
    cudnn, newest, built = (library.get(name, 0) for name in ("number", "newest_gpu", "cudart"))
    # cuDNN's binaries have code for 5.0 and newer up to 9.10 (for CUDA 12), for 7.5 and newer since 9.11 and for CUDA 13
    oldest = 75 if cudnn >= 91100 or built >= 13000 else 50
    for index, (name, capability, driver, uuid) in enumerate(devices):
        text, verdict, fix = f"cuda:{index} is {name}, compute capability {capability}", Verdict.OK, ""
        number = round(float(capability) * 10)
        if cudnn and number < oldest:
            verdict = Verdict.BROKEN if index == chosen else Verdict.WARNING
            text += f"; cuDNN {format_version(cudnn)} for CUDA {built // 1000} needs {oldest / 10} or newer"
            fix = "pip install 'nvidia-cudnn-cu12<9.11'" if number >= 50 else "use a newer GPU"
        elif 0 < newest < number * 10:
            verdict, fix = Verdict.WARNING, "install a newer cuDNN"
            text += f"; cuDNN {format_version(cudnn)} knows GPUs up to {newest / 100:.1f}"
        plain = {"index": index, "name": name, "compute_capability": capability, "driver": driver, "uuid": uuid}
        yield Finding("cuda.device", verdict, text, fix, facts=plain)
    if wanted.lower().startswith("cuda") and 0 < len(devices) <= chosen:
        text = f"{DEVICE_VARIABLE}={wanted}, but the last device is cuda:{len(devices) - 1}"
        yield Finding("cuda.device", Verdict.BROKEN, text, f"set {DEVICE_VARIABLE}=cuda:0")


def _mask(mask: str, seen: int, there: int, bad: Verdict) -> Finding:
    asked, setting = [entry.strip() for entry in mask.split(",") if entry.strip()], f"CUDA_VISIBLE_DEVICES={mask}"
    fix, plain = "unset it, or name GPUs that nvidia-smi -L lists", {"value": mask, "visible": seen, "there": there}
    if not seen:
        text = f"{setting} hides all GPUs; there are {there}"
    elif seen < len(asked):
        bad, text = Verdict.WARNING, f"{setting}: '{asked[seen]}' is no GPU here (there are {there}); {seen} are left"
    else:
        bad, text, fix = Verdict.OK, f"{setting}: {seen} of {there} GPUs", ""
    return Finding("cuda.visible", bad, text, fix, facts=plain)


def _trial(trial: Mapping[str, Any], wanted: str) -> Finding:
    lines: list[str] = []
    text, fix = f"a small convolution on {trial.get('device')} is right", ""
    if trial.get("error") == "ArgumentError":
        text = f"{DEVICE_VARIABLE}={wanted} names no device"
        fix = f"set {DEVICE_VARIABLE} to cuda, cuda:1, emulated or auto, or unset it"
    elif "error" in trial:
        text, *lines = f"a small convolution fails: {trial['error']}: {trial['message']}".splitlines()
        fix = "mend what is broken above first; if nothing is, report this output"
    elif not trial["right"]:
        text = f"a small convolution on {trial['device']} returns wrong numbers"
        fix = "try another version of cuDNN, and report this output"
    elif trial["device"].startswith("cuda"):
        text += f"; {format_size(trial['free'])} of {format_size(trial['total'])} of its memory are free"
    plain = {name: value for name, value in trial.items() if name != "mapped"}
    return Finding("cuda.trial", Verdict.BROKEN if fix else Verdict.OK, text, fix, tuple(map(str.strip, lines)), plain)
