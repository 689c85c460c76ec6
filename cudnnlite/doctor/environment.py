"""What there is here and what is wrong with it: driver, devices, variables, tuning cache."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from glob import escape, glob
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

from cudnnlite._raw.dependencies import how_to_install, missing_packages
from cudnnlite._raw.library import LIBRARY_VARIABLE, format_version
from cudnnlite.autotune.cache import (
    CACHE_VARIABLE,
    TuningCache,
    check_place,
    entry_files,
    parse_cache_path,
)
from cudnnlite.devices.choice import DEVICE_VARIABLE, parse_device
from cudnnlite.devices.cuda_facts import format_cuda_version
from cudnnlite.doctor.finding import BROKEN, NOTE, OK, WARNING, Finding, Verdict, first
from cudnnlite.doctor.probe import Probe
from cudnnlite.errors import ArgumentError, TuningCacheError, TuningCacheWarning
from cudnnlite.texts import counted

# Variables that change which library is loaded, which device is used, or what is computed.
VARIABLES = (
    DEVICE_VARIABLE,
    LIBRARY_VARIABLE,
    CACHE_VARIABLE,
    "CUDNN_PATH",
    "CUDA_PATH",
    "CUDA_HOME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CONDA_PREFIX",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDNN_LOGLEVEL_DBG",
    "CUDNN_LOGDEST_DBG",
    "CUBLAS_WORKSPACE_CONFIG",
)
_PATHS = (LIBRARY_VARIABLE, "CUDNN_PATH", "CUDA_PATH", "CUDA_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD")
LIB_FOLDERS = (
    "lib",
    "lib64",
    "lib/*-linux-gnu",
    "targets/*/lib",
)  # where a prefix may have libraries


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    found = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def judge_packages() -> Iterator[Finding]:
    """Tell which packages are missing that cudnnlite needs."""
    for name, requirement in missing_packages().items():
        text = f"{name}, which cudnnlite needs, is not installed"
        fix = how_to_install({name: requirement})
        yield Finding("packages.missing", BROKEN, text, fix, facts={"package": name})


def by_folder(paths: Iterable[str]) -> dict[str, str]:
    """Return folder -> file names, of cuDNN's files alone: in a process one folder is healthy, two are a mixture."""
    ours = (path for path in paths if os.path.basename(path).startswith("libcudnn"))
    groups = groupby(sorted(ours, key=os.path.dirname), os.path.dirname)
    return {folder: ", ".join(map(os.path.basename, files)) for folder, files in groups}


def split_path(environment: Mapping[str, str], name: str) -> list[str]:
    """Return the paths in a variable such as LD_LIBRARY_PATH."""
    separators = "[: ]" if name == "LD_PRELOAD" else ":"
    return [entry for entry in re.split(separators, environment.get(name, "")) if entry]


_CODES = {
    "CUDA_ERROR_STUB_LIBRARY": "take the folder 'stubs' out of LD_LIBRARY_PATH: it holds libcuda for linking only",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "restart the machine: the driver was updated, its kernel module was not",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "take CUDA's 'compat' folder out of LD_LIBRARY_PATH, or update the driver",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start the fabric manager: systemctl start nvidia-fabricmanager",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "end the other process: the GPU is in exclusive mode",
    "CUDA_ERROR_OUT_OF_MEMORY": "end other processes that use the GPU's memory",
}
_UNMASK = "unset it, or name GPUs that nvidia-smi -L lists"
_EMULATE = f"set {DEVICE_VARIABLE}=emulated to work without a GPU"


def judge_cuda(environment: Mapping[str, str], probe: Probe) -> Iterator[Finding]:
    """Tell what is to be said of CUDA."""
    state, library = probe.step("cuda"), probe.step("library")
    wanted = (
        environment.get(DEVICE_VARIABLE, "") if (named := _names_device(environment)) else ""
    )  # that is told once
    kind, _, index = wanted.lower().partition(":")
    chosen = -1 if kind == "emulated" else int(index) if index.isdecimal() else 0
    has_driver = any(state.get(name) for name in ("supports", "driver", "code"))
    # how bad it is that no GPU can be used
    bads = {
        "emulated": NOTE,
        "auto": WARNING if has_driver else NOTE,
        "": BROKEN if has_driver else WARNING,
    }
    bad = bads.get(kind, BROKEN)
    if "message" in state:
        text, crashed = f"CUDA could not be asked: {state['message']}", state.get("crashed")
        fix = (
            "look at nvidia-smi, and update the driver"
            if crashed
            else "mend what is broken above first"
        )
        yield Finding("cuda.driver", BROKEN if crashed and chosen >= 0 else WARNING, text, fix)
    else:
        mask = environment.get("CUDA_VISIBLE_DEVICES")
        yield _driver(state, wanted, bad, has_driver, mask)
        yield from _versions(state, library, bad)
        yield from _devices(state["devices"], library, wanted, chosen)
        if mask and (seen := len(state["devices"])):
            odd = "".join(
                [entry.strip() for entry in mask.split(",") if entry.strip()][seen : seen + 1]
            )
            text = f"CUDA_VISIBLE_DEVICES={mask}: {counted(seen, 'GPU')}"
            rules = (
                (odd, WARNING, f"{text}, for '{odd}' is none here", _UNMASK),
                (True, OK, text, ""),
            )
            yield first("cuda.visible", {"value": mask, "visible": seen}, *rules)
    if named and ("trial" in probe.steps or probe.during == "trial"):
        trial = probe.step("trial")
        text, error = f"a small convolution on {trial.get('device')}", trial.get("error")
        yield first(
            "cuda.trial",
            {name: value for name, value in trial.items() if name != "mapped"},
            (
                error,
                BROKEN,
                f"a small convolution fails: {error}: {trial.get('message')}",
                "mend what is broken above first; if nothing is, report this output",
            ),
            (
                not trial.get("right"),
                BROKEN,
                f"{text} returns wrong numbers",
                "try another cuDNN, and report this output",
            ),
            (True, OK, f"{text} is right", ""),
        )


def _driver(
    state: Mapping[str, Any], wanted: str, bad: Verdict, has_driver: bool, mask: str | None
) -> Finding:
    named, none, error = (
        f"the driver {state['driver']}".rstrip(),
        "there is no NVIDIA driver",
        state["error"],
    )
    fix = _CODES.get(
        state["code"],
        f"look at nvidia-smi; in a container, start it with --gpus all; or {_EMULATE}",
    )
    masked = mask is not None and state["code"] == "CUDA_ERROR_NO_DEVICE"
    return first(
        "cuda.driver",
        {name: value for name, value in state.items() if name != "mapped"},
        (not error, OK, f"{named} supports CUDA {format_cuda_version(state['supports'])}", ""),
        (
            not state["bindings"],
            bad,
            error,
            f"pip install 'cudnnlite[cu12]' (for CUDA 13: 'cudnnlite[cu13]'), or {_EMULATE}",
        ),
        (masked, bad, f"{named} is there, but CUDA_VISIBLE_DEVICES={mask} leaves no GPU", _UNMASK),
        (has_driver, bad, f"{named} is there, but cannot be used: {error}", fix),
        (
            bad == NOTE,
            bad,
            f"{none}; the emulated device is used, as {DEVICE_VARIABLE}={wanted} says",
            "",
        ),
        (True, bad, none, f"{_EMULATE}; or install the driver (in a container: --gpus all)"),
    )


def _versions(
    state: Mapping[str, Any], library: Mapping[str, Any], bad: Verdict
) -> Iterator[Finding]:
    """Hold the driver against the CUDA that cuDNN was built with, and cuda-python against both."""
    built, supports, bindings = library.get("cudart", 0), state["supports"], state["bindings"]
    needed, driver, theirs = built // 1000, supports // 1000, int(bindings.partition(".")[0] or 0)
    plain = {"cudnn_built_with": built, "driver_supports": supports, "bindings": bindings}
    supported = f"the driver supports {format_cuda_version(supports)}"
    text = f"cuDNN was built with CUDA {format_cuda_version(built)}, {supported}"
    fix = f"update the driver, or pip uninstall nvidia-cudnn-cu{needed} and pip install nvidia-cudnn-cu{driver}"
    fix = "update the driver to one for CUDA 12 or newer" if driver < 12 else fix
    if needed and driver:
        rules = (needed <= driver, OK, text, ""), (True, bad, f"the driver is too old: {text}", fix)
        yield first("cuda.compatibility", plain, *rules)
    text = f"cuda-bindings {bindings} is for CUDA {theirs}"
    if theirs:
        yield first(
            "cuda.bindings",
            plain,
            (
                0 < driver < theirs,
                WARNING,
                f"{text}, {supported}",
                f"update the driver, or pip install 'cuda-python<{theirs}'",
            ),
            (
                needed not in (0, theirs),
                WARNING,
                f"{text}, the libcudnn in use for CUDA {needed}",
                f"pip install 'cudnnlite[cu{needed}]', which brings those for CUDA {needed}",
            ),
            (True, OK, f"cuda-bindings {bindings}", ""),
        )


def _devices(
    devices: list[list[str]], library: Mapping[str, Any], wanted: str, chosen: int
) -> Iterator[Finding]:
    cudnn, newest, built = (library.get(name, 0) for name in ("number", "newest_gpu", "cudart"))
    # cuDNN's binaries have code for 5.0 and newer up to 9.10 (for CUDA 12), for 7.5 and newer since
    # 9.11 and for CUDA 13
    oldest = 75 if cudnn >= 91100 or built >= 13000 else 50
    for index, (name, capability, _, uuid) in enumerate(devices):
        text, number = (
            f"cuda:{index} is {name}, compute capability {capability}",
            round(float(capability) * 10),
        )
        known = f"{text}; cuDNN {format_version(cudnn)} for CUDA {built // 1000}"
        older = "pip install 'nvidia-cudnn-cu12<9.11'" if number >= 50 else "use a newer GPU"
        yield first(
            "cuda.device",
            {"index": index, "name": name, "compute_capability": capability, "uuid": uuid},
            (
                cudnn and number < oldest,
                BROKEN if index == chosen else WARNING,
                f"{known} needs {oldest / 10} or newer",
                older,
            ),
            (
                0 < newest < number * 10,
                WARNING,
                f"{known} knows GPUs up to {newest / 100:.1f}",
                "install a newer cuDNN",
            ),
            (True, OK, text, ""),
        )
    if wanted.lower().startswith("cuda") and 0 < len(devices) <= chosen:
        text = f"{DEVICE_VARIABLE}={wanted}, but the last device is cuda:{len(devices) - 1}"
        yield Finding("cuda.device", BROKEN, text, f"set {DEVICE_VARIABLE}=cuda:0")


def _names_device(environment: Mapping[str, str]) -> bool:
    with suppress(ArgumentError):
        return bool(parse_device(environment.get(DEVICE_VARIABLE) or "auto", DEVICE_VARIABLE))
    return False


_STUBS, _NO_CUDNN = (
    "a folder 'stubs' has a libcuda that is no driver",
    "there is no libcudnn.so.9 in its lib or lib64",
)
_SLOW, _PRELOADED = (
    "each kernel is waited for: calls are slow",
    "every program started from here has these libraries",
)
# Variable, what its value has to match, how bad that is, why, and what to do; the first that fits
# counts.
_RULES = (
    ("NVIDIA_TF32_OVERRIDE", "0", NOTE, "float32 never uses TF32: more exact, slower", "unset it"),
    (
        "NVIDIA_TF32_OVERRIDE",
        ".*",
        WARNING,
        "only 0 has a documented meaning",
        "unset it, and choose by math type",
    ),
    ("CUDA_LAUNCH_BLOCKING", "[^0].*", WARNING, _SLOW, "unset it"),
    (
        "CUDA_MODULE_LOADING",
        "(?i)EAGER",
        NOTE,
        "all kernels are loaded at the start: slow to begin",
        "unset it",
    ),
    ("CUDNN_LOGLEVEL_DBG", "[^0].*", NOTE, "cuDNN logs: calls are slower", "unset it"),
    (
        "LD_LIBRARY_PATH",
        "(.*[:/])?stubs/*(:.*)?",
        WARNING,
        _STUBS,
        "take the folder 'stubs' out of LD_LIBRARY_PATH",
    ),
    (
        "LD_PRELOAD",
        ".*lib(cudnn|cublas|cuda[.]|nvrtc).*",
        WARNING,
        _PRELOADED,
        "take CUDA's libraries out of it",
    ),
)


def judge_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Tell what the variables change."""
    for name, value in ((name, environment[name]) for name in VARIABLES if name in environment):
        paths = (
            [path for path in split_path(environment, name) if "/" in path]
            if name in _PATHS
            else []
        )
        lost, toolkit = (
            [path for path in paths if not os.path.exists(path)],
            environment.get("CUDA_PATH") or value,
        )
        fronts = (os.path.join(escape(value), folder, "libcudnn.so.9") for folder in LIB_FOLDERS)
        no_device = name == DEVICE_VARIABLE and not _names_device(environment)
        no_cudnn = name == "CUDNN_PATH" and value and not any(map(glob, fronts))
        is_other = name == "CUDA_HOME" and os.path.realpath(toolkit) != os.path.realpath(value)
        gone = (
            NOTE if name == "LD_LIBRARY_PATH" else WARNING
        )  # container images name folders that few machines have
        rules = (rule[1:] for rule in _RULES if rule[0] == name)
        yield first(
            f"environment.{name}",
            {"name": name, "value": value, "missing": lost},
            *(
                (re.fullmatch(fits, value), bad, f"{name}={value}: {why}", fix)
                for fits, bad, why, fix in rules
            ),
            (
                no_device,
                BROKEN,
                f"{name}={value} names no device",
                "set it to cuda, cuda:1, emulated or auto, or unset it",
            ),
            (
                lost,
                gone,
                f"{name}={value}: {', '.join(lost)} does not exist",
                "unset it, or name what is there",
            ),
            (no_cudnn, WARNING, f"{name}={value}: {_NO_CUDNN}", "unset it, or correct it"),
            (
                is_other,
                WARNING,
                f"{name}={value}: CUDA_PATH names another folder, {toolkit}",
                "unset one of the two",
            ),
            (True, OK, f"{name}={value}", ""),
        )
    known = (*VARIABLES[:3], "CUDNNLITE_REQUIRE_GPU")  # the last is for the tests
    for name in sorted(
        name for name in environment if name.startswith("CUDNNLITE_") and name not in known
    ):
        close = difflib.get_close_matches(name, known, 1, 0.8)
        fix = (
            f"set {close[0]} instead"
            if close
            else f"unset {name}; cudnnlite's are {', '.join(known[:3])}"
        )
        yield Finding(
            "environment.unknown",
            WARNING,
            f"{name} is set, but cudnnlite has no such variable",
            fix,
        )


def judge_cache(probe: Probe) -> Iterator[Finding]:
    """Look at the tuning cache; it is only read."""
    cudnn = probe.step("library").get("number", 0)  # 0: it could not be loaded
    forgotten, elsewhere = (
        "what is tuned is forgotten when the process ends",
        f"set {CACHE_VARIABLE} to another folder",
    )
    try:
        path = parse_cache_path(None)
        if not isinstance(path, Path):
            yield Finding("cache.file", NOTE, f"{CACHE_VARIABLE}={path}: {forgotten}")
            return
        check_place(path)
        with warnings.catch_warnings():  # what cannot be read is told below
            warnings.simplefilter("ignore", TuningCacheWarning)
            cache = TuningCache(path, read_only=True)
            entries = cache.entries()
    except ArgumentError as error:
        yield Finding("cache.file", BROKEN, str(error), f"unset {CACHE_VARIABLE}, or name a folder")
        return
    except TuningCacheError as error:  # somebody's file, or a cache of an older version
        yield Finding(
            "cache.file",
            WARNING,
            f"{error}; {forgotten}",
            f"make it readable, or rename it, or {elsewhere}",
        )
        return
    kinds, whole = (
        Counter(entry.key.device for entry in entries),
        {digest for entry in entries for digest in entry.key.digests},
    )
    number, files = len(entries), (*entry_files(path), *sorted(path.glob("*.damaged")))
    damaged = [file.name for file in files if file.stem not in whole]
    text = counted(number, "entry", "entries") if number or damaged else "nothing was tuned yet"
    yield Finding("cache.file", OK, f"{text}: {path}", facts={"path": str(path), "entries": number})
    if not os.access(
        next(each for each in (path, *path.parents) if each.exists()), os.W_OK | os.X_OK
    ):
        text = f"{path} cannot be written: {forgotten}"
        yield Finding("cache.writable", WARNING, text, f"make it writable, or {elsewhere}")
    if damaged:
        more = ", ..." if len(damaged) > 1 else ""
        text = f"{len(damaged)} of the files in {path} cannot be read: {damaged[0]}{more}"
        fix = "update cudnnlite if a newer one wrote them; else remove them, and tune again: cudnnlite autotune"
        yield Finding("cache.entries", WARNING, text, fix)
    names = {(name, driver) for name, _, driver, _ in probe.step("cuda").get("devices", ())}
    used = [
        kind
        for kind in kinds
        if kind.cudnn == cudnn and (not names or (kind.gpu, kind.driver) in names)
    ]
    if kinds and cudnn and not used:
        origins = ", ".join(
            f"{kind.gpu} with driver {kind.driver}, cuDNN {format_version(kind.cudnn)}"
            for kind in kinds
        )
        text = (
            f"no entry is used here, where cuDNN is {format_version(cudnn)}: they are of {origins}"
        )
        yield Finding("cache.use", WARNING, text, "tune again: cudnnlite autotune")
