"""Environment variables: which are set, what they change, which point at nothing."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cudnnlite._raw.library import LIBRARY_VARIABLE
from cudnnlite.autotune.cache_path import CACHE_VARIABLE
from cudnnlite.devices.choice import DEVICE_VARIABLE
from cudnnlite.doctor.finding import Finding, Verdict
from cudnnlite.doctor.places import lib_folders, preloaded, split_path

OWN = (DEVICE_VARIABLE, LIBRARY_VARIABLE, CACHE_VARIABLE, "CUDNNLITE_REQUIRE_GPU")  # the last is for the tests
_SLOW = "each kernel is waited for: calls are slow, and times are not those of a program without it"


@dataclass(frozen=True)
class SettingsFacts:
    """What was gathered.

    Attributes
    ----------
    values : dict
        The variables that matter and are set.
    missing : tuple of (str, str)
        A variable, and a path in it that does not exist.
    without_cudnn : bool
        Whether CUDNN_PATH names a folder that has no libcudnn.
    unknown : tuple of str
        Variables named as if they were cudnnlite's.
    """

    values: Mapping[str, str]
    missing: tuple[tuple[str, str], ...] = ()
    without_cudnn: bool = False
    unknown: tuple[str, ...] = ()


def gather_settings(environment: Mapping[str, str], names: tuple[str, ...]) -> SettingsFacts:
    """Look at the variables `names`, and at cudnnlite's own."""
    values = {name: environment[name] for name in dict.fromkeys([*names, *OWN]) if name in environment}
    paths = [
        (name, values[name]) for name in (LIBRARY_VARIABLE, "CUDNN_PATH", "CUDA_PATH", "CUDA_HOME") if values.get(name)
    ]
    paths += [("LD_LIBRARY_PATH", folder) for folder in split_path(values.get("LD_LIBRARY_PATH"))]
    paths += [("LD_PRELOAD", path) for path in preloaded(values) if "/" in path]
    missing = tuple((name, path) for name, path in paths if not os.path.exists(path))
    folder = values.get("CUDNN_PATH", "")
    without = os.path.isdir(folder) and not any(
        os.path.exists(os.path.join(each, "libcudnn.so.9")) for each in lib_folders(folder)
    )
    unknown = tuple(sorted(name for name in environment if name.startswith("CUDNNLITE_") and name not in OWN))
    return SettingsFacts(values, missing, without, unknown)


def judge_settings(facts: SettingsFacts) -> Iterator[Finding]:
    """Tell what the variables change."""
    for name, value in facts.values.items():
        yield _judge(facts, name, value)
    for name in facts.unknown:
        close = difflib.get_close_matches(name, OWN, 1, 0.8)
        text = f"{name} is set, but cudnnlite has no such variable"
        fix = f"set {close[0]} instead" if close else f"unset {name}; cudnnlite's are {', '.join(OWN[:3])}"
        yield Finding("environment.unknown", Verdict.WARNING, text, fix, facts={"name": name})
    if not (facts.values or facts.unknown):
        yield Finding("environment.variables", Verdict.OK, "no variable is set that changes anything")


def _judge(facts: SettingsFacts, name: str, value: str) -> Finding:
    verdict, remark, fix = _meaning(facts, name, value)
    lost = [path for variable, path in facts.missing if variable == name]
    if lost and verdict < Verdict.WARNING:
        remark = f"{', '.join(lost)} does not exist"
        if name == "LD_LIBRARY_PATH":  # the images of containers name folders that only some machines have
            verdict = Verdict.NOTE
        else:
            verdict, fix = Verdict.WARNING, f"unset {name}, or name what is there"
    text = f"{name}={value}" + (f": {remark}" if remark else "")
    return Finding(f"environment.{name}", verdict, text, fix, facts={"name": name, "value": value, "missing": lost})


def _meaning(facts: SettingsFacts, name: str, value: str) -> tuple[Verdict, str, str]:
    """Return how bad the value is, why, and what to do."""
    unset = f"unset {name}"
    if name == "NVIDIA_TF32_OVERRIDE":
        if value == "0":
            return Verdict.NOTE, "float32 never uses TF32, whatever the math type: more exact, slower", unset
        return Verdict.WARNING, "only 0 has a documented meaning", f"{unset}, and choose by math type"
    if name == "CUDA_LAUNCH_BLOCKING" and value not in ("", "0"):
        return Verdict.WARNING, _SLOW, unset
    if name == "CUDA_MODULE_LOADING" and value.upper() == "EAGER":
        return Verdict.NOTE, "all kernels are loaded at the start: slow to begin, and more device memory", unset
    if name == "CUDNN_LOGLEVEL_DBG" and value not in ("", "0"):
        return Verdict.NOTE, "cuDNN logs: calls are slower", unset
    if name == "LD_LIBRARY_PATH" and any(os.path.basename(f.rstrip("/")) == "stubs" for f in split_path(value)):
        fix = "take the folder 'stubs' out of LD_LIBRARY_PATH"
        return Verdict.WARNING, "a folder 'stubs' holds libcuda for linking only, which is no driver", fix
    if name == "LD_PRELOAD" and any(part in value for part in ("libcudnn", "libcublas", "libcuda.", "libnvrtc")):
        fix = "take CUDA's libraries out of LD_PRELOAD"
        return Verdict.WARNING, "every program started from here has these libraries, whichever it was made for", fix
    if name == "CUDNN_PATH" and facts.without_cudnn:
        return Verdict.WARNING, "there is no libcudnn.so.9 in its lib or lib64", "unset CUDNN_PATH, or correct it"
    if name == "CUDA_HOME" and os.path.realpath(facts.values.get("CUDA_PATH") or value) != os.path.realpath(value):
        return Verdict.WARNING, f"CUDA_PATH names another folder, {facts.values['CUDA_PATH']}", "unset one of the two"
    return Verdict.OK, "", ""
