"""What is installed and visible here: libcudnn, CUDA, devices, and the environment variables that matter."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from cudnnlite._raw.library import LIBRARY_VARIABLE, load_library
from cudnnlite.autotune.cache_path import CACHE_VARIABLE
from cudnnlite.devices.choice import DEVICE_VARIABLE, default_device
from cudnnlite.errors import CudnnliteError
from cudnnlite.version import __version__

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
_PACKAGES = (
    "numpy",
    "ml_dtypes",
    "cuda-core",
    "cuda-bindings",
    "cuda-pathfinder",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)


def gather() -> dict[str, Any]:
    """Return what `cudnnlite info` prints, as plain values for JSON.

    Nothing here raises: what cannot be found out is told as an 'error'.
    """
    return {
        "cudnnlite": __version__,
        "python": python_text(),
        "packages": {name: version for name in _PACKAGES if (version := installed_version(name))},
        "default device": default_device(),
        "library": _library(),
        "cuda": _cuda(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def python_text() -> str:
    """Return Python's version, and the platform that it runs on."""
    return f"{platform.python_version()} on {platform.platform()}"


def installed_version(package: str) -> str:
    """Return the version of an installed distribution; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _library() -> dict[str, Any]:
    from cudnnlite.devices.cuda import format_cuda_version

    try:
        library = load_library()
    except CudnnliteError as error:
        return {"error": str(error)}
    return {
        "path": library.path,
        "found through": library.how,
        "version": library.version_text,
        "built with CUDA": format_cuda_version(library.cudart_version),
        "parts": by_folder(library.parts()),
    }


def by_folder(paths: Iterable[str]) -> dict[str, str]:
    """Return folder -> file names: of cuDNN's files in a process one folder is healthy, two are a mixture."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(str(Path(path).parent), []).append(Path(path).name)
    return {folder: ", ".join(names) for folder, names in folders.items()}


def _cuda() -> dict[str, Any]:
    from cudnnlite.devices.cuda import describe_cuda

    try:
        return describe_cuda()
    except CudnnliteError as error:
        return {"error": str(error)}
