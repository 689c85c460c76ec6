"""Checks of CUDA: the driver, cuda-python, the GPUs, and a small convolution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cudnnlite._raw.library import format_version
from cudnnlite.devices.cuda_facts import format_cuda_version
from cudnnlite.devices.device_choice import DEVICE_VARIABLE
from cudnnlite.texts import counted
from cudnnlite.workbench.doctor.environment import names_device
from cudnnlite.workbench.doctor.finding import (
    BROKEN,
    NOTE,
    OK,
    WARNING,
    Finding,
    Verdict,
    finding_of,
)
from cudnnlite.workbench.doctor.probe import Probe

# The advice for each error code of CUDA.
_FIXES = {
    "CUDA_ERROR_STUB_LIBRARY": (
        "take the folder 'stubs' out of LD_LIBRARY_PATH: it holds libcuda for linking only"
    ),
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": (
        "restart the machine: the driver was updated, its kernel module was not"
    ),
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": (
        "take CUDA's 'compat' folder out of LD_LIBRARY_PATH, or update the driver"
    ),
    "CUDA_ERROR_SYSTEM_NOT_READY": (
        "start the fabric manager: systemctl start nvidia-fabricmanager"
    ),
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "end the other process: the GPU is in exclusive mode",
    "CUDA_ERROR_OUT_OF_MEMORY": "end other processes that use the GPU's memory",
}
_UNMASK = "unset it, or name GPUs that nvidia-smi -L lists"
_EMULATE = f"set {DEVICE_VARIABLE}=emulated to work without a GPU"
_FIX_OTHERS_FIRST = "fix what is broken above first"


class DeviceRequest(NamedTuple):
    """The device that $CUDNNLITE_DEVICE asks for.

    Attributes
    ----------
    text : str
        The value of the variable; empty if it is not set, or names no device.
    is_valid : bool
        Whether it is not set, or names a device.
    """

    text: str
    is_valid: bool

    @property
    def kind(self) -> str:
        """The kind of device: 'cuda', 'emulated', 'auto', or '' if none is named."""
        return self.text.lower().partition(":")[0]

    @property
    def gpu_index(self) -> int:
        """The index of the GPU that would be used; -1 if none would be."""
        if self.kind == "emulated":
            return -1
        index = self.text.partition(":")[2]
        return int(index) if index.isdecimal() else 0

    def verdict_without_gpu(self, *, has_driver: bool) -> Verdict:
        """Return how serious it is that no GPU can be used."""
        if self.kind == "emulated":
            return NOTE
        if self.kind == "auto":
            return WARNING if has_driver else NOTE
        if self.kind == "":
            return BROKEN if has_driver else WARNING
        return BROKEN


def judge_cuda(environment: Mapping[str, str], probe: Probe) -> Iterator[Finding]:
    """Report what the probe learnt of CUDA."""
    is_valid = names_device(environment)  # The check of the variables reports an invalid value.
    text = environment.get(DEVICE_VARIABLE, "") if is_valid else ""
    request = DeviceRequest(text, is_valid)
    state = probe.step("cuda")
    if "message" in state:
        yield _judge_failed_query(state, request)
    else:
        mask = environment.get("CUDA_VISIBLE_DEVICES")
        yield from _judge_state(state, probe.step("library"), request, mask)
    was_tried = "trial" in probe.steps or probe.during == "trial"
    if is_valid and was_tried:
        yield _judge_trial(probe.step("trial"))


def _judge_failed_query(state: Mapping[str, Any], request: DeviceRequest) -> Finding:
    """Return the finding that the probe could not query CUDA."""
    text = f"CUDA could not be queried: {state['message']}"
    if not state.get("crashed"):
        return Finding("cuda.driver", WARNING, text, _FIX_OTHERS_FIRST)
    verdict = BROKEN if request.gpu_index >= 0 else WARNING
    fix = "look at the output of nvidia-smi, and update the driver"
    return Finding("cuda.driver", verdict, text, fix)


def _judge_state(
    state: Mapping[str, Any],
    library: Mapping[str, Any],
    request: DeviceRequest,
    mask: str | None,
) -> Iterator[Finding]:
    devices = state["devices"]
    has_driver = any(state.get(name) for name in ("supports", "driver", "code"))
    verdict_without_gpu = request.verdict_without_gpu(has_driver=has_driver)
    if state["error"]:
        yield _judge_failed_driver(state, request, mask, verdict_without_gpu, has_driver=has_driver)
    else:
        supported = format_cuda_version(state["supports"])
        text = f"{_driver_name(state)} supports CUDA {supported}"
        yield finding_of("cuda.driver", _without_files(state), OK, text)
    yield from _judge_compatibility(state, library, verdict_without_gpu)
    yield from _judge_bindings(state, library)
    for index, device in enumerate(devices):
        yield _judge_device(index, device, library, is_used=index == request.gpu_index)
    if request.kind == "cuda" and 0 < len(devices) <= request.gpu_index:
        text = f"{DEVICE_VARIABLE}={request.text}, but the last device is cuda:{len(devices) - 1}"
        yield Finding("cuda.device", BROKEN, text, f"set {DEVICE_VARIABLE}=cuda:0")
    if mask and devices:
        yield _judge_mask(mask, len(devices))


def _judge_failed_driver(
    state: Mapping[str, Any],
    request: DeviceRequest,
    mask: str | None,
    verdict: Verdict,
    *,
    has_driver: bool,
) -> Finding:
    """Return the finding that CUDA does not start."""
    text, fix = _why_no_cuda(state, mask, has_driver=has_driver)
    if not text:
        text = "there is no NVIDIA driver"
        if verdict == NOTE:
            text += f"; the emulated device is used, as {DEVICE_VARIABLE}={request.text} says"
            fix = ""
    return finding_of("cuda.driver", _without_files(state), verdict, text, fix)


def _why_no_cuda(
    state: Mapping[str, Any], mask: str | None, *, has_driver: bool
) -> tuple[str, str]:
    """Return why CUDA does not start, and the fix; the reason is empty if there is no driver."""
    driver, error, code = _driver_name(state), state["error"], state["code"]
    if not state["bindings"]:
        install = "pip install 'cudnnlite[cu12]' (for CUDA 13: 'cudnnlite[cu13]')"
        return error, f"{install}, or {_EMULATE}"
    if mask is not None and code == "CUDA_ERROR_NO_DEVICE":
        return f"{driver} is there, but CUDA_VISIBLE_DEVICES={mask} leaves no GPU", _UNMASK
    if has_driver:
        fix = f"look at nvidia-smi; in a container, start it with --gpus all; or {_EMULATE}"
        return f"{driver} is there, but cannot be used: {error}", _FIXES.get(code, fix)
    return "", f"{_EMULATE}; or install the driver (in a container: --gpus all)"


def _driver_name(state: Mapping[str, Any]) -> str:
    return f"the driver {state['driver']}".rstrip()


def _without_files(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's result without the list of mapped files."""
    return {name: value for name, value in step.items() if name != "mapped"}


def _version_facts(state: Mapping[str, Any], library: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "cudnn_built_with": library.get("cudart", 0),
        "driver_supports": state["supports"],
        "bindings": state["bindings"],
    }


def _judge_compatibility(
    state: Mapping[str, Any], library: Mapping[str, Any], verdict_without_gpu: Verdict
) -> Iterator[Finding]:
    """Compare the driver with the CUDA that cuDNN was built with."""
    built, supported = library.get("cudart", 0), state["supports"]
    built_major, driver_major = built // 1000, supported // 1000
    if not built_major or not driver_major:
        return
    facts = _version_facts(state, library)
    text = (
        f"cuDNN was built with CUDA {format_cuda_version(built)}, "
        f"the driver supports {format_cuda_version(supported)}"
    )
    if built_major <= driver_major:
        yield finding_of("cuda.compatibility", facts, OK, text)
        return
    fix = (
        f"update the driver, or pip uninstall nvidia-cudnn-cu{built_major} "
        f"and pip install nvidia-cudnn-cu{driver_major}"
    )
    if driver_major < 12:
        fix = "update the driver to one for CUDA 12 or newer"
    message = f"the driver is too old: {text}"
    yield finding_of("cuda.compatibility", facts, verdict_without_gpu, message, fix)


def _judge_bindings(state: Mapping[str, Any], library: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare cuda-python with the driver and with the CUDA that cuDNN was built with."""
    version = state["bindings"]
    major = int(version.partition(".")[0] or 0)
    if not major:
        return
    built_major, driver_major = library.get("cudart", 0) // 1000, state["supports"] // 1000
    verdict, text, fix = OK, f"cuda-bindings {version}", ""
    if 0 < driver_major < major:
        verdict = WARNING
        supported = format_cuda_version(state["supports"])
        text += f" is for CUDA {major}, the driver supports {supported}"
        fix = f"update the driver, or pip install 'cuda-python<{major}'"
    elif built_major not in (0, major):
        verdict = WARNING
        text += f" is for CUDA {major}, the libcudnn in use for CUDA {built_major}"
        fix = (
            f"pip install 'cudnnlite[cu{built_major}]', "
            f"which brings cuda-bindings for CUDA {built_major}"
        )
    yield finding_of("cuda.bindings", _version_facts(state, library), verdict, text, fix)


def _judge_device(
    index: int, device: Sequence[str], library: Mapping[str, Any], *, is_used: bool
) -> Finding:
    """Compare a GPU with those that the libcudnn in use supports."""
    name, capability, _, uuid = device
    cudnn, newest, built = (library.get(key, 0) for key in ("number", "newest_gpu", "cudart"))
    # cuDNN's binaries for CUDA 12 have code for 5.0 and newer up to cuDNN 9.10, for 7.5 and newer
    # since 9.11; those for CUDA 13 for 7.5 and newer.
    oldest = 75 if cudnn >= 91100 or built >= 13000 else 50
    number = round(float(capability) * 10)
    verdict, text, fix = OK, f"cuda:{index} is {name}, compute capability {capability}", ""
    cudnn_name = f"cuDNN {format_version(cudnn)} for CUDA {built // 1000}"
    if cudnn and number < oldest:
        verdict = BROKEN if is_used else WARNING
        text += f"; {cudnn_name} needs {oldest / 10} or newer"
        fix = "pip install 'nvidia-cudnn-cu12<9.11'" if number >= 50 else "use a newer GPU"
    elif 0 < newest < number * 10:
        verdict = WARNING
        text += f"; {cudnn_name} supports GPUs up to {newest / 100:.1f}"
        fix = "install a newer cuDNN"
    facts = {"index": index, "name": name, "compute_capability": capability, "uuid": uuid}
    return finding_of("cuda.device", facts, verdict, text, fix)


def _judge_mask(mask: str, number: int) -> Finding:
    """Compare $CUDA_VISIBLE_DEVICES with the number of GPUs that CUDA shows."""
    facts = {"value": mask, "visible": number}
    text = f"CUDA_VISIBLE_DEVICES={mask}: {counted(number, 'GPU')}"
    # CUDA ignores the entries from the first invalid one on.
    entries = [entry.strip() for entry in mask.split(",") if entry.strip()]
    if len(entries) <= number:
        return finding_of("cuda.visible", facts, OK, text)
    message = f"{text}, because '{entries[number]}' is not a GPU of this machine"
    return finding_of("cuda.visible", facts, WARNING, message, _UNMASK)


def _judge_trial(trial: Mapping[str, Any]) -> Finding:
    """Return whether the probe's convolution works."""
    facts = _without_files(trial)
    error = trial.get("error")
    if error:
        text = f"a small convolution fails: {error}: {trial.get('message')}"
        fix = f"{_FIX_OTHERS_FIRST}; if nothing is, report this output"
        return finding_of("cuda.trial", facts, BROKEN, text, fix)
    text = f"a small convolution on {trial.get('device')}"
    if not trial.get("right"):
        fix = "try another cuDNN, and report this output"
        return finding_of("cuda.trial", facts, BROKEN, f"{text} returns wrong numbers", fix)
    return finding_of("cuda.trial", facts, OK, f"{text} is right")
