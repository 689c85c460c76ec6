"""The driver, the toolkits, the devices, and whether they fit cuDNN and each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnnlite._raw.library import format_version
from cudnnlite.devices.choice import DEVICE_VARIABLE
from cudnnlite.devices.cuda import CudaState, format_cuda_version
from cudnnlite.doctor.finding import Finding, Verdict
from cudnnlite.sizes import format_size

# cuDNN's binaries have code for compute capability 5.0 and newer up to 9.10 (for CUDA 12), for 7.5 and newer since 9.11
# and in all builds for CUDA 13.
_OLDEST_GPU, _OLDEST_GPU_NOW, _SINCE = 50, 75, 91100
_CODES = {
    "CUDA_ERROR_STUB_LIBRARY": "take the folder 'stubs' out of LD_LIBRARY_PATH: it holds libcuda for linking only",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "restart the machine: the driver was updated, its kernel module was not",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "take CUDA's 'compat' folder out of LD_LIBRARY_PATH, or update the driver",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start the fabric manager: systemctl start nvidia-fabricmanager",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "end the other process: the GPU is in exclusive mode",
    "CUDA_ERROR_OUT_OF_MEMORY": "end other processes that use the GPU's memory",
}


@dataclass(frozen=True)
class CudaFacts:
    """What was gathered of CUDA.

    Attributes
    ----------
    state : CudaState
        What the probe's process learnt.
    wanted : str
        What `CUDNNLITE_DEVICE` says; empty if nothing.
    unmasked : int or None
        How many GPUs there are without CUDA_VISIBLE_DEVICES; None where that is not set, or nothing is hidden.
    mask : str or None
        CUDA_VISIBLE_DEVICES.
    cudnn, cudart, newest_gpu : int
        Of the libcudnn in use: its version (92800), the CUDA that it was built with (12090), the newest compute capability
        that it knows (1210); 0 if unknown.
    toolkits : dict
        Folder -> version of the CUDA toolkits: '/usr/local/cuda-13.0' -> '13.0'.
    trial : dict
        The probe's step 'trial'; empty if it was left out.
    unasked : str
        Why CUDA could not be asked at all; empty if it could.
    crashed : bool
        Whether it was asking CUDA that ended the probe's process.
    """

    state: CudaState
    wanted: str = ""
    unmasked: int | None = None
    mask: str | None = None
    cudnn: int = 0
    cudart: int = 0
    newest_gpu: int = 0
    toolkits: Mapping[str, str] = field(default_factory=dict)
    trial: Mapping[str, Any] = field(default_factory=dict)
    unasked: str = ""
    crashed: bool = False

    @property
    def kind(self) -> str:
        """'cuda', 'emulated', 'auto', or '' where the environment names none of them."""
        kind = self.wanted.lower().partition(":")[0]
        return kind if kind in ("cuda", "emulated", "auto") else ""

    @property
    def has_driver(self) -> bool:
        """Whether there is a driver, usable or not."""
        return bool(self.state.supports or self.state.driver or self.state.code)

    @property
    def without_gpu(self) -> Verdict:
        """How bad it is that no GPU can be used."""
        if self.kind == "emulated" or (self.kind == "auto" and not self.has_driver):
            return Verdict.NOTE
        if self.kind == "auto" or not (self.kind or self.has_driver):
            return Verdict.WARNING
        return Verdict.BROKEN


def judge_cuda(facts: CudaFacts) -> Iterator[Finding]:
    """Tell what is to be said of CUDA."""
    yield _driver(facts)
    yield from _against_cudnn(facts)
    yield from _bindings(facts)
    yield from _toolkits(facts)
    yield from _devices(facts)
    yield from _mask(facts)
    yield from _trial(facts)


def _driver(facts: CudaFacts) -> Finding:
    state = facts.state
    if facts.unasked:
        bad = Verdict.BROKEN if facts.crashed and facts.kind != "emulated" else Verdict.WARNING
        fix = "look at nvidia-smi, and update the driver" if facts.crashed else "mend what is broken above first"
        return Finding("cuda.driver", bad, f"CUDA could not be asked: {facts.unasked}", fix)
    plain = {"version": state.driver, "supports": state.supports, "code": state.code, "error": state.error}
    hidden = state.code == "CUDA_ERROR_NO_DEVICE" and facts.unmasked
    if not state.error or hidden:
        text = (
            f"the driver{f' {state.driver}' * bool(state.driver)} supports CUDA {format_cuda_version(state.supports)}"
        )
        return Finding("cuda.driver", Verdict.OK, text, facts=plain)
    emulate = f"set {DEVICE_VARIABLE}=emulated to work without a GPU"
    if not state.bindings:
        text, fix = state.error, f"pip install 'cudnnlite[cu12]' (for CUDA 13: 'cudnnlite[cu13]'), or {emulate}"
    elif not facts.has_driver:
        text = "there is no NVIDIA driver"
        fix = f"{emulate}; with a GPU, install the driver (in a container: start it with --gpus all)"
        if facts.kind in ("emulated", "auto"):
            text, fix = f"{text}; the emulated device is used, as {DEVICE_VARIABLE}={facts.wanted} says", ""
    else:
        named = f" {state.driver}" * bool(state.driver)
        text = f"the driver{named} is there, but cannot be used: {state.error}"
        fix = _CODES.get(state.code, f"look at nvidia-smi; in a container, start it with --gpus all; or {emulate}")
    return Finding("cuda.driver", facts.without_gpu, text, fix, facts=plain)


def _against_cudnn(facts: CudaFacts) -> Iterator[Finding]:
    built, supports = facts.cudart, facts.state.supports
    if not (built and supports):
        return
    versions = (
        f"cuDNN was built with CUDA {format_cuda_version(built)}, the driver supports {format_cuda_version(supports)}"
    )
    plain = {"cudnn_built_with": built, "driver_supports": supports}
    if supports // 1000 < built // 1000:
        older = supports // 1000
        fix = (
            f"update the driver, or pip uninstall nvidia-cudnn-cu{built // 1000} and pip install nvidia-cudnn-cu{older}"
        )
        if older < 12:
            fix = "update the driver to one for CUDA 12 or newer"
        yield Finding("cuda.compatibility", facts.without_gpu, f"the driver is too old: {versions}", fix, facts=plain)
    elif supports < built:
        text = f"{versions}: enough, because within CUDA {built // 1000} an older driver will do"
        yield Finding("cuda.compatibility", Verdict.NOTE, text, facts=plain)
    else:
        yield Finding("cuda.compatibility", Verdict.OK, versions, facts=plain)


def _bindings(facts: CudaFacts) -> Iterator[Finding]:
    version, state = facts.state.bindings, facts.state
    major = int(version.partition(".")[0]) if version[:1].isdigit() else 0
    plain = {"version": version, "cudnn_built_with": facts.cudart, "driver_supports": state.supports}
    if not major:
        return
    if state.supports and state.supports // 1000 < major:
        text = f"cuda-bindings {version} is for CUDA {major}, the driver supports {format_cuda_version(state.supports)}"
        fix = f"update the driver, or pip install 'cuda-python<{major}'"
        yield Finding("cuda.bindings", Verdict.WARNING, text, fix, facts=plain)
    elif facts.cudart and facts.cudart // 1000 != major:
        built = facts.cudart // 1000
        text = f"cuda-bindings {version} is for CUDA {major}, the libcudnn in use for CUDA {built}"
        fix = f"pip install 'cudnnlite[cu{built}]', which brings those for CUDA {built}"
        yield Finding("cuda.bindings", Verdict.WARNING, text, fix, facts=plain)
    else:
        yield Finding("cuda.bindings", Verdict.OK, f"cuda-bindings {version}", facts=plain)


def _toolkits(facts: CudaFacts) -> Iterator[Finding]:
    supports = facts.state.supports
    for folder, version in facts.toolkits.items():
        text, plain = f"CUDA toolkit {version}: {folder}", {"folder": folder, "version": version}
        major = version.partition(".")[0]
        if supports and major.isdigit() and int(major) > supports // 1000:
            text += f"; what is built with it does not run on this driver, which supports CUDA {format_cuda_version(supports)}"
            yield Finding("cuda.toolkit", Verdict.NOTE, text, facts=plain)
        else:
            yield Finding("cuda.toolkit", Verdict.OK, text, facts=plain)


def _devices(facts: CudaFacts) -> Iterator[Finding]:
    for index, device in enumerate(facts.state.devices):
        plain = {
            "index": index,
            "uuid": device.uuid,
            "name": device.name,
            "compute_capability": device.compute_capability,
        }
        text = f"cuda:{index} is {device.name}, compute capability {device.compute_capability}"
        capability = int(float(device.compute_capability) * 10 + 0.5)
        newer_build = facts.cudnn >= _SINCE or facts.cudart >= 13000
        oldest = _OLDEST_GPU_NOW if newer_build else _OLDEST_GPU
        bad = Verdict.BROKEN if index == _index(facts) and facts.kind != "emulated" else Verdict.WARNING
        if facts.cudnn and capability < oldest:
            text += (
                f"; cuDNN {format_version(facts.cudnn)} for CUDA {facts.cudart // 1000} needs {oldest / 10} or newer"
            )
            fix = "pip install 'nvidia-cudnn-cu12<9.11'" if capability >= _OLDEST_GPU else "use a newer GPU"
            yield Finding("cuda.device", bad, text, fix, facts=plain)
        elif 0 < facts.newest_gpu < capability * 10:
            text += f"; cuDNN {format_version(facts.cudnn)} knows GPUs up to {facts.newest_gpu / 100:.1f}"
            yield Finding("cuda.device", Verdict.WARNING, text, "install a newer cuDNN", facts=plain)
        else:
            yield Finding("cuda.device", Verdict.OK, text, facts=plain)
    if facts.kind == "cuda" and 0 < len(facts.state.devices) <= _index(facts):
        number = len(facts.state.devices)
        there = "is 1 device" if number == 1 else f"are {number} devices"
        text = f"{DEVICE_VARIABLE}={facts.wanted}, but there {there}"
        yield Finding("cuda.device", Verdict.BROKEN, text, f"set {DEVICE_VARIABLE}=cuda:0")


def _mask(facts: CudaFacts) -> Iterator[Finding]:
    if facts.mask is None or not facts.unmasked:
        return
    seen, asked = len(facts.state.devices), [entry.strip() for entry in facts.mask.split(",") if entry.strip()]
    setting, there = f"CUDA_VISIBLE_DEVICES={facts.mask}", f"there are {facts.unmasked}"
    plain = {"value": facts.mask, "visible": seen, "there": facts.unmasked}
    fix = "unset CUDA_VISIBLE_DEVICES, or name GPUs that nvidia-smi -L lists"
    if not seen:
        yield Finding("cuda.visible", facts.without_gpu, f"{setting} hides all GPUs; {there}", fix, facts=plain)
    elif seen < len(asked):
        text = (
            f"{setting}: '{asked[seen]}' is no GPU here ({there}); it and what follows it are left out, {seen} remain"
        )
        yield Finding("cuda.visible", Verdict.WARNING, text, fix, facts=plain)
    else:
        yield Finding("cuda.visible", Verdict.OK, f"{setting}: {seen} of {facts.unmasked} GPUs", facts=plain)


def _trial(facts: CudaFacts) -> Iterator[Finding]:
    trial = facts.trial
    if not trial:
        return
    plain = {name: value for name, value in trial.items() if name not in ("mapped", "warnings")}
    if "error" in trial:
        head, *rest = str(trial["message"]).splitlines() or [""]
        text = f"a small convolution fails: {trial['error']}: {head}"
        fix = "mend what is broken above first; if nothing is, report this output"
        if trial["error"] == "ArgumentError":
            text = f"{DEVICE_VARIABLE}={facts.wanted} names no device"
            fix = f"set {DEVICE_VARIABLE} to cuda, cuda:1, emulated or auto, or unset it"
        yield Finding("cuda.trial", Verdict.BROKEN, text, fix, tuple(line.strip() for line in rest), plain)
    elif not trial["right"]:
        text = f"a small convolution on {trial['device']} returns wrong numbers"
        yield Finding(
            "cuda.trial", Verdict.BROKEN, text, "try another version of cuDNN, and report this output", facts=plain
        )
    else:
        emulated = trial["device"].startswith("emulated")
        text = f"a small convolution on {'the emulated device' if emulated else trial['device']} is right"
        if not emulated:
            text += f"; {format_size(trial['free'])} of {format_size(trial['total'])} of its memory are free"
        yield Finding("cuda.trial", Verdict.OK, text, facts=plain)


def _index(facts: CudaFacts) -> int:
    index = facts.wanted.partition(":")[2]
    return int(index) if index.isdecimal() else 0
