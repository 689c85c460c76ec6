"""The libcudnn in use, its parts, the other copies on the machine, and what cuDNN opens by name: cuBLAS and NVRTC.

No copy is loaded to learn its version: its parts export that as a constant (`cudnn_graph_version`
and the like), which is read from their files.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from glob import escape, glob
from typing import Any, NamedTuple

from cudnnlite._raw.elf import read_version
from cudnnlite._raw.library import LIBRARY_VARIABLE
from cudnnlite.devices.choice import DEVICE_VARIABLE
from cudnnlite.devices.cuda_facts import format_cuda_version
from cudnnlite.doctor.environment import LIB_FOLDERS, by_folder, split_path, versions_of
from cudnnlite.doctor.finding import BROKEN, NOTE, OK, WARNING, Finding, first
from cudnnlite.doctor.probe import Probe

# what programs ask the loader for: libcudnn.so.9; and as wheels are repaired:
# libcudnn-74a4c495.so.9.1.0
_FRONT = re.compile(r"libcudnn\.so\.[0-9]+|libcudnn-[0-9a-f]+\.so(\.[0-9]+)*")
_PART = re.compile(r"libcudnn_([a-z_]+?)(-[0-9a-f]+)?\.so(\.[0-9]+)*")
_CACHE_LINE = re.compile(r"^\s*\S+ \(.*\) => (/.*)/", re.MULTILINE)
# what the loader says where something that is no part of cuDNN is missing
_MISSING = re.compile(r"(?<!\S)\(?(?!libcudnn)(lib\S+\.so\S*): cannot open shared object file")
_SET = f"set {LIBRARY_VARIABLE}"
_INSTALL = "pip install 'cudnnlite[cu12]' (for CUDA 13: 'cudnnlite[cu13]')"
_NO_PRELOAD = "unset LD_PRELOAD, or take cuDNN's files out of it"
_CACHE, _ASIDE = "the loader's cache", "a CUDA folder, where nothing here looks"
# how a copy of another version is come upon, the worst first; why that matters; what to do
_OTHER_VERSION = (
    (
        "LD_LIBRARY_PATH",
        "the loader looks there first, and may mix the two",
        "take {place} out of LD_LIBRARY_PATH",
    ),
    ("LD_PRELOAD", "every program started from here loads it", _NO_PRELOAD),
    (
        "CUDNN_PATH",
        "CUDNN_PATH is looked at last",
        _SET + "={folder} to use it, or unset CUDNN_PATH",
    ),
    (
        _CACHE,
        "programs that ask the loader get that one",
        f"remove one of the two, or {_SET} to the folder of one",
    ),
    (
        "",
        "what looks there gets that one",
        _SET + "={folder} beside that package, or remove one of the two",
    ),
)
_NEEDS = (
    ("cuBLAS", "libcublasLt", "nvidia-cublas", BROKEN, "cuDNN needs it on a GPU"),
    (
        "NVRTC",
        "libnvrtc",
        "nvidia-cuda-nvrtc",
        WARNING,
        "cuDNN compiles some of its engines with it",
    ),
)


class Copy(NamedTuple):
    """A libcudnn: its front's file, links resolved; its version, or ''; those that parts state; where it was found, and why."""

    path: str
    version: str
    parts: Mapping[str, str] = {}  # 'ops' -> '9.28.0'; not every part states one
    found: Mapping[
        str, str
    ] = {}  # 'LD_LIBRARY_PATH' -> folder; empty where only the probe came upon it

    @property
    def folder(self) -> str:
        """Where it lies."""
        return os.path.dirname(self.path)

    @property
    def mixture(self) -> str:
        """Its parts' versions in words where they differ: one installation was written over another."""
        return (
            ", ".join(map(" ".join, self.parts.items()))
            if len(set(self.parts.values())) > 1
            else ""
        )

    def __str__(self) -> str:
        return (
            f"of several versions: {self.mixture}"
            if self.mixture
            else self.version or "of unknown version"
        )


class LibraryFacts(NamedTuple):
    """What was gathered: steps of the probe, and the files that it had loaded; copies; cuDNN's wheels; what cuDNN needs.

    `needs` are, of cuBLAS and NVRTC: the name, the file that cuDNN gets or '', and one that it does
    not see or ''.
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
        """Folder that files of cuDNN were loaded from -> that, the version and the files in words."""
        versions, folders = {copy.folder: str(copy) for copy in self.copies}, by_folder(self.mapped)
        return {
            f: f"{f} ({versions.get(f, 'of unknown version')}): {names}"
            for f, names in folders.items()
        }

    def wheel(self, copy: Copy) -> str:
        """Return the wheel that a copy is of, if it is the only one that writes there."""
        return (
            self.wheels[0]
            if len(self.wheels) == 1 and "-packages/nvidia/cudnn/" in copy.path
            else ""
        )

    def reinstall(self, copy: Copy) -> str:
        """Return how to install a copy again."""
        package = self.wheel(copy).partition(" ")[0]
        return (
            f"pip install --force-reinstall --no-deps {package}"
            if package
            else f"reinstall cuDNN in {copy.folder}"
        )


def gather(environment: Mapping[str, str], probe: Probe, packages: Iterable[str]) -> LibraryFacts:
    """Look for copies of libcudnn, and for what the one in use needs; nothing is loaded."""
    loaded, devices, places = (
        probe.step("library"),
        probe.step("cuda").get("devices"),
        all_places(environment),
    )
    lists = (probe.step(name)["mapped"] for name in ("trial", "cuda", "library"))
    mapped = tuple(next(filter(None, lists), ()))  # as late as that is known
    # what the loader knows; and a libcudnn names the folders of what was installed with it
    mine = os.path.dirname(os.path.realpath(loaded.get("path", "")))
    seen = {
        "LD_LIBRARY_PATH",
        _CACHE,
        *(how for how, folder in places if os.path.realpath(folder) == mine),
    }
    names = [
        f"{need[1]}.so.{major}" for need in _NEEDS if (major := loaded.get("cudart", 0) // 1000)
    ]
    needs = tuple((name, *look_up(name, mapped, seen, places)) for name in names)
    copies = find_copies([*places, *(("", folder) for folder in by_folder(mapped))])
    imports = {package: probe.step(f"import {package}") for package in packages}
    wheels = tuple(
        map(" ".join, versions_of(f"nvidia-cudnn-cu{number}" for number in (11, 12, 13)).items())
    )
    uses_gpu = bool(devices) and not environment.get(DEVICE_VARIABLE, "").lower().startswith(
        "emulated"
    )
    return LibraryFacts(loaded, mapped, imports, copies, wheels, environment, needs, uses_gpu)


def all_places(environment: Mapping[str, str], root: str = "/") -> list[tuple[str, str]]:
    """Return why libraries may lie in a folder of this machine, and the folder, nearest first."""
    found: dict[tuple[str, str], None] = {}

    def add(how: str, prefixes: Iterable[str], patterns: Iterable[str] = ("",)) -> None:
        for pattern in (
            os.path.join(escape(prefix), each) for prefix in prefixes if prefix for each in patterns
        ):
            found.update(
                {
                    (how, folder.rstrip("/")): None
                    for folder in sorted(glob(pattern))
                    if os.path.isdir(folder)
                }
            )

    override = environment.get(LIBRARY_VARIABLE, "")
    add(LIBRARY_VARIABLE, [override if os.path.isdir(override) else os.path.dirname(override)])
    add("LD_PRELOAD", by_folder(split_path(environment, "LD_PRELOAD")))
    add("LD_LIBRARY_PATH", split_path(environment, "LD_LIBRARY_PATH"))
    for name in ("CUDNN_PATH", "CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX"):
        add(name, [environment.get(name, "")], LIB_FOLDERS)
    # NVIDIA's wheels, PyTorch's older ones, repaired wheels
    packages = [entry for entry in sys.path if entry.rstrip("/").endswith("-packages")]
    add("site-packages", packages, ("nvidia/*/lib", "torch/lib", "*.libs"))
    add(_CACHE, loader_cache())
    add("the system's folders", [f"{root}/usr", f"{root}/usr/local", root], LIB_FOLDERS)
    add(_ASIDE, [f"{root}/usr/local", f"{root}/opt"], [f"cud*/{folder}" for folder in LIB_FOLDERS])
    return list(found)


def loader_cache() -> list[str]:
    """Return the folders that the loader's cache knows; empty if that cannot be asked."""
    program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if program is None:
        return []
    done = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=20, check=False)
    return list(dict.fromkeys(_CACHE_LINE.findall(done.stdout)))


def look_up(
    name: str, mapped: Iterable[str], seen: set[str], places: Iterable[tuple[str, str]]
) -> tuple[str, str]:
    """Return the file that cuDNN gets for a name, or ''; then one in a place that it does not see, or ''."""
    paths = {
        os.path.join(folder, name): how
        for how, folder in places
        if os.path.isfile(os.path.join(folder, name))
    }
    loaded = [path for path in mapped if f"{os.path.basename(path)}.".startswith(f"{name}.")]
    found = [*loaded, *(path for path, how in paths.items() if how in seen)]
    return (found[0], "") if found else ("", next(iter(paths), ""))


def find_copies(places: Iterable[tuple[str, str]]) -> tuple[Copy, ...]:
    """Return the copies of libcudnn in some places; one that is reached on several ways is one."""
    found: dict[str, dict[str, str]] = {}
    for how, folder in places:
        for path in glob(os.path.join(escape(folder), "libcudnn*.so*")):
            if _FRONT.fullmatch(os.path.basename(path)) and os.path.isfile(path):
                found.setdefault(os.path.realpath(path), {}).update({how: folder} if how else {})
    return tuple(_look_at(path, ways) for path, ways in found.items())


def _look_at(path: str, found: dict[str, str]) -> Copy:
    parts: dict[str, str] = {}
    for other in sorted(glob(os.path.join(escape(os.path.dirname(path)), "libcudnn_*.so*"))):
        name = _PART.fullmatch(os.path.basename(other))
        with suppress(
            OSError, ValueError
        ):  # cuDNN 8 may lie in the same folder, and has other parts
            if (
                name
                and _numbers(other)[:1] == _numbers(path)[:1]
                and (version := read_version(other))
            ):
                parts.setdefault(name[1], version)
    # the front asks the graph library for its version (in cuDNN 8, ops did); without either, what
    # any part says
    stated = [parts[part] for part in ("graph", "ops", *parts) if part in parts]
    numbers = _numbers(path) if _numbers(path).count(".") == 2 else ""
    return Copy(path, [*stated, numbers][0], parts, found)


def _numbers(path: str) -> str:
    """Return what follows '.so.' in a name: '9', or '9.10.2'."""
    return os.path.basename(path).partition(".so.")[2]


def judge(facts: LibraryFacts) -> Iterator[Finding]:
    """Tell what is to be said of libcudnn."""
    for package, step in facts.imports.items():
        files = "; ".join(
            f"{folder}: {names}" for folder, names in by_folder(step["mapped"]).items()
        )
        failed, fix = (
            step.get("error"),
            f"install {package} in this environment, or leave out --import {package}",
        )
        yield first(
            "library.import",
            {"package": package},
            (
                failed,
                WARNING,
                f"{package} cannot be imported: {failed}: {' '.join(step.get('message', '').split())}",
                fix,
            ),
            (
                True,
                OK,
                f"{package} was imported first, and had loaded of cuDNN then: {files or 'nothing'}",
                "",
            ),
        )
    if error := facts.loaded.get("error"):
        text, *more = map(
            str.strip, f"no libcudnn can be used: {facts.loaded['message']}".splitlines()
        )
        mixed = error == "MixedLibrariesError"
        check, lines = (
            ("library.mixed", facts.lines.values()) if mixed else ("library.loaded", more)
        )
        yield Finding(check, BROKEN, text, _fix(facts), tuple(lines), {"error": error})
    else:
        yield from _in_use(facts, facts.loaded["version"])
    yield from (
        _other(facts.loaded, copy)
        for copy in facts.copies
        if copy.found and copy.path != facts.path
    )
    if len(facts.wheels) > 1:
        names = " ".join(wheel.partition(" ")[0] for wheel in facts.wheels)
        text = f"{' and '.join(facts.wheels)} write the same files, so neither may be complete"
        fix = f"pip uninstall {names}, then install the one that fits the driver"
        yield Finding("library.wheels", WARNING, text, fix)
    for (what, _, package, bad, why), (name, path, aside) in zip(_NEEDS, facts.needs, strict=False):
        verdict, folder = bad if facts.uses_gpu else NOTE, os.path.dirname(aside)
        suffix = "-cu12" if name.endswith(".12") else ""  # the wheels for CUDA 13 have none
        yield first(
            f"library.{what.lower()}",
            {"name": name, "path": path, "aside": aside},
            (path, OK, f"{what} is there: {path}", ""),
            (
                aside,
                verdict,
                f"{what} is at {aside}, where cuDNN does not look; {why}",
                f"add {folder} to LD_LIBRARY_PATH",
            ),
            (
                True,
                verdict,
                f"{what} ({name}) was not found; {why}",
                f"pip install {package}{suffix}",
            ),
        )


def _in_use(facts: LibraryFacts, version: str) -> Iterator[Finding]:
    loaded, lines = facts.loaded, tuple(facts.lines.values())
    how = (
        "which was already loaded"
        if loaded["how"] == "already loaded"
        else f"found through {loaded['how']}"
    )
    built = f"built with CUDA {format_cuda_version(loaded['cudart'])}"
    text = f"cuDNN {version} is in use: {loaded['path']}, {how}, {built}"
    yield Finding(
        "library.loaded",
        OK,
        text,
        facts={name: loaded[name] for name in loaded if name != "mapped"},
    )
    if len(lines) > 1:  # cuDNN accepted them, or did not look, as it does for its engine libraries
        text = "files of several copies of cuDNN are in one process"
        yield Finding("library.mixed", WARNING, text, _fix(facts), lines)
    for copy in [copy for copy in facts.copies if copy.path == facts.path]:
        versions, again, wheel = (
            ", ".join(map(" ".join, copy.parts.items())),
            facts.reinstall(copy),
            facts.wheel(copy),
        )
        bad, text, fix = OK, f"its parts agree: {versions or 'cuDNN accepts them'}", ""
        if not set(copy.parts.values()) <= {version}:
            bad, text, fix = (
                BROKEN,
                f"its parts are of several versions: {versions}; the process has {version}",
                again,
            )
        yield Finding("library.parts", bad, text, fix, lines, {"versions": dict(copy.parts)})
        if wheel and not f"{wheel}.".partition(" ")[2].startswith(f"{version}."):
            text = f"{wheel} is installed, but the file in use is cuDNN {version}: something has replaced it"
            yield Finding("library.wheels", WARNING, text, again)


def _other(loaded: Mapping[str, Any], copy: Copy) -> Finding:
    """Tell of another copy, that the loader or another package may come upon."""
    text, version = (
        f"cuDNN {copy}: {copy.path}, found through {', '.join(copy.found)}",
        loaded.get("version", ""),
    )
    way, why, fix = next(rule for rule in _OTHER_VERSION if rule[0] in ("", *copy.found))
    fix = fix.format(place=copy.found.get(way), folder=copy.folder)
    same = copy.version == version and not copy.mixture
    return first(
        "library.copy",
        {"path": copy.path, "version": copy.version, "found": dict(copy.found)},
        (not version or set(copy.found) == {_ASIDE}, NOTE, f"a copy, {text}", ""),
        (
            _numbers(copy.path)[:1] != version[:1],
            NOTE,
            f"another copy, {text}; programs ask for it by another name",
            "",
        ),
        (same, NOTE, f"another copy, {text}; the same version, not in use", ""),
        (
            True,
            WARNING,
            f"another copy, {text}; in use is {version}, {loaded.get('path')}; {why}",
            fix,
        ),
    )


def _fix(facts: LibraryFacts) -> str:
    """Return what to do where no libcudnn can be used, or parts of several are: the first that applies."""
    error, message, packages = (
        facts.loaded.get("error"),
        facts.loaded.get("message", ""),
        ", ".join(facts.imports),
    )
    mixed, override = (
        error in (None, "MixedLibrariesError"),
        facts.environment.get(LIBRARY_VARIABLE),
    )
    strays = set(facts.lines) - {os.path.dirname(facts.path)}
    crashed = "".join(package for package, step in facts.imports.items() if step.get("crashed"))
    torn = [copy for copy in facts.copies if copy.mixture and copy.folder in facts.lines]
    preloaded = set(map(os.path.realpath, by_folder(split_path(facts.environment, "LD_PRELOAD"))))
    led = [
        path
        for path in split_path(facts.environment, "LD_LIBRARY_PATH")
        if os.path.realpath(path) in strays
    ]
    nines = [copy for copy in facts.copies if _numbers(copy.path)[:1] == "9"]
    named = [copy for copy in nines if copy.path in message]  # it was found, and cannot be loaded
    # cuda-pathfinder looks for cuBLAS first, and complains of that even where there is no cuDNN
    # either
    cublas = "libcublas" in message and any(set(copy.found) - {_ASIDE} for copy in nines)
    there = [copy.folder for copy in nines if error == "LibraryNotFoundError"]
    missing = _MISSING.findall(message)
    again = "".join(map(facts.reinstall, (torn or named)[:1]))
    rules: tuple[tuple[object, str], ...] = (
        (
            crashed,
            f"update or reinstall {crashed}, or leave out --import {crashed}",
        ),  # libcudnn was not tried
        (error == "ProbeError", f"{_SET} to another copy, and update or reinstall this one"),
        (torn, again),
        (mixed and strays & preloaded, _NO_PRELOAD),
        (mixed and led, f"take {''.join(led[:1])} out of LD_LIBRARY_PATH"),
        (
            mixed and packages,
            f"{_SET} to the folder that {packages} loaded from, or make a handle before importing it",
        ),
        (mixed, f"{_SET} to the folder of one copy, and remove the other from the loader's way"),
        (override, f"unset {LIBRARY_VARIABLE}, or set it to a folder that has libcudnn.so.9"),
        (missing, f"install the package of your system that has {''.join(missing[:1])}"),
        (named, again),
        (cublas, "pip install --force-reinstall nvidia-cublas-cu12 (for CUDA 13: nvidia-cublas)"),
        (there, f"{_INSTALL}, or {_SET}={''.join(there[:1])} to use the copy that is there"),
        (True, _INSTALL),
    )
    return next(fix for applies, fix in rules if applies)
