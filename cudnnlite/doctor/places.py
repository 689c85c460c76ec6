"""`Place`: a folder where a library may lie, why it is looked at, and whether this environment's programs look there too."""

from __future__ import annotations

import enum
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from glob import escape, glob
from pathlib import Path

_LIB_FOLDERS = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "targets/*/lib")
# Where packages in a site-packages folder keep libraries: NVIDIA's wheels, PyTorch's older ones, repaired wheels.
_PACKAGED = ("nvidia/*/lib", "torch/lib", "*.libs")
_CACHE_LINE = re.compile(r"^\s*(\S+) \(.*\) => (/.*)$", re.MULTILINE)


class Reach(enum.Enum):
    """Who looks into a place."""

    LOADER = "loader"  # the dynamic loader, of every program started from here
    PACKAGES = "packages"  # Python packages of this environment, cudnnlite's own search included
    ELSEWHERE = "elsewhere"  # nobody in this environment


@dataclass(frozen=True)
class Place:
    """A folder where a library may lie.

    Parameters
    ----------
    folder : str
        The folder.
    how : str
        Why it is looked at: 'LD_LIBRARY_PATH', 'site-packages', ...
    reach : Reach
        Who looks there.
    """

    folder: str
    how: str
    reach: Reach


def all_places(
    environment: Mapping[str, str], cache: Mapping[str, tuple[str, ...]], root: str = "/", home: str | None = None
) -> list[Place]:
    """Return the places on this machine, each folder that exists under each of its names, nearest first.

    Parameters
    ----------
    environment : mapping
        The environment variables.
    cache : mapping
        The loader's cache, as `loader_cache` returns it.
    root, home : str
        Where the system and the user's folders begin.
    """
    home = os.path.expanduser("~") if home is None else home
    found = [*_of_variables(environment), *_of_packages(), *_of_loader(cache, root)]
    found += _of_toolkits(root, home)
    found += _of_other_environments(environment, home)
    return list(dict.fromkeys(place for place in found if os.path.isdir(place.folder)))


def loader_cache() -> dict[str, tuple[str, ...]]:
    """Return what the loader's cache knows: name -> paths, the first of which it takes; empty if that cannot be asked."""
    program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if program is None:
        return {}
    done = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=20, check=False)
    found: dict[str, list[str]] = {}
    for name, path in _CACHE_LINE.findall(done.stdout):
        found.setdefault(name, []).append(path)
    return {name: tuple(paths) for name, paths in found.items()}


def split_path(value: str | None) -> list[str]:
    """Return the folders of a variable such as LD_LIBRARY_PATH."""
    return [entry for entry in (value or "").split(":") if entry]


def preloaded(environment: Mapping[str, str]) -> list[str]:
    """Return the entries of LD_PRELOAD."""
    return [entry for entry in re.split(r"[ :]", environment.get("LD_PRELOAD", "")) if entry]


def lib_folders(prefix: str) -> list[str]:
    """Return the folders under a prefix that may hold libraries."""
    return [folder for name in _LIB_FOLDERS for folder in sorted(glob(os.path.join(escape(prefix), name)))]


def _of_variables(environment: Mapping[str, str]) -> Iterator[Place]:
    override = environment.get("CUDNNLITE_LIBCUDNN")
    if override:
        yield Place(
            override if os.path.isdir(override) else os.path.dirname(override), "CUDNNLITE_LIBCUDNN", Reach.LOADER
        )
    for path in preloaded(environment):
        if os.path.basename(path).startswith("libcudnn") and "/" in path:
            yield Place(os.path.dirname(path), "LD_PRELOAD", Reach.LOADER)
    for folder in split_path(environment.get("LD_LIBRARY_PATH")):
        yield Place(folder, "LD_LIBRARY_PATH", Reach.LOADER)
    for name in ("CUDNN_PATH", "CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX"):
        if environment.get(name):
            yield from (Place(folder, name, Reach.PACKAGES) for folder in lib_folders(environment[name]))


def _of_packages() -> Iterator[Place]:
    for entry in sys.path:
        if os.path.basename(entry.rstrip("/")) in ("site-packages", "dist-packages"):
            yield from (Place(folder, "site-packages", Reach.PACKAGES) for folder in _packaged(entry))


def _of_loader(cache: Mapping[str, tuple[str, ...]], root: str) -> Iterator[Place]:
    for folder in dict.fromkeys(os.path.dirname(path) for paths in cache.values() for path in paths):
        yield Place(folder, "the loader's cache", Reach.LOADER)
    for prefix in ("usr", "usr/local", ""):
        for folder in lib_folders(os.path.join(root, prefix)):
            yield Place(folder, "the system's folders", Reach.LOADER)


def _of_toolkits(root: str, home: str) -> Iterator[Place]:
    for pattern in ("usr/local/cuda*", "opt/cuda*", "opt/cudnn*"):
        for prefix in sorted(glob(os.path.join(escape(root), pattern))):
            yield from (Place(folder, "a CUDA folder", Reach.ELSEWHERE) for folder in lib_folders(prefix))
    for folder in sorted(glob(f"{escape(home)}/.cupy/cuda_lib/*/cudnn/*/lib*")):
        yield Place(folder, "CuPy's folder", Reach.ELSEWHERE)


def _of_other_environments(environment: Mapping[str, str], home: str) -> Iterator[Place]:
    for prefix in _prefixes(environment, home):
        for packages in sorted(glob(f"{escape(prefix)}/lib/python3*/*-packages")):
            yield from (Place(folder, "another Python environment", Reach.ELSEWHERE) for folder in _packaged(packages))
        if os.path.isdir(os.path.join(prefix, "conda-meta")):
            yield Place(os.path.join(prefix, "lib"), "another conda environment", Reach.ELSEWHERE)


def _prefixes(environment: Mapping[str, str], home: str) -> Iterable[str]:
    """Return where Python environments are: beside this one, on PATH, where the usual tools keep them."""
    found = [sys.prefix, sys.base_prefix, site.getuserbase(), "/usr", "/usr/local"]
    found += [environment[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name)]
    found += [os.path.dirname(folder.rstrip("/")) for folder in split_path(environment.get("PATH"))]
    beside = [os.path.dirname(prefix.rstrip("/")) for prefix in found[:1]]
    beside += [f"{home}/.virtualenvs", f"{home}/.pyenv/versions", f"{home}/miniconda3/envs", f"{home}/anaconda3/envs"]
    for parent in beside:
        found += sorted(glob(f"{escape(parent)}/*")) if parent != "/" else []
    with suppress(OSError, UnicodeError):
        found += Path(home, ".conda", "environments.txt").read_text(encoding="utf-8").splitlines()
    return dict.fromkeys(found)


def _packaged(packages: str) -> list[str]:
    return [folder for name in _PACKAGED for folder in sorted(glob(os.path.join(escape(packages), name)))]
