"""The copies of libcudnn on this machine, and what the one in use needs: cuBLAS and NVRTC.

No copy is loaded to learn its version.  Its parts export the version as a constant
(`cudnn_graph_version` and the like), which is read from their files.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from glob import escape, glob
from typing import Any, NamedTuple

from cudnnlite._raw.elf import read_version
from cudnnlite._raw.library import LIBRARY_VARIABLE
from cudnnlite._raw.types import HEADER_VERSION
from cudnnlite.devices.device_choice import DEVICE_VARIABLE
from cudnnlite.workbench.doctor.environment import LIB_FOLDERS, by_folder, split_path, versions_of
from cudnnlite.workbench.doctor.finding import BROKEN, WARNING, Verdict
from cudnnlite.workbench.doctor.probe import Probe

# The file that programs load: libcudnn.so.9, or libcudnn-74a4c495.so.9.1.0 in a repaired wheel.
MAJOR = str(HEADER_VERSION // 10000)  # of the cuDNN that cudnnlite is made for
_FRONT = re.compile(r"libcudnn\.so\.[0-9]+|libcudnn-[0-9a-f]+\.so(\.[0-9]+)*")
_PART = re.compile(r"libcudnn_([a-z_]+?)(-[0-9a-f]+)?\.so(\.[0-9]+)*")
_CACHE_LINE = re.compile(r"^\s*\S+ \(.*\) => (/.*)/", re.MULTILINE)
LOADER_CACHE = "the loader's cache"
UNSEARCHED = "a CUDA folder, where nothing here looks"


class Dependency(NamedTuple):
    """A library that cuDNN opens by name.

    Attributes
    ----------
    title : str
        The name of the library in messages.
    stem : str
        The file's name before ".so".
    package : str
        The wheel for CUDA 13; that for CUDA 12 has "-cu12" behind it.
    verdict : Verdict
        The verdict if the library is missing on a machine with a GPU.
    use : str
        The purpose for which cuDNN needs the library.
    """

    title: str
    stem: str
    package: str
    verdict: Verdict
    use: str


DEPENDENCIES = (
    Dependency("cuBLAS", "libcublasLt", "nvidia-cublas", BROKEN, "cuDNN needs it on a GPU"),
    Dependency(
        "NVRTC",
        "libnvrtc",
        "nvidia-cuda-nvrtc",
        WARNING,
        "cuDNN compiles some of its engines with it",
    ),
)


class Copy(NamedTuple):
    """A copy of libcudnn.

    Attributes
    ----------
    path : str
        The file that programs ask for, links resolved.
    version : str
        Its version; empty if it is not known.
    parts : mapping
        The versions of its parts by name, such as 'ops'; not every part states one.
    origins : mapping
        The folders that lead to it, by why they are searched, such as 'LD_LIBRARY_PATH'; empty if
        only the probe met it.
    """

    path: str
    version: str
    parts: Mapping[str, str] = {}
    origins: Mapping[str, str] = {}

    @property
    def folder(self) -> str:
        """The folder of the file."""
        return os.path.dirname(self.path)

    @property
    def part_versions(self) -> str:
        """The versions of the parts in words."""
        return ", ".join(f"{part} {version}" for part, version in self.parts.items())

    @property
    def is_mixture(self) -> bool:
        """Whether the parts differ in version: one installation was written over another."""
        return len(set(self.parts.values())) > 1

    def __str__(self) -> str:
        if self.is_mixture:
            return f"of several versions: {self.part_versions}"
        return self.version or "of unknown version"


class LibraryFacts(NamedTuple):
    """The known facts about libcudnn.

    Attributes
    ----------
    loaded : mapping
        The probe's step that loaded libcudnn.
    mapped : tuple of str
        The files that the probe had mapped at its end.
    imports : mapping
        The probe's steps that imported packages, by package.
    copies : tuple of Copy
        The copies on this machine.
    wheels : tuple of str
        cuDNN's wheels that are installed, each with its version.
    environment : mapping
        The environment variables.
    needs : tuple of (str, str, str)
        For each of `DEPENDENCIES`: its file's name, the path that cuDNN gets or '', and a path that
        cuDNN does not see or ''.
    uses_gpu : bool
        Whether there is a GPU, and $CUDNNLITE_DEVICE does not name the emulated device.
    """

    loaded: Mapping[str, Any]
    mapped: tuple[str, ...] = ()
    imports: Mapping[str, Mapping[str, Any]] = {}
    copies: tuple[Copy, ...] = ()
    wheels: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    needs: tuple[tuple[str, str, str], ...] = ()
    uses_gpu: bool = False

    @property
    def path(self) -> str:
        """The file in use, links resolved."""
        return os.path.realpath(str(self.loaded.get("path", "")))

    @property
    def lines(self) -> dict[str, str]:
        """The folders that files of cuDNN were loaded from; of each, its version and its files."""
        versions = {copy.folder: str(copy) for copy in self.copies}
        return {
            folder: f"{folder} ({versions.get(folder, 'of unknown version')}): {names}"
            for folder, names in by_folder(self.mapped).items()
        }

    def wheel(self, copy: Copy) -> str:
        """Return the wheel that a copy belongs to; '' if that is none, or may be one of several."""
        if len(self.wheels) == 1 and "-packages/nvidia/cudnn/" in copy.path:
            return self.wheels[0]
        return ""

    def reinstall(self, copy: Copy) -> str:
        """Return how to install a copy again."""
        package = self.wheel(copy).partition(" ")[0]
        if package:
            return f"pip install --force-reinstall --no-deps {package}"
        return f"reinstall cuDNN in {copy.folder}"


def gather(environment: Mapping[str, str], probe: Probe, packages: Iterable[str]) -> LibraryFacts:
    """Find the copies of libcudnn, and what the one in use needs; nothing is loaded."""
    loaded = probe.step("library")
    places = all_places(environment)
    mapped = _mapped_files(probe)
    mapped_places = [("", folder) for folder in by_folder(mapped)]
    device = environment.get(DEVICE_VARIABLE, "").lower()
    has_gpu = bool(probe.step("cuda").get("devices"))
    return LibraryFacts(
        loaded,
        mapped,
        {package: probe.step(f"import {package}") for package in packages},
        find_copies([*places, *mapped_places]),
        _installed_wheels(),
        environment,
        _find_dependencies(loaded, mapped, places),
        has_gpu and not device.startswith("emulated"),
    )


def _mapped_files(probe: Probe) -> tuple[str, ...]:
    """Return the files that the probe had mapped after the latest step that says so."""
    for name in ("trial", "cuda", "library"):
        files = probe.step(name)["mapped"]
        if files:
            return tuple(files)
    return ()


def _installed_wheels() -> tuple[str, ...]:
    versions = versions_of(f"nvidia-cudnn-cu{number}" for number in (11, 12, 13))
    return tuple(f"{package} {version}" for package, version in versions.items())


def _find_dependencies(
    loaded: Mapping[str, Any], mapped: Sequence[str], places: Sequence[tuple[str, str]]
) -> tuple[tuple[str, str, str], ...]:
    """Return `LibraryFacts.needs`; empty if it is not known for which CUDA cuDNN is."""
    cuda_major = loaded.get("cudart", 0) // 1000
    if not cuda_major:
        return ()
    # The loader searches these folders, and those that a libcudnn names for the parts beside it.
    folder = os.path.dirname(os.path.realpath(loaded.get("path", "")))
    visible = {how for how, place in places if os.path.realpath(place) == folder}
    visible |= {"LD_LIBRARY_PATH", LOADER_CACHE}
    names = [f"{dependency.stem}.so.{cuda_major}" for dependency in DEPENDENCIES]
    return tuple((name, *look_up(name, mapped, visible, places)) for name in names)


def all_places(environment: Mapping[str, str], root: str = "/") -> list[tuple[str, str]]:
    """Return the folders that may have libraries, nearest first, each behind why it is searched."""
    override = environment.get(LIBRARY_VARIABLE, "")
    if not os.path.isdir(override):
        override = os.path.dirname(override)
    # The folders of NVIDIA's wheels, of PyTorch's older wheels, and of repaired wheels.
    wheel_folders = ("nvidia/*/lib", "torch/lib", "*.libs")
    toolkit_folders = [f"cud*/{folder}" for folder in LIB_FOLDERS]
    searches: list[tuple[str, Iterable[str], Iterable[str]]] = [
        (LIBRARY_VARIABLE, [override], [""]),
        ("LD_PRELOAD", by_folder(split_path(environment, "LD_PRELOAD")), [""]),
        ("LD_LIBRARY_PATH", split_path(environment, "LD_LIBRARY_PATH"), [""]),
        ("CUDNN_PATH", [environment.get("CUDNN_PATH", "")], LIB_FOLDERS),
        ("CUDA_PATH", [environment.get("CUDA_PATH", "")], LIB_FOLDERS),
        ("CUDA_HOME", [environment.get("CUDA_HOME", "")], LIB_FOLDERS),
        ("CONDA_PREFIX", [environment.get("CONDA_PREFIX", "")], LIB_FOLDERS),
        ("site-packages", _package_folders(), wheel_folders),
        (LOADER_CACHE, loader_cache(), [""]),
        ("the system's folders", [f"{root}/usr", f"{root}/usr/local", root], LIB_FOLDERS),
        (UNSEARCHED, [f"{root}/usr/local", f"{root}/opt"], toolkit_folders),
    ]
    places: dict[tuple[str, str], None] = {}
    for how, prefixes, patterns in searches:
        for folder in _matching_folders(prefixes, patterns):
            places[how, folder] = None
    return list(places)


def _package_folders() -> list[str]:
    return [entry for entry in sys.path if entry.rstrip("/").endswith("-packages")]


def _matching_folders(prefixes: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the folders that match a pattern below a prefix; an empty prefix has none."""
    folders = []
    for prefix in prefixes:
        for pattern in patterns if prefix else ():
            matches = sorted(glob(os.path.join(escape(prefix), pattern)))
            folders += [match.rstrip("/") for match in matches if os.path.isdir(match)]
    return folders


def loader_cache() -> list[str]:
    """Return the folders in the loader's cache; empty if ldconfig is not there."""
    program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if program is None:
        return []
    process = subprocess.run(
        [program, "-p"], capture_output=True, text=True, timeout=20, check=False
    )
    return list(dict.fromkeys(_CACHE_LINE.findall(process.stdout)))


def look_up(
    name: str,
    mapped: Iterable[str],
    visible: Collection[str],
    places: Iterable[tuple[str, str]],
) -> tuple[str, str]:
    """Return the path that cuDNN finds for a file's name, and a path that it does not see.

    Either of them may be ''.  `visible` has the reasons of the places that cuDNN sees.
    """
    for path in mapped:
        if f"{os.path.basename(path)}.".startswith(f"{name}."):
            return path, ""
    hidden = ""
    for how, folder in places:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        if how in visible:
            return path, ""
        hidden = hidden or path
    return "", hidden


def find_copies(places: Iterable[tuple[str, str]]) -> tuple[Copy, ...]:
    """Return the copies of libcudnn in some places; one that several places lead to is one."""
    origins: dict[str, dict[str, str]] = defaultdict(dict)
    for how, folder in places:
        for path in glob(os.path.join(escape(folder), "libcudnn*.so*")):
            if not _FRONT.fullmatch(os.path.basename(path)) or not os.path.isfile(path):
                continue
            copy_origins = origins[os.path.realpath(path)]
            if how:
                copy_origins[how] = folder
    return tuple(_describe_copy(path, origins[path]) for path in origins)


def _describe_copy(path: str, origins: Mapping[str, str]) -> Copy:
    parts = _part_versions(path)
    # The front asks the graph library for its version; that of cuDNN 8 asks ops.
    for name in ("graph", "ops", *parts):
        if name in parts:
            return Copy(path, parts[name], parts, origins)
    suffix = version_suffix(path)
    version = suffix if suffix.count(".") == 2 else ""
    return Copy(path, version, parts, origins)


def _part_versions(path: str) -> dict[str, str]:
    """Return the versions of the parts beside a front, by name.

    The parts of cuDNN 8 and of cuDNN 9 may be in one folder.
    """
    major = major_of(path)
    versions: dict[str, str] = {}
    for part in sorted(glob(os.path.join(escape(os.path.dirname(path)), "libcudnn_*.so*"))):
        match = _PART.fullmatch(os.path.basename(part))
        if match is None or major_of(part) != major:
            continue
        version = _read_version(part)
        if version:
            versions.setdefault(match[1], version)
    return versions


def _read_version(path: str) -> str:
    """Return the version that a part states; '' if there is none, or if it cannot be read."""
    try:
        return read_version(path)
    except (OSError, ValueError):
        return ""


def major_of(path: str) -> str:
    """Return the major version in a file's name; '9' of 'libcudnn.so.9.10.2'."""
    return version_suffix(path).partition(".")[0]


def version_suffix(path: str) -> str:
    """Return what follows '.so.' in a file's name: '9', or '9.10.2'."""
    return os.path.basename(path).partition(".so.")[2]
