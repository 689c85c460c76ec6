"""Checks of the Python packages and of the environment variables."""

from __future__ import annotations

import difflib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from glob import escape, glob
from importlib import metadata
from typing import NamedTuple

from cudnnlite._raw.dependencies import how_to_install, missing_packages
from cudnnlite._raw.library import LIBRARY_VARIABLE, UNKNOWN_VARIABLE
from cudnnlite.devices.device_choice import DEVICE_VARIABLE, parse_device
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.exclusions import VARIABLE as FAULTS_VARIABLE
from cudnnlite.graph.exclusions import read_exclusions
from cudnnlite.plans.ranges import VARIABLE as NVTX_VARIABLE
from cudnnlite.workbench.doctor.finding import (
    BROKEN,
    NOTE,
    OK,
    WARNING,
    Finding,
    Verdict,
    finding_of,
)
from cudnnlite.workbench.tuning.cache import CACHE_VARIABLE

_OUR_VARIABLES = (
    DEVICE_VARIABLE,
    LIBRARY_VARIABLE,
    UNKNOWN_VARIABLE,
    FAULTS_VARIABLE,
    NVTX_VARIABLE,
    CACHE_VARIABLE,
)
# Variables that change which library is loaded, which device is used, or what is computed.
VARIABLES = (
    *_OUR_VARIABLES,
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
_TEST_VARIABLES = ("CUDNNLITE_REQUIRE_GPU",)
_PATH_VARIABLES = (
    LIBRARY_VARIABLE,
    "CUDNN_PATH",
    "CUDA_PATH",
    "CUDA_HOME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)
# The folders below an installation prefix that may have libraries.
LIB_FOLDERS = ("lib", "lib64", "lib/*-linux-gnu", "targets/*/lib")


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed, by name."""
    versions = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def judge_packages() -> Iterator[Finding]:
    """Report each missing package that cudnnlite needs."""
    for name, requirement in missing_packages().items():
        text = f"{name}, which cudnnlite needs, is not installed"
        fix = how_to_install({name: requirement})
        yield Finding("packages.missing", BROKEN, text, fix, facts={"package": name})


def by_folder(paths: Iterable[str]) -> dict[str, str]:
    """Return the names of cuDNN's files by folder; other files are left out.

    One folder in a process is healthy; two are a mixture of copies.
    """
    names: dict[str, list[str]] = defaultdict(list)
    for path in sorted(paths, key=os.path.dirname):
        folder, name = os.path.split(path)
        if name.startswith("libcudnn"):
            names[folder].append(name)
    return {folder: ", ".join(names[folder]) for folder in names}


def split_path(environment: Mapping[str, str], name: str) -> list[str]:
    """Return the paths in a variable such as LD_LIBRARY_PATH."""
    separators = "[: ]" if name == "LD_PRELOAD" else ":"
    return [entry for entry in re.split(separators, environment.get(name, "")) if entry]


def names_device(environment: Mapping[str, str]) -> bool:
    """Return whether $CUDNNLITE_DEVICE is unset or names a device."""
    with suppress(ArgumentError):
        return bool(parse_device(environment.get(DEVICE_VARIABLE) or "auto", DEVICE_VARIABLE))
    return False


class _ValueRule(NamedTuple):
    """The effect of some values of an environment variable.

    Attributes
    ----------
    variable : str
        The name of the variable.
    pattern : str
        The regular expression that the whole value matches.
    verdict : Verdict
        The severity of such a value.
    effect : str
        The effect of such a value.
    fix : str
        The advice to the user.
    """

    variable: str
    pattern: str
    verdict: Verdict
    effect: str
    fix: str


# The first rule that matches counts.
_VALUE_RULES = (
    _ValueRule(
        "NVIDIA_TF32_OVERRIDE",
        "0",
        NOTE,
        "float32 never uses TF32: more exact, slower",
        "unset it",
    ),
    _ValueRule(
        "NVIDIA_TF32_OVERRIDE",
        ".*",
        WARNING,
        "only 0 has a documented meaning",
        "unset it, and choose by math type",
    ),
    _ValueRule(
        "CUDA_LAUNCH_BLOCKING",
        "[^0].*",
        WARNING,
        "the host waits for each kernel: calls are slow",
        "unset it",
    ),
    _ValueRule(
        "CUDA_MODULE_LOADING",
        "(?i)EAGER",
        NOTE,
        "all kernels are loaded at the start: a slow start",
        "unset it",
    ),
    _ValueRule(
        "CUDNN_LOGLEVEL_DBG",
        "[^0].*",
        NOTE,
        "cuDNN logs: calls are slower",
        "unset it",
    ),
    _ValueRule(
        "LD_LIBRARY_PATH",
        "(.*[:/])?stubs/*(:.*)?",
        WARNING,
        "the libcuda in a folder 'stubs' is no driver",
        "take the folder 'stubs' out of LD_LIBRARY_PATH",
    ),
    _ValueRule(
        "LD_PRELOAD",
        ".*lib(cudnn|cublas|cuda[.]|nvrtc).*",
        WARNING,
        "every program started from here loads these libraries",
        "take CUDA's libraries out of it",
    ),
)


def judge_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Report each variable that is set, and what is wrong with its value."""
    for name in VARIABLES:
        if name in environment:
            yield _judge_variable(environment, name)
    yield from _judge_unknown_variables(environment)


def _judge_variable(environment: Mapping[str, str], name: str) -> Finding:
    value = environment[name]
    missing = _missing_paths(environment, name)
    verdict, effect, fix = _verdict_on_value(environment, name, missing)
    text = f"{name}={value}"
    if effect:
        text += effect
    facts = {"name": name, "value": value, "missing": missing}
    return finding_of(f"environment.{name}", facts, verdict, text, fix)


def _verdict_on_value(
    environment: Mapping[str, str], name: str, missing: list[str]
) -> tuple[Verdict, str, str]:
    """Return how serious a value is, the text to print behind it, and the fix."""
    value = environment[name]
    for rule in _VALUE_RULES:
        if rule.variable == name and re.fullmatch(rule.pattern, value):
            return rule.verdict, f": {rule.effect}", rule.fix
    if name == DEVICE_VARIABLE and not names_device(environment):
        fix = "set it to cuda, cuda:1, emulated or auto, or unset it"
        return BROKEN, " names no device", fix
    if name == FAULTS_VARIABLE and value:
        try:
            read_exclusions(value)
        except ArgumentError as error:
            return BROKEN, f": {error}", "correct the file, or unset it"
    if missing:
        # Container images set LD_LIBRARY_PATH to folders that few machines have.
        verdict = NOTE if name == "LD_LIBRARY_PATH" else WARNING
        fix = "unset it, or name paths that exist"
        return verdict, f": {', '.join(missing)} does not exist", fix
    if name == "CUDNN_PATH" and value and not _has_libcudnn(value):
        effect = ": there is no libcudnn.so.9 in its lib or lib64"
        return WARNING, effect, "unset it, or correct it"
    if name == "CUDA_HOME":
        toolkit = environment.get("CUDA_PATH") or value
        if os.path.realpath(toolkit) != os.path.realpath(value):
            effect = f": CUDA_PATH names another folder, {toolkit}"
            return WARNING, effect, "unset one of the two"
    return OK, "", ""


def _missing_paths(environment: Mapping[str, str], name: str) -> list[str]:
    """Return the paths in a variable that do not exist; names without a folder are not paths."""
    if name not in _PATH_VARIABLES:
        return []
    paths = [path for path in split_path(environment, name) if "/" in path]
    return [path for path in paths if not os.path.exists(path)]


def _has_libcudnn(prefix: str) -> bool:
    patterns = [os.path.join(escape(prefix), folder, "libcudnn.so.9") for folder in LIB_FOLDERS]
    return any(glob(pattern) for pattern in patterns)


def _judge_unknown_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Report each CUDNNLITE_ variable that cudnnlite does not read."""
    names = (*_OUR_VARIABLES, *_TEST_VARIABLES)
    for name in sorted(environment):
        if not name.startswith("CUDNNLITE_") or name in names:
            continue
        fix = f"unset {name}; cudnnlite's are {', '.join(_OUR_VARIABLES)}"
        similar_names = difflib.get_close_matches(name, names, 1, 0.8)
        if similar_names:
            fix = f"set {similar_names[0]} instead"
        text = f"{name} is set, but cudnnlite has no such variable"
        yield Finding("environment.unknown", WARNING, text, fix)
