"""Find and load libcudnn, once per process, and know which files it consists of.

libcudnn.so.9 is a thin front: it opens libcudnn_ops, libcudnn_cnn and the others when they are
first needed, by name. If a machine has several copies of cuDNN (a wheel, the system's, another
framework's), the loader may find a file of another copy under that name.  So this module opens the
parts, from the folder of the front, before cuDNN looks for them.  Then it compares the files that
are mapped into the process with that folder.  An installation may lack parts; a function of such a
part is refused when it is first used.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

from cudnnlite._raw.elf import other_machine, why_unloadable
from cudnnlite._raw.fork_lock import fork_lock
from cudnnlite._raw.types import HEADER_VERSION
from cudnnlite.arguments import refusals_ignored, refused_as
from cudnnlite.errors import LibraryError, LibraryNotFoundError, MixedLibrariesError
from cudnnlite.warn import log, warn_user

LIBRARY_VARIABLE = "CUDNNLITE_LIBCUDNN"
UNKNOWN_VARIABLE = "CUDNNLITE_ALLOW_UNKNOWN_CUDNN"
# The major version that the function table was generated for.
_MAJOR = HEADER_VERSION // 10000
_SONAME = f"libcudnn.so.{_MAJOR}"
# The parts with C functions, in the order of their dependencies, and the function that checks the
# version of each.  The engine libraries (some of them half a gigabyte) stay with cuDNN, which opens
# them when a kernel is wanted.
_PARTS = {
    "graph": "cudnnGraphVersionCheck",
    "ops": "cudnnOpsVersionCheck",
    "cnn": "cudnnCnnVersionCheck",
    "adv": "cudnnAdvVersionCheck",
    "ext": "cudnnSubquadraticOpsVersionCheck",
}
# The parts of the headers that have another name than their part.
_PARTS_OF_HEADERS = {"subquadratic_ops": "ext", "gnn_ops": "ext"}

_loaded: Library | None = None


@dataclass(frozen=True)
class Library:
    """A loaded libcudnn: `path` is the file libcudnn.so.9, and `cdll` the loaded library.

    `how` says how it was found: 'CUDNNLITE_LIBCUDNN', 'already loaded', or a text of
    cuda-pathfinder ('site-packages', 'system-search', 'CUDNN_PATH', ...).  `version` is
    `cudnnGetVersion()`: 92800 is 9.28.0.  `missing_parts` are the names of parts that it lacks,
    such as 'adv'.

    Notes
    -----
    C functions, when it is loaded: `cudnnGetVersion`, `cudnnGraphVersionCheck`,
    `cudnnOpsVersionCheck`, `cudnnCnnVersionCheck`, `cudnnAdvVersionCheck`,
    `cudnnSubquadraticOpsVersionCheck`.
    """

    path: str
    how: str
    version: int
    cdll: ctypes.CDLL = field(repr=False, compare=False)
    missing_parts: tuple[str, ...] = field(default=(), repr=False)

    @property
    def version_text(self) -> str:
        """The version as people write it, '9.28.0'."""
        return format_version(self.version)

    @property
    def cudart_version(self) -> int:
        """The CUDA runtime that cuDNN was built with (`cudnnGetCudartVersion`).

        12090 is 12.9; 0 if cuDNN does not say.
        """
        try:
            function = self.cdll.cudnnGetCudartVersion
        except AttributeError:
            return 0
        function.restype = ctypes.c_size_t
        return int(function())

    def missing_file(self, header: str) -> str | None:
        """Return the file of a header's functions if it is missing, None if it is there."""
        part = _PARTS_OF_HEADERS.get(header, header)
        if part not in self.missing_parts:
            return None
        return part_of(Path(self.path), part).name

    def parts(self) -> list[str]:
        """Return the paths of libcudnn's files that this process has mapped, with the front."""
        return mapped_cudnn_files()


def load_library() -> Library:
    """Load libcudnn, or return the one already loaded by this function.

    The search order is the environment variable `CUDNNLITE_LIBCUDNN` (see `front_of`), then
    cuda-pathfinder's: already loaded in this process, the nvidia-cudnn wheel, conda, the system's
    loader, `CUDNN_PATH`.  LibraryNotFoundError if none was found, or the file that the variable
    names cannot be loaded; MixedLibrariesError if its parts come from different, incompatible
    copies; LibraryError if the system refuses, as with too many open files, or a file is damaged,
    or for a major version that is not known, unless `CUDNNLITE_ALLOW_UNKNOWN_CUDNN` is 1.
    """
    global _loaded  # noqa: PLW0603  (the process has one libcudnn)
    with fork_lock:
        if _loaded is None:
            # The system refuses it if too many files are open, for instance.
            with refused_as(LibraryError, "libcudnn cannot be loaded"):
                _loaded = _load()
        return _loaded


def load_library_without_driver(stand_in: str) -> Library:
    """Load libcudnn after a library that stands in for the driver's, and all that cuDNN opens.

    `stand_in` is the path of a library whose soname is libcuda.so.1.  LibraryError if the driver is
    loaded already, or cuBLAS or NVRTC is missing; otherwise as for `load_library`.
    """
    if drivers := mapped_cudnn_files(("libcuda.so",)):
        raise LibraryError(f"the driver's library is loaded already: {', '.join(drivers)}")
    ctypes.CDLL(stand_in, ctypes.RTLD_GLOBAL)
    from cuda import pathfinder

    # cuDNN opens these by name.  It ends the process if cuBLAS is missing (9.19), and calls an
    # engine not supported that it cannot compile without NVRTC.
    for name in ("nvrtc", "cublasLt", "cublas"):
        try:
            pathfinder.load_nvidia_dynamic_lib(name)
        except (pathfinder.DynamicLibNotFoundError, RuntimeError) as error:
            raise LibraryError(
                f"lib{name} was not found, which cuDNN needs; it comes with the wheels "
                "nvidia-cuda-nvrtc-cu12 and nvidia-cublas-cu12, or with the CUDA toolkit"
            ) from error
    return load_library()


def _load() -> Library:
    path, how = _find()
    _check_files(path, how)
    try:
        cdll = ctypes.CDLL(path)
        get_version = cdll.cudnnGetVersion
    except (OSError, AttributeError) as error:
        raise LibraryNotFoundError(
            f"{path} (found through {how}) cannot be loaded as libcudnn: {error}"
        ) from error
    get_version.restype = ctypes.c_size_t
    # Libraries before 9.28 do not have all parts.
    missing = tuple(part for part in _missing_parts(Path(path)) if hasattr(cdll, _PARTS[part]))
    library = Library(path, how, int(get_version()), cdll, missing)
    if library.version // 10000 != _MAJOR:
        _check_unknown(path, how, library.version_text)
    _load_parts(library)
    log.info("libcudnn %s at %s, found through %s", library.version_text, path, how)
    return library


def _check_unknown(path: str, how: str, version: str) -> None:
    """Raise LibraryError for another major version, unless the user wants to try it."""
    if os.environ.get(UNKNOWN_VARIABLE) == "1":
        log.warning("cuDNN %s is not known; trying it, as %s=1 asks", version, UNKNOWN_VARIABLE)
        return
    raise LibraryError(
        f"cudnnlite needs cuDNN {_MAJOR}.x; {path} (found through {how}) is {version}. Install "
        f"nvidia-cudnn-cu12 or -cu13 of version {_MAJOR}, or a cudnnlite that knows this cuDNN, or "
        f"set {UNKNOWN_VARIABLE}=1 to try it: functions that changed may crash"
    )


def _check_files(path: str, how: str) -> None:
    """Raise LibraryError for a damaged file, or without 'graph', before the library is loaded.

    cuDNN aborts the process if 'graph' is missing; 9.0 aborts it in functions of other parts that
    are missing, too, where 9.28 returns a status.  A truncated file kills the process.
    """
    front = Path(path).resolve()
    if machine := other_machine(front):
        raise LibraryNotFoundError(
            f"{path} (found through {how}) cannot be loaded as libcudnn: it is for {machine}, "
            f"and this process runs on {platform.machine()}"
        )
    damaged = _damaged_files(front)
    if damaged.get(front.name, "").startswith("is"):
        return  # It is no ELF file: the loader has the better message.
    lacks_graph = "graph" in _missing_parts(Path(path))
    # A file without its parts may be another library.
    if lacks_graph and not damaged and not _names_get_version(front):
        raise LibraryNotFoundError(
            f"{path} (found through {how}) has no cudnnGetVersion: it is no cuDNN"
        )
    problems = [f"{name} {problem}" for name, problem in damaged.items()]
    if lacks_graph:
        problems.append(f"{part_of(front, 'graph').name} is not beside it")
    if problems:
        raise LibraryError(
            f"libcudnn at {path} (found through {how}) is not whole: {'; '.join(problems)}. "
            "Install it again"
        )


def _damaged_files(front: Path) -> dict[str, str]:
    """Return, by the names of cuDNN's files beside a front, why a file cannot be loaded."""
    problems = {}
    files = {*front.parent.glob(f"libcudnn*{_suffix(front)}")}
    if front.name.startswith("libcudnn"):  # with all of its version in its name, too
        files.add(front)
    for file in sorted(files):
        problem = why_unloadable(file) if file.is_file() else ""
        if problem:
            problems[file.name] = problem
    return problems


def _missing_parts(front: Path) -> list[str]:
    """Return the names of parts that are neither beside a front nor mapped into this process."""
    mapped = {Path(file).name for file in mapped_cudnn_files()}
    return [
        part
        for part in _PARTS
        if not any(file.is_file() or file.name in mapped for file in _places_of(front, part))
    ]


def _places_of(front: Path, part: str) -> list[Path]:
    """Return where a part may be: beside the front, or beside the link to it."""
    return [part_of(place, part) for place in (front.resolve(), front)]


def part_of(front: Path, part: str) -> Path:
    """Return the file of a part of cuDNN that belongs to a front."""
    return front.with_name(f"libcudnn_{part}{_suffix(front)}")


def _suffix(front: Path) -> str:
    """Return the end of the names of a cuDNN's files: ".so.9", as the name of its front says."""
    match = re.fullmatch(r"libcudnn(\.so\.\d+)(\.\d+)*", front.name)
    return match[1] if match else f".so.{_MAJOR}"


def front_of(path: Path) -> Path:
    """Return the file that a user named by itself, by its folder, or by the folder of its `lib`."""
    if not os.path.isdir(path):  # Path.is_dir raises OSError for a path that is too long.
        return path
    front = path / _SONAME
    in_lib = path / "lib" / _SONAME
    return in_lib if in_lib.is_file() and not front.is_file() else front


def why_no_front(front: Path) -> str:
    """Return the end of a message about a front that is not there: what its folder has instead."""
    folder = front.parent
    others: list[str] = []
    with refusals_ignored():
        files = (*folder.glob("libcudnn.so*"), *folder.glob("lib/libcudnn.so*"))
        others = sorted(str(file.relative_to(folder)) for file in files)
    has_others = (
        f"; its folder has {', '.join(others)}, and cudnnlite needs cuDNN {_MAJOR} "
        f"({UNKNOWN_VARIABLE}=1 tries another, named by its file)"
    )
    return f"there is no file {front}{has_others if others else ''}"


def _names_get_version(front: Path) -> bool:
    """Tell whether a library has `cudnnGetVersion`; the names of functions are at its beginning."""
    with front.open("rb") as file:
        return b"cudnnGetVersion" in file.read(1 << 24)


def _find() -> tuple[str, str]:
    override = os.environ.get(LIBRARY_VARIABLE)
    if override:
        path = front_of(Path(override))
        if not os.path.isfile(path):
            raise LibraryNotFoundError(f"{LIBRARY_VARIABLE}={override}: {why_no_front(path)}")
        return str(path.resolve()), LIBRARY_VARIABLE
    from cuda import pathfinder

    try:
        location = pathfinder.load_nvidia_dynamic_lib("cudnn")
    except (pathfinder.DynamicLibNotFoundError, RuntimeError) as error:
        reason = "; ".join(str(error).split("\n")).strip("; ")
        raise LibraryNotFoundError(
            f"no {_SONAME} was found (looked for: already loaded in this process, the "
            "nvidia-cudnn-cu12 or -cu13 wheel, conda, the system's library folders, CUDNN_PATH). "
            "Install one with pip install nvidia-cudnn-cu12 (or -cu13), or name a file in "
            f"{LIBRARY_VARIABLE}. cuda-pathfinder, which fails without cuBLAS too, says: {reason}"
        ) from error
    if location.was_already_loaded_from_elsewhere:
        return str(location.abs_path), "already loaded"
    return str(location.abs_path), str(location.found_via)


def _load_parts(library: Library) -> None:
    """Load the parts from the folder of the front, and check that they are of one version."""
    front = Path(library.path).resolve()
    has_other_copy = any(Path(path).parent != front.parent for path in mapped_cudnn_files())
    for part in _PARTS:
        files = _places_of(Path(library.path), part)
        file = next((file for file in files if file.exists()), None)
        if file is not None:
            _load_part(library, file, has_other_copy)
    refusals = [
        version_check
        for part, version_check in _PARTS.items()
        if part not in library.missing_parts and _version_check(library.cdll, version_check) != 0
    ]
    if refusals:
        raise _mixed(library, f"it refuses its own parts ({', '.join(refusals)})")
    if has_other_copy:
        warn_user(
            f"parts of another cuDNN copy are mapped beside {library.path}; their versions agree, "
            f"so it may work:\n{_listing()}",
            RuntimeWarning,
        )


def _load_part(library: Library, path: Path, has_other_copy: bool) -> None:
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        if has_other_copy:
            raise _mixed(library, f"its part {path.name} cannot be loaded ({error})") from error
        raise LibraryError(
            f"libcudnn {library.version_text} at {library.path} is broken: {error}"
        ) from error


def _mixed(library: Library, symptom: str) -> MixedLibrariesError:
    return MixedLibrariesError(
        f"libcudnn {library.version_text} at {library.path}: {symptom}. "
        f"This process has mapped a mixture of copies:\n{_listing()}\n"
        "Make a handle before importing the package that loads the other copy, "
        f"or point {LIBRARY_VARIABLE} at that one"
    )


def _version_check(cdll: ctypes.CDLL, name: str) -> int:
    function = getattr(cdll, name, None)
    if function is None:  # An older front does not have that part.
        return 0
    function.restype = ctypes.c_int
    return int(function())


def _listing() -> str:
    return "\n".join(f"  {path}" for path in mapped_cudnn_files())


def mapped_cudnn_files(prefixes: tuple[str, ...] = ("libcudnn",)) -> list[str]:
    """Return the libraries that this process has mapped, by the beginnings of their names.

    The list is empty if there is no /proc, as on systems other than Linux.
    """
    lines: list[str] = []
    with refusals_ignored():
        lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines}
    return sorted(path for path in paths if Path(path).name.startswith(prefixes))


def format_version(version: int) -> str:
    """Format cuDNN's version number: 92800 becomes '9.28.0'.

    8.x and older used another scheme: 8907 is '8.9.7'.
    """
    major, rest = divmod(version, 10000) if version >= 90000 else divmod(version, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def version_number(text: str) -> int:
    """Return the number of a version from 9 on: '9.28.0' is 92800."""
    major, minor, patch = map(int, text.split("."))
    return major * 10000 + minor * 100 + patch
