"""`CudnnCopy`: a libcudnn on this machine, with its version, without loading it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from glob import escape, glob
from importlib import metadata
from pathlib import Path

from cudnnlite._raw.library import format_version
from cudnnlite.doctor.elf import NotElfError, read_shared_library
from cudnnlite.doctor.places import Place, Reach

# What programs ask the loader for: libcudnn.so.9; and as wheels are repaired: libcudnn-74a4c495.so.9.1.0
_FRONT = re.compile(r"libcudnn\.so\.[0-9]+|libcudnn-[0-9a-f]+\.so(\.[0-9]+)*")
_PART = re.compile(r"libcudnn_([a-z_]+?)(-[0-9a-f]+)?\.so(\.[0-9]+)*")
_MAJOR = re.compile(r"\.so\.([0-9]+)[0-9.]*$")
_NUMBERS = re.compile(r"\.so\.([0-9]+\.[0-9]+\.[0-9]+)$")
_DEFINE = re.compile(r"^#define\s+CUDNN_(MAJOR|MINOR|PATCHLEVEL)\s+([0-9]+)", re.MULTILINE)


@dataclass(frozen=True)
class CudnnCopy:
    """A libcudnn on this machine.

    Attributes
    ----------
    path : str
        The front's file, links resolved.
    version : str
        '9.28.0'; empty if nothing tells it.
    version_from : str
        What told it: 'the library' (a constant in its parts), 'its file name' or 'its header'.
    part_versions : dict
        What the parts state: 'ops' -> '9.28.0'.  Not every part states one.
    wheel : str
        The wheel that installed it: 'nvidia-cudnn-cu12 9.28.0.42'; empty if none did.
    places : tuple of Place
        Where it was found.
    """

    path: str
    version: str
    version_from: str
    part_versions: dict[str, str] = field(default_factory=dict)
    wheel: str = ""
    places: tuple[Place, ...] = ()

    @property
    def folder(self) -> str:
        """The folder of the front."""
        return os.path.dirname(self.path)

    @property
    def major(self) -> str:
        """The major version, which is part of the name that programs ask for; empty if nothing tells it."""
        return _major(self.path) or self.version.partition(".")[0]

    @property
    def reach(self) -> Reach:
        """Who may come upon it: the loader, packages, or nobody in this environment."""
        reaches = {place.reach for place in self.places}
        return next((reach for reach in (Reach.LOADER, Reach.PACKAGES) if reach in reaches), Reach.ELSEWHERE)

    @property
    def how(self) -> str:
        """Where it was found, in words."""
        return ", ".join(dict.fromkeys(place.how for place in self.places if place.reach is self.reach))

    @property
    def is_mixed(self) -> bool:
        """Whether its parts state different versions: one installation was written over another."""
        return len(set(self.part_versions.values())) > 1

    @property
    def told(self) -> str:
        """The version, or those of its parts where they differ."""
        if self.is_mixed:
            return "of several versions: " + ", ".join(
                f"{part} {version}" for part, version in self.part_versions.items()
            )
        return self.version or "of unknown version"

    def __str__(self) -> str:
        return f"{self.told}, {self.path}"


def find_copies(places: Iterable[Place]) -> list[CudnnCopy]:
    """Return the copies of libcudnn in some places; one that is reached on several ways is one."""
    found: dict[str, list[Place]] = {}
    for place in places:
        for path in glob(os.path.join(escape(place.folder), "libcudnn*.so*")):
            if _FRONT.fullmatch(os.path.basename(path)) and os.path.isfile(path):
                seen = found.setdefault(os.path.realpath(path), [])
                if place not in seen:
                    seen.append(place)
    return [look_at_copy(path, tuple(seen)) for path, seen in found.items()]


def look_at_copy(path: str, places: tuple[Place, ...] = ()) -> CudnnCopy:
    """Read what the files of a copy say."""
    versions = part_versions(path)
    version, source = _version(path, versions)
    return CudnnCopy(path, version, source, versions, wheel_of(path), places)


def part_versions(front: str) -> dict[str, str]:
    """Return the versions that a front's parts state: 'ops' -> '9.28.0'."""
    found, major = {}, _major(front)
    for path in sorted(glob(os.path.join(escape(os.path.dirname(front)), "libcudnn_*.so*"))):
        name = _PART.fullmatch(os.path.basename(path))
        # cuDNN 8 may lie in the same folder, and has other parts
        if name and name[1] not in found and major in ("", _major(path)) and (version := file_version(path)):
            found[name[1]] = version
    return found


def file_version(path: str) -> str:
    """Return the version that a file states; empty if it states none, or cannot be read."""
    try:
        version = read_shared_library(path).cudnn_version
    except (OSError, NotElfError):
        return ""
    return "" if version is None else format_version(version)


def wheel_of(path: str, package: str = "cudnn") -> str:
    """Return NVIDIA's wheel of a package whose record lists a file: 'nvidia-cudnn-cu12 9.28.0.42'; empty if none does."""
    for parent in Path(path).parents:
        if parent.name in ("site-packages", "dist-packages"):
            inside = str(Path(path).relative_to(parent))
            for record in sorted(glob(f"{escape(str(parent))}/nvidia_{package}[_-]*.dist-info/RECORD")):
                if _lists(record, inside):
                    distribution = metadata.Distribution.at(Path(record).parent)
                    return f"{distribution.metadata['Name']} {distribution.version}"
    return ""


def _major(path: str) -> str:
    found = _MAJOR.search(path)
    return found[1] if found else ""


def _lists(record: str, inside: str) -> bool:
    try:
        with open(record, encoding="utf-8") as lines:
            return any(line.startswith(f"{inside},") for line in lines)
    except (OSError, UnicodeError):
        return False


def _version(path: str, versions: dict[str, str]) -> tuple[str, str]:
    # the front asks the graph library for its version (in cuDNN 8, ops did); without either, what any part says
    for part in ("graph", "ops", "ops_infer", *versions):
        if part in versions:
            return versions[part], "the library"
    if stated := file_version(path):
        return stated, "the library"
    if numbers := _NUMBERS.search(path):
        return numbers[1], "its file name"
    for header in ("cudnn_version.h", "cudnn_version_v9.h", "cudnn_version_v8.h"):
        try:
            text = Path(path).parent.parent.joinpath("include", header).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        defined = dict(_DEFINE.findall(text))
        if len(defined) == 3:
            return ".".join(defined[name] for name in ("MAJOR", "MINOR", "PATCHLEVEL")), "its header"
    return "", ""
